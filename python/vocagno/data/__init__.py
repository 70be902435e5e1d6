"""Corpora, documents and rows of token ids."""
