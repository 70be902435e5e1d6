"""Counts the odd strings that tokenizers cannot place: for each tokenizer, how many of 1,500 are
proved from ids, take the tokenizer's offsets, or are refused.

    PYTHONPATH=tests/support python benches/odd_strings.py [TOKENIZER.json.gz ...]

Prints a table of these files and of the tokenizers that the tests train, as they are and with a
normaliser that contracts characters.
"""

import argparse
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from families import CONTRACTIONS, FAMILIES, HARD_TEXTS, TEXTS, contracting
from vocagno import TokenizerError, TokenSpans

COUNT = 1_500
_CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
_KINDS: list[Callable[[str], object]] = [
    unicodedata.combining,
    unicodedata.decomposition,
    str.isspace,
    lambda character: unicodedata.category(character) in ("Cc", "Cf"),
]


def odd_strings(count: int, seed: int = 0) -> list[str]:
    """Strings of one to eight parts: words, marks, compatibility characters, blanks, controls, code
    points of any plane, what normalisers contract, repeated punctuation, and hard texts."""
    rng = random.Random(seed)
    kinds = [[c for c in _CHARACTERS if is_of_kind(c)] for is_of_kind in _KINDS]
    words = " ".join(TEXTS[:6]).split(" ")
    contracted = [text for pair in CONTRACTIONS for text in pair]
    planes = [_CHARACTERS[:0x250], _CHARACTERS[:0xF800], _CHARACTERS]

    def part() -> str:
        kind = rng.randrange(6 + len(kinds))
        if kind < len(kinds):
            return rng.choice(kinds[kind])
        return [
            lambda: rng.choice(words),
            lambda: " " + rng.choice(words),
            lambda: rng.choice(HARD_TEXTS)[:20],
            lambda: rng.choice(contracted),
            lambda: rng.choice("()=;:,.!?-_/\\{}[]<>^~`\"'&%$#@") * rng.randint(1, 3),
            lambda: "".join(rng.choice(rng.choice(planes)) for _ in range(rng.randint(1, 5))),
        ][kind - len(kinds)]()

    return ["".join(part() for _ in range(rng.randint(1, 8))) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizers", type=Path, nargs="*")
    texts = odd_strings(COUNT)
    print("| tokenizer | proved from ids | from offsets | refused |\n|---|--:|--:|--:|")
    for name, spans in _tokenizers(parser.parse_args().tokenizers):
        counts = Counter(_outcome(spans, text) for text in texts)
        cells = (f"{counts[outcome]:,}" for outcome in ("proved", "offsets", "refused"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _outcome(spans: TokenSpans, text: str) -> str:
    try:
        return "proved" if spans.encode([text]).proved[0] else "offsets"
    except TokenizerError:
        return "refused"


def _tokenizers(paths: list[Path]) -> Iterator[tuple[str, TokenSpans]]:
    for path in paths:
        yield path.name.removesuffix(".gz").removesuffix(".json"), TokenSpans(path)
    for name, build in FAMILIES.items():
        yield name, TokenSpans(build())
        yield f"{name}, contracting", TokenSpans(contracting(build()))


if __name__ == "__main__":
    main()
