"""Compares the aligners of other projects with ours: a table of right tokens and of time.

    PYTHONPATH=tests/support python benches/peers.py [TOKENIZER.json.gz ...] [--texts FILE ...]

Default: tokenizers and texts of the tests. FILE has lines of JSON with a `text`. Aligners that are
installed take part: `pip install trl spacy-alignments pytokenizations merge-tokenizers`. Of two
repositories one file is enough: `--rllm COMMIT rllm/trainer/distill/alignment.py` and `--tokenkit
COMMIT tokenkit/align.py`. The others are named below the table.

Each pair of tokenizers reads each text, up to `--bytes`. A reading counts if the bytes of the
pieces of both sides are those of the text, by this file's own decoding. A token is right if the
links that an aligner gives put it into the smallest group of both sides with the same bytes, in a
coarser group if a smaller one has it, wrong if the sides of its group have different bytes; else
it has no partner, or the text was refused. Times are processor times of the alignment only, each
the least of three, relative to ours on the same texts in the same run.
"""

import argparse
import gzip
import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from numpy.typing import NDArray

import vocagno
from families import FAMILIES, HARD_TEXTS, LOSSLESS, TEXTS
from odd_strings import odd_strings

Links = Iterable[tuple[Iterable[int], Iterable[int]]]
"""Rows of both sides that an aligner says belong together."""
Prepared = tuple[Callable[[], Any], Callable[[Any], Links]]
"""The call that is timed, and the links in its answer."""
REFUSALS = (NotImplementedError, ValueError, IndexError, KeyError)


@dataclass
class Reader:
    """A tokenizer, and whether its tokens are letters for bytes."""

    backend: Any
    is_byte_level: bool


@dataclass
class Side:
    """One tokenizer's reading of a text."""

    tokenizer: Reader
    text: str
    encoding: Any
    spans: Any

    @property
    def strings(self) -> list[str]:
        return [self.text[start:end] for start, end in self.encoding.offsets]

    def bytes_of_tokens(self) -> list[bytes] | None:
        """The bytes of each token; None if together they are not the text."""
        decode = _byte_of_letter if self.tokenizer.is_byte_level else _sentencepiece_bytes
        try:
            pieces = [decode(token) for token in self.encoding.tokens]
        except KeyError:
            return None
        if not self.tokenizer.is_byte_level and pieces and b"".join(pieces)[:1] == b" ":
            pieces[0] = pieces[0][1:]
        return pieces if b"".join(pieces) == self.text.encode() else None


def _letters() -> dict[str, int]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


LETTERS = _letters()


def _byte_of_letter(token: str) -> bytes:
    return bytes(LETTERS[letter] for letter in token)


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


# ---- aligners, each with what it needs made beforehand


def with_vocagno(student: Side, teacher: Side) -> Prepared:
    def links(groups: Any) -> Links:
        ranges = zip(groups.student.tolist(), groups.teacher.tolist(), strict=True)
        return [(range(*rows), range(*teacher_rows)) for rows, teacher_rows in ranges]

    return lambda: vocagno.groups(student.spans, teacher.spans), links


def with_numpy(student: Side, teacher: Side) -> Prepared:
    """The paper's Algorithm 1, two binary searches over a tokenizer's offsets."""
    (starts, ends), (their_starts, their_ends) = (
        np.ascontiguousarray(np.array(side.encoding.offsets, np.int32).reshape(-1, 2).T)
        for side in (student, teacher)
    )

    def align() -> Any:
        first = np.searchsorted(their_ends, starts, side="right")
        return first, np.searchsorted(their_starts, ends, side="left")

    return align, lambda answer: [
        ([row], range(first, stop)) for row, (first, stop) in enumerate(zip(*answer, strict=True))
    ]


def with_align(student: Side, teacher: Side) -> Prepared:
    def links(ranges: Any) -> Links:
        return [([row], range(*rows)) for row, rows in enumerate(ranges.tolist()) if rows[0] >= 0]

    return lambda: vocagno.align(student.spans, teacher.spans), links


def with_trl(student: Side, teacher: Side) -> Prepared:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from trl.experimental import utils
    from trl.experimental.gold.gold_trainer import ULDLoss

    # It asks a tokenizer of 10 MB for its kind before each text.
    kinds.setdefault("trl", utils.is_byte_level_tokenizer)
    utils.is_byte_level_tokenizer = _kind_of_trl
    sides = [
        utils.encode_with_byte_offsets(side.tokenizer.backend, [side.text])[0][1]
        for side in (student, teacher)
    ]
    return lambda: ULDLoss._align_by_byte_offsets(*sides), lambda groups: zip(*groups, strict=True)


kinds: dict[Any, Any] = {}


def _kind_of_trl(backend: Any) -> Any:
    """The answer of TRL's own function, asked once for each tokenizer; they live as long as we."""
    if id(backend) not in kinds:
        kinds[id(backend)] = kinds["trl"](backend)
    return kinds[id(backend)]


def _of_strings(package: str) -> Callable[[Side, Side], Prepared]:
    def prepare(student: Side, teacher: Side) -> Prepared:
        get_alignments = importlib.import_module(package).get_alignments
        strings = student.strings, teacher.strings
        return lambda: get_alignments(*strings), lambda answer: [
            ([row], rows) for row, rows in enumerate(answer[0])
        ]

    return prepare


def _merged(aligner: str, *arguments: str) -> Callable[[Side, Side], Prepared]:
    def prepare(student: Side, teacher: Side) -> Prepared:
        import merge_tokenizers
        from merge_tokenizers.types import TokenizedPair

        sides = {"tokens_a": student.encoding.tokens, "tokens_b": teacher.encoding.tokens}
        offsets = {"spans_a": student.encoding.offsets, "spans_b": teacher.encoding.offsets}
        pair = TokenizedPair(**sides, **offsets, text=student.text)
        align_pair = getattr(merge_tokenizers, aligner)(*arguments).align_pair

        def links(answer: Any) -> Links:
            return [([place.position_a], place.positions_b) for place in answer.positions]

        return lambda: align_pair(pair), links

    return prepare


def with_rllm(module: Any) -> Callable[[Side, Side], Prepared]:
    def prepare(student: Side, teacher: Side) -> Prepared:
        made = []
        for side in (student, teacher):
            names = SimpleNamespace(convert_ids_to_tokens=lambda ids, s=side: s.encoding.tokens)
            offsets, text = module.build_byte_offsets(names, side.encoding.ids)
            region = module.find_content_byte_ranges(text, "", side.text)["content"]  # or KeyError
            made.append((offsets, region))
        offsets, regions = zip(*made, strict=True)
        return lambda: module._compute_overlap_mapping(*offsets, *regions), lambda answer: [
            ([row], rows) for row, rows in enumerate(answer[0])
        ]

    return prepare


def with_tokenkit(module: Any) -> Callable[[Side, Side], Prepared]:
    """Its strings are letters for bytes, of each tokenizer; without special tokens and templates
    there is nothing to replace."""
    letter_of = {byte: letter for letter, byte in LETTERS.items()}
    nothing = SimpleNamespace(model_kind_cls=SimpleNamespace(replacements={}))

    def prepare(student: Side, teacher: Side) -> Prepared:
        sides = []
        for side in (student, teacher):
            tokens = side.encoding.tokens
            if not side.tokenizer.is_byte_level:
                pieces = map(_sentencepiece_bytes, tokens)
                tokens = ["".join(map(letter_of.__getitem__, piece)) for piece in pieces]
            sides.append(tokens)

        def align() -> Any:
            copies = map(list, sides)  # it writes to them
            return module.get_alignment_indices(*copies, nothing, nothing)[0]

        return align, lambda chunks: [(range(a, b), range(c, d)) for a, b, c, d in chunks]

    return prepare


def loaded_file(name: str, path: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = {"rLLM": with_rllm, "tokenkit": with_tokenkit}
"""Those that are read from a file of their repository."""
ALIGNERS: dict[str, tuple[str, Callable[[Side, Side], Prepared]]] = {
    "vocagno, `groups`": ("vocagno", with_vocagno),
    "vocagno, `align`": ("vocagno", with_align),
    "Algorithm 1 in NumPy, on offsets": ("numpy", with_numpy),
    "TRL, GOLD": ("trl", with_trl),
    "spacy-alignments, on offsets": ("spacy-alignments", _of_strings("spacy_alignments")),
    "pytokenizations, on offsets": ("pytokenizations", _of_strings("tokenizations")),
    "merge-tokenizers, on offsets": ("merge-tokenizers", _merged("GreedyCoverageAligner")),
    "merge-tokenizers, DTW": ("merge-tokenizers", _merged("DTWAligner", "levenshtein")),
}
NOT_PACKAGED = "NeMo-RL (X-Token), KDFlow, SimCT: no package with their aligner on PyPI"


# ---- right and wrong


def smallest_groups(sides: list[list[bytes]]) -> dict[int, tuple[frozenset[int], frozenset[int]]]:
    """The group of each student token with text, from running sums of lengths only."""
    ends = [np.cumsum([len(piece) for piece in pieces]) for pieces in sides]
    cuts = np.intersect1d(*ends)
    members: list[dict[int, set[int]]] = [{}, {}]
    for side, pieces in enumerate(sides):
        for row, piece in enumerate(pieces):
            if piece:
                at = int(np.searchsorted(cuts, ends[side][row]))
                members[side].setdefault(at, set()).add(row)
    groups = {at: (frozenset(rows), frozenset(members[1][at])) for at, rows in members[0].items()}
    return {row: group for group in groups.values() for row in group[0]}


def linked_groups(links: Links, sides: list[list[bytes]]) -> Iterator[tuple[Any, Any]]:
    """What is linked, directly or through others; tokens without text aside."""
    parent: dict[tuple[int, int], tuple[int, int]] = {}

    def root(node: tuple[int, int]) -> tuple[int, int]:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for rows, teacher_rows in links:
        nodes = [(0, int(row)) for row in rows] + [(1, int(row)) for row in teacher_rows]
        nodes = [(side, row) for side, row in nodes if 0 <= row < len(sides[side])]
        for node in nodes:
            if sides[node[0]][node[1]]:
                parent[root(node)] = root(next(n for n in nodes if sides[n[0]][n[1]]))
    groups: dict[tuple[int, int], tuple[set[int], set[int]]] = {}
    for side, row in list(parent):
        groups.setdefault(root((side, row)), (set(), set()))[side].add(row)
    yield from (
        (frozenset(student), frozenset(teacher))
        for student, teacher in groups.values()
        if student and teacher
    )


def count(links: Links, sides: list[list[bytes]]) -> NDArray[np.int64]:
    """Student tokens that are right, in a coarser group, and wrong."""
    counts = np.zeros(3, np.int64)
    expected = smallest_groups(sides)
    places = [np.cumsum([0, *(len(piece) for piece in pieces)]) for pieces in sides]
    for group in linked_groups(links, sides):
        covered = [
            {byte for row in rows for byte in range(place[row], place[row + 1])}
            for rows, place in zip(group, places, strict=True)
        ]
        is_smallest = expected[min(group[0])] == group
        counts[0 if is_smallest else 1 if covered[0] == covered[1] else 2] += len(group[0])
    return counts


# ---- the run


@dataclass
class Tally:
    tokens: int = 0
    texts: int = 0
    refused: int = 0
    seconds: float = 0.0
    our_seconds: float = 0.0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    reasons: dict[str, int] = field(default_factory=dict)


def shortest(call: Callable[[], Any]) -> float:
    """Seconds of one call; short calls are timed 20 at a time, as the clock takes time itself."""

    def timed(calls: int) -> float:
        started = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - started) / calls

    calls = 20 if timed(1) < 1e-3 else 1
    return min(timed(calls) for _ in range(3))


def measure(prepare: Any, pairs: list[tuple[Side, Side]], seconds: float) -> Tally:
    tally, spent = Tally(), 0.0
    for student, teacher in pairs:
        pieces = [side.bytes_of_tokens() for side in (student, teacher)]
        if None in pieces:
            continue
        tally.texts += 1
        tally.tokens += sum(map(bool, pieces[0]))
        try:
            align, links = prepare(student, teacher)
            started = time.process_time()
            counts = count(links(align()), pieces)
        except REFUSALS as error:
            tally.refused += 1
            reason = f"{type(error).__name__}: {str(error)[:60]}"
            tally.reasons[reason] = tally.reasons.get(reason, 0) + 1
            continue
        tally.counts += counts
        tally.seconds += shortest(align)
        tally.our_seconds += shortest(with_vocagno(student, teacher)[0])
        spent += time.process_time() - started
        if spent > seconds:
            break
    return tally


def batch_ratio(pairs: list[tuple[Side, Side]]) -> float:
    """The time of one call for all texts, relative to a call for each."""
    batch: list[Any] = []
    cu_seqlens: list[Any] = []
    for side in zip(*pairs, strict=True):
        batch.append(np.concatenate([text.spans for text in side]))
        cu_seqlens.append(np.cumsum([0, *(len(text.spans) for text in side)]))
    names = "student_cu_seqlens", "teacher_cu_seqlens"
    boundaries = dict(zip(names, cu_seqlens, strict=True))
    together = shortest(lambda: vocagno.groups(*batch, **boundaries))
    return together / sum(shortest(with_vocagno(*pair)[0]) for pair in pairs)


def readings(files: list[Path], texts: list[str]) -> list[tuple[Side, Side]]:
    """Each text by each pair of tokenizers, in a random order."""
    sources = files or [FAMILIES[name]() for name in LOSSLESS]
    sides = []
    for source in sources:
        spans = vocagno.TokenSpans(source)
        backend = spans.tokenizer_copy()
        is_byte_level = "ByteLevel" in json.dumps(json.loads(backend.to_str())["decoder"])
        tokenizer = Reader(backend, is_byte_level)
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        read = [spans.encode([text]).spans for text in texts]
        sides.append([Side(tokenizer, *row) for row in zip(texts, encodings, read, strict=True)])
    pairs = [
        pair
        for student, teacher in combinations(sides, 2)
        for pair in zip(student, teacher, strict=True)
    ]
    random.Random(0).shuffle(pairs)
    return pairs


def texts_of(files: list[Path], number: int, num_bytes: int) -> list[str]:
    texts = [*HARD_TEXTS, *dict.fromkeys(TEXTS), *odd_strings(number // 4)]
    for file in files:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
            documents = [json.loads(line)["text"] for line in lines]
        texts += random.Random(0).sample(documents, min(number, len(documents)))
    return [text.encode()[:num_bytes].decode(errors="ignore") for text in texts if text]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizers", type=Path, nargs="*")
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--number", type=int, default=100, help="texts of each file")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each aligner")
    parser.add_argument("--bytes", type=int, default=420, help="of a text, at most")
    for name in FILES:
        parser.add_argument(f"--{name.lower()}", nargs=2, metavar=("COMMIT", "FILE"))
    options = parser.parse_args()
    pairs = readings(options.tokenizers, texts_of(options.texts, options.number, options.bytes))
    aligners, commits = dict(ALIGNERS), {}
    skipped = [NOT_PACKAGED]
    logging.disable(logging.WARNING)  # of theirs, a line for each mismatch
    # tokenkit's file asks for names of its own package that the function does not use.
    sys.modules["tokenkit"] = sys.modules["tokenkit.byteify"] = MagicMock()
    for name, made_of in FILES.items():
        if commit_and_file := getattr(options, name.lower()):
            commits[name], path = commit_and_file
            aligners[name] = name, made_of(loaded_file(name, path))
        else:
            skipped.append(f"{name}: no --{name.lower()}")
    date, num_pairs = time.strftime("%Y-%m-%d"), len(pairs)
    print(f"{date}, Python {platform.python_version()}, {num_pairs:,} readings of a pair\n")
    print("| aligner | version | readings | refused | right | coarser | wrong | time |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for name, (package, prepare) in aligners.items():
        try:
            version = commits.get(name) or importlib.metadata.version(package)
            tally = measure(prepare, pairs, options.seconds)
        except ImportError as error:
            skipped.append(f"{name}: {error}")
            continue
        shares = [tally.refused / tally.texts, *tally.counts / tally.tokens]
        cells = " | ".join(f"{share:.2%}" for share in shares)
        ratio = f"{tally.seconds / tally.our_seconds:,.3g}" if tally.our_seconds else "-"
        print(f"| {name} | {version} | {tally.texts:,} | {cells} | {ratio} |", flush=True)
        skipped += [f"{name} refused {n}: {reason}" for reason, n in tally.reasons.items()]
    print(f"\nOne call of `vocagno.groups` for 500 readings: {batch_ratio(pairs[:500]):.2f}")
    print(*skipped, sep="\n")


if __name__ == "__main__":
    main()
