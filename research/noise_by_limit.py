"""What a limit of lines drops of a text whose noise is known, and of the rest of that text.

    python -m research.noise_by_limit TEXT.jsonl STORE [--limits 1.8 2 2.5]

TEXT is one of `research.study_text`, whose documents name their noise, and STORE holds its scores
by a teacher. A line is dropped as by `vocagno filter` with that limit, in nats a byte. Shares are
of bytes. On a text without noise only what the rule costs is shown.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from research.scores import scores_of
from research.study_text import NoisyText, read_noise
from vocagno.errors import InputError
from vocagno.integrations.filtering import FilterRule, NoiseFilter
from vocagno.teacher.score_store import ScoreStore

LIMITS = [1.5, 1.8, 2.0, 2.25, 2.5, 3.0]


def shares_dropped(
    documents: list[NoisyText], store: ScoreStore, limit: float
) -> list[float | None]:
    """Returns the share of the noise, and of all other bytes, in lines above a limit.

    None stands for a share of no bytes. All documents must have scores.
    """
    bytes_22 = np.zeros((2, 2), np.int64)  # noise or not, dropped or not
    texts = [document.text for document in documents]
    judgements = NoiseFilter(store, FilterRule(window_max_loss=limit)).judge(texts)
    for document, judged in zip(documents, judgements, strict=True):
        is_noise = np.zeros(judged.num_bytes, bool)
        for start, stop in document.noise_N2:
            is_noise[start:stop] = True
        is_dropped = np.repeat(judged.lines.is_noise, np.diff([*judged.starts, judged.num_bytes]))
        np.add.at(bytes_22, (is_noise.astype(int), is_dropped.astype(int)), 1)
    counts = bytes_22[::-1].tolist()
    return [dropped / (kept + dropped) if kept + dropped else None for kept, dropped in counts]


def table(documents: list[NoisyText], store: ScoreStore, limits: list[float]) -> Iterator[str]:
    """Yields the rows of a table in Markdown, one for each limit.
    Raises: InputError for a document without scores."""
    scores_of(store, [document.text for document in documents])  # a filter keeps what has none
    yield "| limit, nats a byte | noise dropped | other text dropped |"
    yield "|--:|--:|--:|"
    for limit in limits:
        shares = shares_dropped(documents, store, limit)
        cells = ["-" if share is None else f"{share:.2%}" for share in shares]
        yield f"| {limit:g} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="a text of research.study_text")
    parser.add_argument("store", type=Path, help="the teacher's scores of it")
    parser.add_argument("--limits", type=float, nargs="+", default=LIMITS, help="nats a byte")
    options = parser.parse_args()
    try:
        documents, store = read_noise(options.text), ScoreStore(options.store)
        print("\n".join(table(documents, store, options.limits)))
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
