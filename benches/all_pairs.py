"""All ordered pairs of some tokenizers on some corpora: coverage, links, and every exception.

    python benches/all_pairs.py --tokenizers A.json.gz B.json.gz ... --corpora X.jsonl.gz ...

Prints Markdown, in which each tokenizer is named after its file.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from vocagno import TokenizedTexts, TokenSpans
from vocagno.data.corpus import read_batches
from vocagno.views.passage import visible
from vocagno.views.statistics import AlignmentRates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizers", type=Path, nargs="+", required=True)
    parser.add_argument("--corpora", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    names = [path.name.removesuffix(".gz").removesuffix(".json") for path in options.tokenizers]
    sides = [TokenSpans(path) for path in options.tokenizers]
    texts = [text for path in options.corpora for batch in read_batches(path) for text in batch]
    encoded = [side.encode(texts) for side in sides]
    print(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts):,} bytes\n")
    _print_tokenizers(names, sides, encoded, texts)
    rates = {}
    for i, student in enumerate(encoded):
        for j, teacher in enumerate(encoded):
            rates[i, j] = AlignmentRates()
            rates[i, j].add(texts, student, teacher)
    everything = range(len(names))
    print("\nCoverage: student tokens with text that are mapped, in per cent; students down.\n")
    _print_table(
        ["", *names],
        [[names[i], *(_percent(rates[i, j].coverage) for j in everything)] for i in everything],
    )
    print("\nStudent tokens mapped 1:1 / 1:N / N:1, in per cent; students down.\n")
    _print_table(
        ["", *names], [[names[i], *(_links(rates[i, j]) for j in everything)] for i in everything]
    )


def _print_tokenizers(
    names: list[str], sides: list[TokenSpans], encoded: list[TokenizedTexts], texts: list[str]
) -> None:
    rows, without = [], []
    for name, side, tokens in zip(names, sides, encoded, strict=True):
        empty = tokens.spans[:, 0] == tokens.spans[:, 1]
        kinds = Counter(side.token(index) or "" for index in tokens.ids[empty].tolist())
        listed = ", ".join(f"`{visible(token)}` {count:,}" for token, count in kinds.most_common())
        proved = f"{int(tokens.proved.sum()):,}"
        rows.append([name, f"{len(tokens.ids):,}", proved, listed or "none"])
        none = [i for i in np.flatnonzero(np.diff(tokens.cu_seqlens) == 0).tolist() if texts[i]]
        without += [[name, str(i), f"`{visible(texts[i])[:40]}`"] for i in none]
    _print_table(["tokenizer", "tokens", "documents proved from ids", "tokens without text"], rows)
    print("\nDocuments with text of which a tokenizer makes no token at all:\n")
    _print_table(["tokenizer", "document", "begins"], without)


def _percent(share: float) -> str:
    """Never rounded up to 100."""
    return "100" if share == 1 else f"{int(share * 1e6) / 1e4:.4f}"


def _links(rates: AlignmentRates) -> str:
    counts = rates.one_to_one, rates.one_to_many, rates.many_to_one
    return " / ".join(f"{100 * rates.share(count):.0f}" for count in counts)


def _print_table(head: list[str], rows: list[list[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")


if __name__ == "__main__":
    main()
