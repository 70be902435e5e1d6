"""A sample of a corpus, and what follows from it for the whole."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vocagno.data.corpus import Corpus
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

SHARDS = 16
"""From which the sample is drawn, evenly spaced."""
SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a corpus under one tokenizer."""

    count: int
    """Of the whole corpus, from the sample."""
    error: int
    """Standard error of `count`, from the spread over the sampled shards."""
    encoded: list[TokenizedTexts]
    """Of each part of the sample."""


class CorpusSample:
    """Documents from the beginning of evenly spaced shards."""

    def __init__(self, corpus: Corpus) -> None:
        """Raises: CorpusError if the corpus has changed since it was scanned."""
        self.corpus: Corpus = corpus
        self.parts: list[list[str]] = []
        self.prompt_bytes: list[list[int]] = []
        for texts, prompts in _parts(corpus):
            self.parts.append(texts)
            self.prompt_bytes.append(prompts)

    def tokens(self, spans: TokenSpans) -> Tokens:
        """How many tokens the corpus has: a ratio estimate, tokens over bytes."""
        sizes = np.array([sum(len(text.encode()) for text in part) for part in self.parts])
        encoded = [spans.try_encode(part)[0] for part in self.parts]
        counts = np.array([len(one.ids) for one in encoded])
        rate = counts.sum() / max(1, sizes.sum())
        residual, number = counts - rate * sizes, len(self.parts)
        error = math.sqrt((residual**2).sum() * number / max(1, number - 1)) / max(1, sizes.sum())
        is_all = number == len(self.corpus.shards) and sizes.sum() == self.corpus.text_bytes
        text_bytes = self.corpus.text_bytes
        return Tokens(round(rate * text_bytes), 0 if is_all else round(error * text_bytes), encoded)

    def write(self, path: Path, most_bytes: int, *, cut: bool) -> None:
        """Writes documents of the sample as JSON Lines until they have `most_bytes` of text, at
        least one of them. Args: cut: whether a document may be cut off there."""
        size = 0
        with path.open("w", encoding="utf-8") as file:
            for texts, prompts in zip(self.parts, self.prompt_bytes, strict=True):
                for text, num_prompt in zip(texts, prompts, strict=True):
                    data = text.encode()
                    if size >= most_bytes or not data:
                        continue
                    end = len(data) if not cut else max(num_prompt + 1, most_bytes - size)
                    prompt = data[:num_prompt].decode()
                    rest = data[num_prompt:end].decode(errors="ignore")
                    fields = {"prompt": prompt, "completion": rest} if prompt else {"text": rest}
                    file.write(json.dumps(fields) + "\n")
                    size += min(end, len(data))


def _parts(corpus: Corpus) -> Iterator[tuple[list[str], list[int]]]:
    count = min(SHARDS, len(corpus.shards))
    for number in range(count):
        found = corpus.read(corpus.shards[number * len(corpus.shards) // count])
        end = size = 0
        for text in found.texts:
            size += len(text.encode())
            if end and size > SAMPLE_BYTES / count:
                break
            end += 1
        yield found.texts[:end], found.prompt_bytes[:end]
