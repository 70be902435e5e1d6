"""What is needed of a transformers model."""
