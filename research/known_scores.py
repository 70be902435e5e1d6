"""Scores that keep exactly the tokens without noise, or tokens at random.

    python -m research.known_scores TEXT OUT --kind oracle|random [--share 0.88] [--seed 0]

OUT becomes a finished store of scores of TEXT, for a run with `teacher.scores: OUT` (and no
`teacher.model`), `guidance.top_fraction: null` and `guidance.max_threshold: -100`. The loss is 0 on
what is to be trained on and 1,000 on the rest. So the excess loss is above the threshold, or far
below it, whatever the student loses. With `guidance.unit: token` and `guidance.aggregation: max` a
token that shares a byte with the rest is not trained on.

oracle: the rest is the `noise` that the documents of TEXT name (`study_text.py`). random: each word
is kept with the chance `--share`, drawn from the seed and the text of its document.
"""

import argparse
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.study_text import NoisyText, read_noise
from vocagno.data.corpus import scan, text_hash
from vocagno.data.store.building import Advance
from vocagno.system.files import digest
from vocagno.teacher.score_store import DocumentScores
from vocagno.teacher.scoring import Teacher, score_corpus

KEPT, DROPPED = 0.0, 1000.0
"""Nats; both are exact in float16."""
_WORD = re.compile(r"\n|[^\S\n]*\S+|[^\S\n]+")
"""A word and the white space before it, or a line break."""


def main() -> None:
    """Writes the store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="JSON Lines with `text` and `noise`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--kind", choices=("oracle", "random"), required=True)
    parser.add_argument("--share", type=float, default=0.88, help="random: of the words, kept")
    parser.add_argument("--seed", type=int, default=0, help="random: of the draw")
    options = parser.parse_args()
    if options.kind == "oracle":
        write_oracle(options.text, options.out)
    else:
        write_random(options.text, options.out, options.share, options.seed)


def write_oracle(text: Path, out: Path) -> None:
    """Keeps what is no noise."""
    documents = read_noise(text)
    noise = {text_hash(document.text): document.noise_N2 for document in documents}
    named = digest(*(noise_N2.tobytes() for noise_N2 in noise.values()))

    def choose(document: str) -> DocumentScores:
        return oracle(NoisyText(document, noise[text_hash(document)]))

    _write(text, out, choose, {"teacher": "known: oracle", "noise": named})


def write_random(text: Path, out: Path, share: float, seed: int) -> None:
    """Keeps words at random."""

    def choose(document: str) -> DocumentScores:
        return at_random(document, share, seed)

    _write(text, out, choose, {"teacher": "known: random", "share": share, "seed": seed})


def oracle(document: NoisyText) -> DocumentScores:
    """A span for each stretch of noise, and for each between."""
    size = len(document.text.encode())
    edges = np.unique(np.concatenate([[0, size], document.noise_N2.ravel()]))
    is_noise = np.isin(edges[:-1], document.noise_N2[:, 0])
    return _scores(edges, is_noise)


def at_random(text: str, share: float, seed: int) -> DocumentScores:
    """A span for each word."""
    words = [len(word.encode()) for word in _WORD.findall(text)]
    edges = np.concatenate([[0], np.cumsum(words, dtype=np.int64)])
    draw = np.random.default_rng([seed, zlib.crc32(text.encode())]).random(len(words))
    return _scores(edges, draw >= share)


def _scores(edges: NDArray[np.int64], is_dropped: NDArray[np.bool_]) -> DocumentScores:
    spans = np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int32)
    return DocumentScores(spans, np.where(is_dropped, DROPPED, KEPT).astype(np.float16))


class _Known(Teacher):
    """Stands for a teacher: reads nothing."""

    def __init__(self, choose: Callable[[str], DocumentScores]) -> None:
        self.choose = choose

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        return [self.choose(text) for text in texts]


def _write(
    text: Path, out: Path, choose: Callable[[str], DocumentScores], made_from: dict[str, Any]
) -> None:
    made_from = {**made_from, "tokenizer": "known", "unit": "nats"}
    score_corpus(scan(text), out, made_from, lambda: _Known(choose), show_progress=False)


if __name__ == "__main__":
    main()
