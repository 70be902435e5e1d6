"""All ordered pairs of some tokenizers: shared starts on a text, and the buckets of both
vocabularies. Prints Markdown, in which each tokenizer is named after its file.

    python benches/buckets.py TOKENIZERS TEXT.jsonl.gz > benches/results/DATE-buckets.md

TOKENIZERS is a folder of tokenizer.json(.gz). Shared starts are counted again, from the sets of
bytes at which tokens start.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import vocagno
from machine import machine
from vocagno import Agreement, Buckets, TokenizedTexts, TokenSpans
from vocagno.data.corpus import read_batches
from vocagno.tokens.buckets import LEAST_SHARE, MAX_SIZE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tokenizers", type=Path)
    parser.add_argument("text", type=Path)
    options = parser.parse_args()
    paths = sorted([*options.tokenizers.glob("*.json"), *options.tokenizers.glob("*.json.gz")])
    names = [path.name.removesuffix(".gz").removesuffix(".json") for path in paths]
    sides = [TokenSpans(path) for path in paths]
    texts = [text for batch in read_batches(options.text) for text in batch]
    tokens = [side.encode(texts) for side in sides]
    made: dict[tuple[int, int], Buckets] = {}
    seconds = {}
    for i, student in enumerate(sides):
        for j, teacher in enumerate(sides):
            start = time.process_time()
            made[i, j] = vocagno.buckets(student, teacher)
            seconds[i, j] = time.process_time() - start
    agreements = {(i, j): made[i, j].agreement(tokens[i], tokens[j]) for i, j in made}
    for (i, j), agreement in agreements.items():
        assert agreement.covered == covered_by_bytes(tokens[i], tokens[j])
        assert agreement[1:] == agreements[j, i][1:]
    on = machine("tokenizers", "numpy")
    size = sum(len(text.encode()) for text in texts)
    slowest = max(seconds, key=lambda pair: seconds[pair])
    print(
        f"# Buckets of all ordered pairs of {len(names)} tokenizers\n\n{on['cores']} cores of an "
        f"{on['processor']}, {on['date']}; tokenizers {on['tokenizers']}, Python {on['python']}. "
        f"Text: {len(texts):,} documents, {size:,} bytes.\n\n"
        f"    python benches/buckets.py TOKENIZERS {options.text.name}\n\n"
        f"A pair takes up to {max(seconds.values()):.1f} s of processor time "
        f"({', '.join(names[side] for side in slowest)}), with both tokenizers loaded before.\n"
    )
    print_table(
        "Student tokens that start where a teacher token starts / share of these places at which "
        "both tokens of the text are in one bucket, in per cent; students down.",
        names,
        lambda i, j: shares(agreements[i, j]),
    )
    print_table(
        "Buckets / ids of the student in the largest component.",
        names,
        lambda i, j: f"{made[i, j].count:,} / {made[i, j].largest:,}",
    )
    print_table(
        "Share of the student's ids with text that are in a bucket, in per cent; "
        f"components with more than {MAX_SIZE:,} ids of the student are none. "
        f"`check` asks for {LEAST_SHARE:.0%} on both sides.",
        names,
        lambda i, j: percent(own_share(made[i, j])),
    )


def covered_by_bytes(student: TokenizedTexts, teacher: TokenizedTexts) -> int:
    """Counts shared starts again, from sets of bytes of each text: the package aligns spans."""
    pairs = zip(student, teacher, strict=True)
    return sum(len(places(left.spans) & places(right.spans)) for left, right in pairs)


def places(spans: NDArray[np.int32]) -> set[int]:
    """The bytes at which a token starts and that no earlier token covers."""
    filled = spans[spans[:, 0] < spans[:, 1]]
    reached = np.maximum.accumulate(np.concatenate([[0], filled[:-1, 1]]))
    return set(filled[filled[:, 0] >= reached[: len(filled)], 0].tolist())


def own_share(made: Buckets) -> float:
    return np.count_nonzero(made.student >= 0) / made.pieces[0]


def shares(agreement: Agreement) -> str:
    covered = agreement.covered / agreement.tokens
    return f"{percent(covered)} / {percent(agreement.same_bucket / agreement.covered)}"


def percent(share: float) -> str:
    """Formats a share in per cent, never rounded up to 100: one that says 100 is complete."""
    return "100" if share == 1 else f"{int(share * 1e4) / 100:.2f}"


def print_table(caption: str, names: list[str], cell: Callable[[int, int], str]) -> None:
    print(f"{caption}\n")
    for row in (["", *names], ["---"] * (len(names) + 1)):
        print("| " + " | ".join(row) + " |")
    for i, name in enumerate(names):
        print("| " + " | ".join([name, *(cell(i, j) for j in range(len(names)))]) + " |")
    print()


if __name__ == "__main__":
    main()
