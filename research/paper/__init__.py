"""Figures 1 to 3 of arXiv 2503.19123, drawn for any tokenizers."""
