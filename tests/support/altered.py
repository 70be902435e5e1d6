"""Tokenizers whose encodings come out changed."""

from dataclasses import dataclass


@dataclass
class Changed:
    """An encoding as far as it is read."""

    ids: list
    offsets: list

    def __len__(self):
        return len(self.ids)


class Altered:
    """A tokenizer whose encodings come out changed; `alter(text, ids, offsets)` gives both anew."""

    def __init__(self, tokenizer, alter):
        self.tokenizer, self.alter = tokenizer, alter
        self.normalizer = tokenizer.normalizer

    def encode_batch(self, texts, **options):
        encodings = self.tokenizer.encode_batch(texts, **options)
        changed = [self.alter(t, e.ids, e.offsets) for t, e in zip(texts, encodings, strict=True)]
        return [Changed(ids, offsets) for ids, offsets in changed]

    def encode_batch_fast(self, texts, **options):
        return self.encode_batch(texts, **options)
