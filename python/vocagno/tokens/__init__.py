"""Tokenizers, and the bytes of text that each token covers."""
