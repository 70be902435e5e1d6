"""Tokenizers whose encodings come out changed."""

from dataclasses import dataclass


@dataclass
class Changed:
    """An encoding as far as it is read."""

    ids: list
    offsets: list

    def __len__(self):
        return len(self.ids)


def ends_at_its_start(text, ids, offsets):
    return ids, [(start, start) for start, _ in offsets]


def backwards(text, ids, offsets):
    return ids, offsets[::-1]


def moved_by(count):
    """What moves all offsets, but for those at the end."""

    def alter(text, ids, offsets):
        end = len(text)
        return ids, [(min(a + count, end), min(b + count, end)) for a, b in offsets]

    return alter


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
