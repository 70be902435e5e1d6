"""The laboratory, outside the wheel: figures of the paper, and studies. Run from a checkout."""
