"""`make quickstart`: makes corpus, tokenizers and teacher; trains students with and without it."""
