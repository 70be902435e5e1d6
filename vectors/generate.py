"""Writes alignment.json: `python vectors/generate.py`, with `--check` compares it instead.

Needs only Python. The tokenizers are trained here on the texts below, in milliseconds. What is
expected comes from `expected`, which knows the definitions and nothing of the library.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("alignment.json")
Spans = list[tuple[int, int]]
Tokens = tuple[list[str], Spans]
"""Pieces, as a tokenizer writes them (none where a case has no text), and spans."""

TEXTS = {
    "prose": [
        "The sum of 17 and 25 is 42.",
        "an unbelievable story, proofread twice",
        "Probability, Uncertainty",
    ],
    "characters split between tokens": [
        "∑ x² ≤ ∞",
        " 𝒜 ∞ 𝒜𝒜",
        "日本語のテキスト",
        "naïve café, 5 € ¥7",
        "Ελλάδα и русский",
        "한국어 ไทย",
    ],
    "emoji": [
        "👩\u200d🔬 👨\u200d👩\u200d👧",
        "🇩🇪🇫🇷 👍🏽",
        "☺\ufe0f 😊 hi😊",
    ],
    "combining marks": [
        "cafe\u0301 nai\u0308ve",
        "e\u0301e\u0301e\u0301",
        "a\u0301\u0323b Erdo\u030bs",
        "\u1112\u1161\u11ab",
        "\u0928\u093c\u093e x",
    ],
    "compatibility characters": ["ﬁ①２０００…", "İstanbul ẞ Å\u212b", "½ x² ﷺ"],
    "white space": [
        "  leading, trailing  ",
        " ",
        "      ",
        "a\tb\n\n  c",
        "\tif x:\n\t\treturn  y\n",
        "x" + " " * 40 + "y",
        "a\u00a0b\u2003c\u3000d\u2028e",
    ],
    "line ends": ["\r\nx\r\n\r\ny", "a\r\rb\n\rc", "\n"],
    "controls": ["\x00\x10a\x00", "\ufeffBOM \ufffd", "a\u200bb\u00adc \x1b[0m"],
    "numbers": ["201 1100 3.14159", "12345678901234567890", "-1,000,000.50 1e-12", "0x1F4A9 ٣٤٥"],
    "long tokens": ["a" * 60, "=" * 48 + "\n", "antidisestablishmentarianism"],
    "code": ["snake_case _x = a , b", "x!=y&&(z[0]||w);", '{"a": [1, "b\\n"]}'],
    "names of special tokens": ["<s>hi</s>", "x<0x0A> <unk>", "▁ Ġ ▁▁x"],
}
MANY_BYTES = ("characters split between tokens", "emoji", "combining marks")
TRAINING = [
    *(text for texts in TEXTS.values() for text in texts),
    "The sum of two numbers is a number, and the probability of both is their product.",
    "An uncertain reader reads the proof twice; a story is read once, and believed or not.",
    "return a if x else b, unable to establish that every prime has two divisors in all",
]


# ---- tokenizers


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte, as GPT-2's does."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


LETTERS = byte_letters()


def train(words: list[list[str]], num_merges: int) -> list[tuple[str, str]]:
    """Learns merges: the most frequent pair first, of equal ones the least in order."""
    merges = []
    for _ in range(num_merges):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        pair = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(pair)
        words = [merge(word, pair) for word in words]
    return merges


def merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


class ByteLevel:
    """Tokens are runs of bytes within the words that a pattern finds."""

    def __init__(self, pattern: str, num_merges: int) -> None:
        self.pattern = re.compile(pattern)
        words = [word for text in TRAINING for word in self.words(text)]
        self.merges = train(words, num_merges)

    def words(self, text: str) -> list[list[str]]:
        return [[LETTERS[byte] for byte in word.encode()] for word in self.pattern.findall(text)]

    def __call__(self, text: str) -> Tokens:
        pieces = []
        for word in self.words(text):
            for pair in self.merges:
                word = merge(word, pair)
            pieces += word
        return pieces, following([len(piece) for piece in pieces])


class ByteFallback:
    """Tokens are runs of characters, spaces are `▁`, one more stands before the text, and rare
    characters are single bytes. A `▁` before the text that is a token by itself covers nothing."""

    def __init__(self, num_merges: int) -> None:
        counts = Counter("".join(TRAINING))
        self.characters = {"▁"} | {c for c, n in counts.items() if n > 4 and c.isprintable()}
        words = [
            list(word) for text in TRAINING for word in re.findall(r"▁*[^▁]*", self.mark(text))
        ]
        self.merges = train(
            [list(filter(self.characters.__contains__, w)) for w in words], num_merges
        )

    @staticmethod
    def mark(text: str) -> str:
        return "▁" + text.replace(" ", "▁")

    def __call__(self, text: str) -> Tokens:
        pieces: list[str] = []
        # A `▁` of the text itself is a rare character, not a space.
        for c in "▁" + text:
            letter = "▁" if c == " " or not pieces else c
            is_piece = letter in self.characters and not (c == "▁" and pieces)
            pieces += [letter] if is_piece else [f"<0x{byte:02X}>" for byte in c.encode()]
        for pair in self.merges:
            pieces = merge(pieces, pair)
        sizes = [
            1 if re.fullmatch("<0x..>", piece) else len(piece.replace("▁", " ").encode())
            for piece in pieces
        ]
        sizes[0] -= 1  # the first `▁` is not in the text
        return pieces, following(sizes)


def words_only(text: str) -> Tokens:
    """Words and signs; white space belongs to no token."""
    places = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
    spans = [(len(text[:a].encode()), len(text[:b].encode())) for a, b in places]
    return [text[a:b] for a, b in places], spans


def runs_of(size: int) -> Callable[[str], Tokens]:
    """Tokens of as many bytes each, wherever characters begin."""

    def tokens(text: str) -> Tokens:
        letters = [LETTERS[byte] for byte in text.encode()]
        pieces = ["".join(letters[at : at + size]) for at in range(0, len(letters), size)]
        return pieces, following([len(piece) for piece in pieces])

    return tokens


def single_token(text: str) -> Tokens:
    return [text], [(0, len(text.encode()))]


def whole_characters(text: str) -> Tokens:
    """The tokens of `small`, each with all bytes of each character that it has a byte of: what
    tokenizers report as offsets. Spans of one character repeat, and others overlap."""
    pieces, spans = small(text)
    places = [len(text[:at].encode()) for at in range(len(text) + 1)]
    widened = [
        (max(at for at in places if at <= a), min(at for at in places if at >= b)) for a, b in spans
    ]
    return pieces, widened


def following(sizes: list[int]) -> Spans:
    ends = [sum(sizes[: row + 1]) for row in range(len(sizes))]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


small = ByteLevel(r" ?[^\W\d]+| ?\d| ?[^\w\s]+|\s+", 60)
large = ByteLevel(r"\s?[^\W\d]+|\d{1,3}|[^\w\s]+[\r\n]*|\s+", 180)
fallback = ByteFallback(120)

Tokenizer = Callable[[str], Tokens]
USUAL: dict[str, tuple[Tokenizer, Tokenizer]] = {
    "small byte-level, large byte-level": (small, large),
    "byte fallback, large byte-level": (fallback, large),
}
OTHERS: dict[str, tuple[Tokenizer, Tokenizer]] = {
    "words only, small byte-level": (words_only, small),
    "large byte-level, byte fallback": (large, fallback),
    "single bytes, byte fallback": (runs_of(1), fallback),
    "whole characters, large byte-level": (whole_characters, large),
    "three bytes each, small byte-level": (runs_of(3), small),
    "large byte-level, words only": (large, words_only),
    "large byte-level, whole characters": (large, whole_characters),
    "single token, byte fallback": (single_token, fallback),
    "byte fallback, single token": (fallback, single_token),
    "byte fallback, single bytes": (fallback, runs_of(1)),
}


# ---- what is expected


Side = list[set[int]]
"""The bytes of each token of one side; none of a special token."""


def ranges_of(own: Side, other: Side) -> list[list[int]]:
    hits = [[row for row, text in enumerate(other) if text & mine] for mine in own]
    return [[hit[0], hit[-1] + 1] if hit else [-1, -1] for hit in hits]


def groups_of(own: Side, other: Side) -> list[list[list[int]]]:
    tokens = [(text, {row}, set[int]()) for row, text in enumerate(own) if text]
    tokens += [(text, set[int](), {row}) for row, text in enumerate(other) if text]
    runs: list[tuple[set[int], set[int], set[int]]] = []  # bytes, rows of both sides
    for token in tokens:
        met = [run for run in runs if run[0] & token[0]]
        parts = zip(token, *met, strict=True)
        text, rows, other_rows = (set[int]().union(*each) for each in parts)
        runs = [*(run for run in runs if run not in met), (text, rows, other_rows)]
    of_both = sorted((run for run in runs if run[1] and run[2]), key=lambda run: min(run[0]))
    return [[[min(rows), max(rows) + 1] for rows in run[1:]] for run in of_both]


def starts_of(own: Side, other: Side) -> list[int]:
    def begins(side: Side, row: int, byte: int) -> bool:
        before = set[int]().union(*side[:row])
        return byte == min(side[row], default=None) and byte > max(before, default=-1)

    def start(row: int) -> int:
        byte = min(own[row], default=-1)
        rows = [at for at in range(len(other)) if begins(other, at, byte)]
        return rows[0] if rows and begins(own, row, byte) else -1

    return [start(row) for row in range(len(own))]


def reasons_of(own: Side, other: Side) -> list[str]:
    covered = set[int]().union(*other)

    def reason(text: set[int]) -> str:
        if not text:
            return "special"
        if text & covered:
            return "mapped"
        return "truncated" if min(text) > max(covered, default=-1) else "hole"

    return [reason(text) for text in own]


def expected(student: Spans, teacher: Spans) -> dict[str, Any]:
    """The definitions of README.md, read off sets of bytes."""
    sides = [[set(range(*span)) for span in spans] for spans in (student, teacher)]
    groups = groups_of(*sides)
    return {
        "ranges": ranges_of(*sides),
        "student_groups": [own for own, _ in groups],
        "teacher_groups": [other for _, other in groups],
        "starts": starts_of(*sides),
        "reasons": reasons_of(*sides),
    }


# ---- cases


def case(
    kind: str, name: str, text: str | None, student: Tokens, teacher: Tokens
) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": kind, "name": name}
    if text is not None:
        written["text"] = text
    for side, (pieces, spans) in (("student", student), ("teacher", teacher)):
        if text is not None:
            written[f"{side}_pieces"] = pieces
        written[f"{side}_spans"] = spans
    return written | expected(student[1], teacher[1])


def of_texts() -> list[dict[str, Any]]:
    """Each text with the usual pairs, and with one of the others in turn."""
    cases = []
    turns = cycle(OTHERS.items())
    for kind, texts in TEXTS.items():
        for text in texts:
            pairs = dict([*USUAL.items(), next(turns)])
            if kind in MANY_BYTES:
                pairs["three bytes each, five bytes each"] = runs_of(3), runs_of(5)
            cases += [case(kind, name, text, a(text), b(text)) for name, (a, b) in pairs.items()]
    return cases


def around(tokens: Tokens, before: Spans, after: Spans) -> Tokens:
    """Tokens between special ones."""
    pieces, spans = tokens
    return ["<s>"] * len(before) + pieces + ["</s>"] * len(after), before + spans + after


def of_special_tokens() -> list[dict[str, Any]]:
    kind, text = "special tokens", "Probability, x²"
    size = len(text.encode())
    own, other = small(text), large(text)
    plain: Spans = []
    zero, end = [(0, 0)], [(size, size)]
    middle = [*own[0][:3], "</s>", "<s>", *own[0][3:]], own[1][:3] + zero * 2 + own[1][3:]
    inside = [*other[0][:1], "</s>", *other[0][1:]], other[1][:1] + zero + other[1][1:]
    named = {
        "BOS of the teacher": (own, around(other, zero, plain)),
        "BOS of the student": (around(own, zero, plain), other),
        "BOS of both": (around(own, zero, plain), around(other, zero, plain)),
        "EOS at 0, 0 of the teacher": (own, around(other, plain, zero)),
        "EOS at the end of both": (around(own, plain, end), around(other, plain, end)),
        "right padding at 0, 0": (own, around(other, zero, zero * 6)),
        "left padding of both": (around(own, zero * 4, zero), around(other, zero * 2, end)),
        "EOS and BOS in the middle of the student": (middle, other),
        "EOS in the middle of the teacher": (own, inside),
        "a span that ends before it starts": (
            around(own, [(5, 2)], plain),
            around(other, plain, [(9, 3)]),
        ),
        "only special tokens of the teacher": (own, around(([], []), zero, end)),
        "only special tokens of the student": (around(([], []), zero, end), other),
    }
    return [case(kind, name, text, *pair) for name, pair in named.items()]


def of_parts() -> list[dict[str, Any]]:
    """One side lacks a part of the text."""
    kind, text = "parts of the text", "The proof is read twice."

    def part(tokens: Tokens, rows: slice) -> Tokens:
        pieces, spans = tokens
        return pieces[rows], spans[rows]

    own, other = small(text), large(text)
    named = {
        "no token of either side": (([], []), ([], [])),
        "no token of the teacher": (own, ([], [])),
        "no token of the student": (([], []), other),
        "teacher truncated": (own, part(other, slice(0, 3))),
        "student truncated": (part(own, slice(0, 4)), other),
        "teacher begins later": (own, part(other, slice(2, None))),
        "every second token of the teacher": (own, part(other, slice(None, None, 2))),
        "every second token of the student": (part(own, slice(None, None, 2)), other),
        "every second token of both": (
            part(own, slice(None, None, 2)),
            part(other, slice(1, None, 2)),
        ),
        "nothing in common, student first": (part(own, slice(0, 2)), part(other, slice(-2, None))),
        "nothing in common, teacher first": (part(own, slice(-2, None)), part(other, slice(0, 2))),
        "nothing in common, alternating": (
            words_only(text),
            ([" "] * 4, [(3, 4), (9, 10), (12, 13), (17, 18)]),
        ),
    }
    return [case(kind, name, text, *pair) for name, pair in named.items()]


def of_spans() -> list[dict[str, Any]]:
    """Spans without a text."""
    far = 3_000_000_000  # beyond 32 bits
    named: dict[str, tuple[Spans, Spans]] = {
        "the same boundaries": ([(0, 2), (2, 5)], [(0, 2), (2, 5)]),
        "no boundary in common": ([(0, 3), (3, 9)], [(0, 2), (2, 7), (7, 9)]),
        "one token, many": ([(0, 12)], [(i, i + 1) for i in range(12)]),
        "many tokens, one": ([(i, i + 1) for i in range(12)], [(0, 12)]),
        "tokens that only touch": ([(2, 4)], [(0, 2), (4, 6)]),
        "nested spans": ([(5, 6), (6, 8), (7, 8)], [(5, 6), (6, 8), (7, 8)]),
        "a dummy prefix with the span of the first character": ([(0, 1), (0, 1), (1, 3)], [(0, 3)]),
        "four byte tokens with one span": ([(0, 4)] * 4 + [(4, 7)], [(0, 4), (4, 7)]),
        "one span on both sides, repeated": ([(0, 4)] * 3, [(0, 4)] * 2),
        "a chain of overlaps": ([(0, 2), (1, 3), (4, 6)], [(2, 5), (5, 6)]),
        "spans of one side overlap, the other is cut there": (
            [(0, 3), (2, 5)],
            [(0, 2), (2, 3), (3, 5)],
        ),
        "a gap of both sides": ([(0, 2), (6, 8)], [(0, 2), (6, 7), (7, 8)]),
        "a gap of the teacher inside a token": ([(0, 8), (8, 9)], [(0, 2), (6, 8), (8, 9)]),
        "text that does not begin at 0": ([(100, 104), (104, 105)], [(100, 101), (101, 105)]),
        "offsets beyond 32 bits": ([(far, far + 4), (far + 4, far + 6)], [(far, far + 6)]),
        "a token of 100,000 bytes": (
            [(0, 1), (1, 100_000)],
            [(0, 50_000), (50_000, 100_000), (100_000, 100_001)],
        ),
    }
    return [case("spans", name, None, ([], a), ([], b)) for name, (a, b) in named.items()]


def of_random_spans(count: int) -> list[dict[str, Any]]:
    """Spans in order with gaps, repeats, overlaps and empty ones in any place."""
    rng = random.Random(0)

    def side() -> Spans:
        spans: Spans = []
        start = end = 0
        for _ in range(rng.randrange(10)):
            start = rng.randrange(start, end + 3)
            end = max(end, start + rng.randrange(1, 6))
            spans += [(start, end)] * rng.choice([1, 1, 1, 2])
            if rng.random() < 0.4:
                start = end  # the next one follows, or leaves a gap
        for _ in range(rng.randrange(3)):
            spans.insert(rng.randrange(len(spans) + 1), rng.choice([(0, 0), (7, 7), (9, 4)]))
        return spans

    pairs = [(side(), side()) for _ in range(count)]
    return [case("random spans", str(i), None, ([], a), ([], b)) for i, (a, b) in enumerate(pairs)]


def refused() -> list[dict[str, Any]]:
    """Teacher spans out of order: no range of rows is right. `row` is the first that is wrong."""
    named: dict[str, tuple[Spans, int]] = {
        "a start decreases": ([(0, 2), (4, 6), (3, 7)], 2),
        "an end decreases": ([(0, 2), (2, 6), (3, 5)], 2),
        "two documents in one row": ([(0, 4), (4, 8), (0, 4), (4, 8)], 2),
        "after an empty span": ([(3, 6), (0, 0), (1, 6)], 2),
    }
    return [
        {
            "kind": "refused",
            "name": name,
            "student_spans": [(0, 8)],
            "teacher_spans": spans,
            "refused": row,
        }
        for name, (spans, row) in named.items()
    ]


def document() -> str:
    cases = [
        *of_texts(),
        *of_special_tokens(),
        *of_parts(),
        *of_spans(),
        *of_random_spans(20),
        *refused(),
    ]
    lines = [json.dumps(each, separators=(",", ":")) for each in cases]
    return '{"version":1,"unit":"UTF-8 bytes","cases":[\n' + ",\n".join(lines) + "\n]}\n"


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        is_same = FILE.read_text(encoding="utf-8") == document()
        print("the same" if is_same else f"{FILE.name} differs: run vectors/generate.py")
        return int(not is_same)
    FILE.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
