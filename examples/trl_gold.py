"""Our alignment in TRL's GOLD trainer, in place of its own (tried with trl 1.16).

    python examples/trl_gold.py STUDENT TEACHER [TEXT]

`install()` before a GOLDTrainer is made is all that it takes. Run as a program, it compares both on
a text under two tokenizers (files, folders or names): the groups of both, and the time to find them
in the lists that TRL keeps, and in arrays.

What changes, in milliseconds of CPU (one core of an AMD EPYC; 16 mathematical texts, 18,444 tokens
of Llama 3 and 21,119 of GPT-2, the teacher Qwen2.5; the shortest of 25 runs, of 7 for offsets):

| student | what | TRL | vocagno |
|---|---|---|---|
| Llama 3 | ids and byte offsets of both (tokenizing only: 49) | 128 | 48 |
| Llama 3 | groups, in lists | 11.8 | 10.8 |
| Llama 3 | groups, in arrays | | 0.21 |
| GPT-2 | ids and byte offsets of both (tokenizing only: 64) | 151 | 55 |
| GPT-2 | groups, in lists | 15.1 | 12.7 |
| GPT-2 | groups, in arrays | | 0.26 |
| TinyLlama | ids and byte offsets of both | refused | 46 |

In lists both take the time to build lists. The groups are the same on all 215 texts of mathematics,
and on 638 of 708 texts made to be hard (Llama 3 and Qwen2.5). Of the others TRL refuses 43, and 27
differ: Qwen2.5 composes characters (NFC), and what TRL knows of their offsets is not all of them,
or not the same for the parts of a character.

TRL's tests of GOLD (`tests/experimental/test_gold_trainer.py` of 1.10.0.dev0, the newest that was
at hand; the package has no tests) were run on trl 1.16 without a network, with Llama 3's and
Qwen2.5's tokenizers from files: the same 35 of 70 pass with and without `install()`. The others
fail or are skipped with both: 21 want files of a hub, 6 attributes of their release, 8 are skipped.
"""

import os
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl.experimental import utils
from trl.experimental.gold import gold_trainer

import vocagno

Offsets = list[tuple[int, int]]
_spans: dict[int, tuple[Any, vocagno.TokenSpans]] = {}


def encode(
    backend: Any, texts: list[str], add_special_tokens: bool = False
) -> list[tuple[list[int], Offsets]]:
    """For `encode_with_byte_offsets`: ids and bytes of each text, under any fast tokenizer."""
    if add_special_tokens:
        raise NotImplementedError("GOLD asks for none, and they have no text")
    if id(backend) not in _spans:  # tried on probes once
        _spans[id(backend)] = backend, vocagno.TokenSpans(backend)
    tokens = _spans[id(backend)][1].encode(texts)
    rows = [tokens.text(index) for index in range(len(texts))]
    return [
        (tokens.ids[row].tolist(), list(map(tuple, tokens.spans[row].tolist()))) for row in rows
    ]


def align(student: Offsets, teacher: Offsets) -> tuple[list[list[int]], list[list[int]]]:
    """For `ULDLoss._align_by_byte_offsets`: the rows of each group on both sides."""
    groups = vocagno.groups(_as_array(student), _as_array(teacher))
    own, other = (
        [
            [first] if stop - first == 1 else list(range(first, stop))
            for first, stop in side.tolist()
        ]
        for side in groups[:2]
    )
    return own, other


def _as_array(offsets: Offsets) -> Any:
    return np.fromiter(chain.from_iterable(offsets), np.int64).reshape(-1, 2)


def install() -> None:
    """Puts both into TRL, whose own offsets are only for ByteLevel tokenizers."""
    gold_trainer.ULDLoss._align_by_byte_offsets = staticmethod(align)
    for module in (gold_trainer, utils):
        module.encode_with_byte_offsets = encode
        module.is_byte_level_tokenizer = lambda backend: True


def main(student: str, teacher: str, file: str | None = None) -> None:
    """Prints what becomes of a text."""
    text = Path(file).read_text("utf-8") if file else "Décimale: x² ≥ 3.14, so ∑ aᵢ = 201 👩‍🔬."
    backends = [vocagno.TokenSpans(name).tokenizer_copy() for name in (student, teacher)]
    theirs = gold_trainer.ULDLoss._align_by_byte_offsets
    for name, coded, aligned in (
        ("TRL", utils.encode_with_byte_offsets, theirs),
        ("vocagno", encode, align),
    ):
        try:
            sides = [coded(backend, [text])[0][1] for backend in backends]
        except NotImplementedError as error:
            print(f"{name}: {error}")
            continue
        groups = aligned(*sides)
        print(f"{name}: {len(groups[0]):,} groups, {_time(aligned, *sides):,.0f} us")
        print("  " + " | ".join(_shown(text, rows, sides[0]) for rows in groups[0][:12]))

    arrays = [_as_array(offsets) for offsets in sides]
    print(f"vocagno, arrays: {_time(vocagno.groups, *arrays):,.0f} us")


def _time(function: Callable[..., Any], *arguments: Any) -> float:
    """The shortest of many calls, in microseconds."""

    def once() -> float:
        started = time.perf_counter()
        function(*arguments)
        return 1e6 * (time.perf_counter() - started)

    return min(once() for _ in range(30))


def _shown(text: str, rows: list[int], offsets: Offsets) -> str:
    spans = [offsets[row] for row in rows]
    found = text.encode()[min(start for start, _ in spans) : max(end for _, end in spans)]
    return repr(found.decode(errors="replace"))[1:-1]


if __name__ == "__main__":
    main(*sys.argv[1:])
