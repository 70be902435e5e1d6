"""Tokens of two tokenizations, matched by the text they cover."""
