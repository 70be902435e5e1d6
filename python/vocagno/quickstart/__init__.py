"""`make quickstart`: corpus, tokenizers, teacher, and a student trained with and without it."""
