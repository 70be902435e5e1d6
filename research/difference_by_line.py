"""Finds the lines of a text on which two students differ, by what the teacher loses there.

    python -m research.difference_by_line TEXT.jsonl TEACHER A B [--limit 2]

TEACHER, A and B are stores of `vocagno score TEXT.jsonl`, by the teacher and by two students with
one tokenizer. Each band of lines has its share of the tokens and its part of the mean difference
B - A, in nats a token; the parts add up to the difference. Lines that are noise to the teacher, as
`vocagno filter` judges them, are a band of their own.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from research.scores import scores_of
from vocagno.data.corpus import read_batches
from vocagno.errors import InputError, require
from vocagno.integrations.filtering import FilterRule, NoiseFilter
from vocagno.teacher.score_store import ScoreStore

EDGES = (0.5, 1.0, 1.5)
"""Nats a byte that part the bands of the teacher's loss on a line."""


def bands(
    texts: Sequence[str], stores: Sequence[Path], limit: float | None = None
) -> dict[str, tuple[float, float]]:
    """Returns the share of the tokens and the part of the mean difference, of each band.

    Args:
        stores: the scores of the teacher, of A and of B.
        limit: nats a byte of a noisy line; None for that of `vocagno filter`.
    Raises: InputError for a text without scores in one of the stores, and for students with other
        tokens.
    """
    noise = NoiseFilter(ScoreStore(stores[0]), FilterRule(window_max_loss=limit))
    # The teacher's are read to check them: a filter keeps the lines of a text without scores.
    _, student_a, student_b = (scores_of(ScoreStore(path), texts) for path in stores)
    labels = [*(f"below {edge:g}" for edge in EDGES), f"{EDGES[-1]:g} or more", "noise"]
    counts, differences = np.zeros(len(labels)), np.zeros(len(labels))
    for judged, a, b in zip(noise.judge(texts), student_a, student_b, strict=True):
        if not np.array_equal(a.spans, b.spans):
            raise InputError(f"{stores[2]}: has other tokens than {stores[1]}; score both alike")
        starts, lines = judged.starts, judged.lines
        band_L = np.digitize(lines.nats / np.maximum(1, lines.num_bytes), EDGES)
        band_L[lines.is_noise] = len(EDGES) + 1
        is_scored = np.isfinite(a.nll) & np.isfinite(b.nll)
        line_N = np.searchsorted(starts, a.spans[is_scored, 0], side="right") - 1
        counts += np.bincount(band_L[line_N], minlength=len(labels))
        difference_N = (b.nll - a.nll)[is_scored]
        differences += np.bincount(band_L[line_N], difference_N, minlength=len(labels))
    require(counts.sum() > 0, f"{stores[1]}: has no losses of this text")
    parts = zip(counts / counts.sum(), differences / counts.sum(), strict=True)
    return dict(zip(labels, ((float(share), float(part)) for share, part in parts), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path)
    for whose in ("teacher", "a", "b"):  # `nargs=3` with three names breaks --help of Python 3.11
        parser.add_argument(whose, type=Path, help="a store of its scores of the text")
    parser.add_argument("--limit", type=float, help="nats a byte of a noisy line; default: 2")
    options = parser.parse_args()
    try:
        texts = [text for batch in read_batches(options.text) for text in batch]
        rows = bands(texts, [options.teacher, options.a, options.b], options.limit)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    print("| the teacher's loss on the line, nats a byte | tokens | B - A, nats a token |")
    print("|---|--:|--:|")
    for label, (share, part) in rows.items():
        print(f"| {label} | {share:.2%} | {part:+.4f} |")
    print(f"| all | 100% | {sum(part for _, part in rows.values()):+.4f} |")


if __name__ == "__main__":
    main()
