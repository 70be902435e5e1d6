"""The rule of lines for a text without a student: which of its lines are noise to a teacher.

Training drops a token if the teacher loses more than `guidance.window_max_loss` on the rest of its
line (`line_rule.weights_of_lines`), so two tokens of one line may fare differently. A filter of
text has one answer for a line. It drops a line if that rule, with the teacher's own tokens as
units, would drop more than half of its bytes. No other answer for whole lines differs from the rule
on fewer bytes with a loss. The teacher's mean loss on the line was tried and lost: on 10 kB of
mathematics with lines of random letters between its own, under SmolLM2-135M, it differs from the
weights of training on 0.5 % of the bytes, for students with the tokenizers of SmolLM2, TinyLlama,
Qwen2.5 and GPT-2, and this decision on 0.10 to 0.18 %. A smoothed mean does as well on that text,
but would drop a short line whose only token is hard, which training keeps.

`JudgedText` is a document with that decision, which a filter writes without its noise.

M: teacher tokens of a document, U: units, L: lines. NumPy only.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno.config.guidance import SMOOTHING_BYTES


class LineLosses(NamedTuple):
    """The teacher's losses on each line of a document, and the lines that are noise."""

    nats: NDArray[np.float64]
    """(L,) the sum of the losses of the tokens that begin in the line."""
    num_bytes: NDArray[np.int64]
    """(L,) the bytes of these tokens; 0 if none has a loss."""
    is_noise: NDArray[np.bool_]
    """(L,) True for lines to drop."""


def line_starts(text: bytes, first_byte: int = 0) -> NDArray[np.int64]:
    """(L,) the bytes at which the lines of a text begin.

    A line ends with its line feed, or with the text.

    Args: first_byte: the byte at which the first line begins, behind a prompt.
    """
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8)[first_byte:] == ord("\n"))
    starts = np.concatenate([[0], breaks + 1]) + first_byte
    return starts[starts < len(text)]  # no line begins behind a final line feed


def judge_lines(
    spans: NDArray[Any], nll: NDArray[Any], starts: NDArray[np.int64], max_loss: float
) -> LineLosses:
    """Sums the teacher's losses of each line, and finds the lines that are noise.

    A token belongs to the line in which it begins, as in training. Tokens that share bytes, those
    of one character, are one unit, and a unit lacks a loss if one of them does. Such a unit has no
    say, nor has one that begins before the first line. A line in which no token begins shares the
    fate of the line before it, whose last token covers it: an empty line that a token of two line
    feeds ends. A unit that has its line to itself is never noise.

    Args:
        spans: (M, 2) the bytes of each token, in order; empty for special tokens.
        nll: (M,) nats; NaN for none.
        starts: (L,) the byte at which each line begins, ascending. They may be those of other
            windows: a single one makes the whole document one line.
        max_loss: `guidance.window_max_loss`, in nats a byte.
    """
    first_U, stop_U, nats_U = _units(spans, nll)
    line_U = np.searchsorted(starts, first_U, side="right") - 1
    has_begun = np.bincount(line_U[line_U >= 0], minlength=len(starts)) > 0
    is_counted = (line_U >= 0) & np.isfinite(nats_U)
    line_U, nats_U = line_U[is_counted], nats_U[is_counted]
    bytes_U = (stop_U - first_U)[is_counted]

    def sums(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(line_U, values, minlength=len(starts)).astype(np.float64)

    nats_L, bytes_L = sums(nats_U), sums(bytes_U)
    rest_nats_U, rest_bytes_U = nats_L[line_U] - nats_U, bytes_L[line_U] - bytes_U
    # The same quotient as in `line_rule.rest_of_line_loss`, which has no rest of 0 bytes.
    mean_U = (rest_nats_U + SMOOTHING_BYTES) / (rest_bytes_U + SMOOTHING_BYTES)
    is_dropped_U = (rest_bytes_U > 0) & (mean_U > max_loss)
    is_noise = 2 * sums(bytes_U * is_dropped_U) > bytes_L
    if len(starts):
        leader = np.maximum.accumulate(np.where(has_begun, np.arange(len(starts)), 0))
        is_noise = is_noise[leader]
    return LineLosses(nats_L, bytes_L.astype(np.int64), is_noise)


def _units(spans: NDArray[Any], nll: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """(U,) first byte, end and loss of each run of tokens that share bytes; tokens without text are
    none. The loss is NaN if a token of the run has none."""
    has_text = spans[:, 0] < spans[:, 1]
    first, stop = spans[has_text].astype(np.int64).T
    if not len(first):
        return first, stop, np.zeros(0)
    reach = np.maximum.accumulate(stop)
    heads = np.flatnonzero(np.append(True, first[1:] >= reach[:-1]))
    last = np.append(heads[1:], len(first)) - 1
    nats = np.add.reduceat(nll[has_text].astype(np.float64), heads)
    return first[heads], reach[last], nats


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A document, and what of it is noise. Bytes of its prompt are neither judged nor counted."""

    data: bytes
    first_byte: int
    """The byte at which the judged text begins, after a prompt."""
    starts: NDArray[np.int64]
    """(L,) the byte at which each line begins, or the only window."""
    lines: LineLosses
    missing: str = ""
    """The reason why there are no scores, else empty."""

    @property
    def nats_per_byte(self) -> float | None:
        """The teacher's mean loss on the bytes for which it has one; None if there are none."""
        size = int(self.lines.num_bytes.sum())
        return round(float(self.lines.nats.sum()) / size, 4) if size else None

    @property
    def num_bytes(self) -> int:
        """The bytes that are judged."""
        return len(self.data) - self.first_byte

    @property
    def omitted_bytes(self) -> int:
        """The bytes of the lines that are noise."""
        return sum(stop - start for start, stop in self.ranges())

    def ranges(self, *, joined: bool = False) -> list[tuple[int, int]]:
        """Lists the lines that are noise, in bytes. Args: joined: neighbours are one range."""
        starts, stops = self.starts, np.append(self.starts[1:], len(self.data))
        noise = np.flatnonzero(self.lines.is_noise)
        first, last = noise, noise
        if joined:
            is_head = np.diff(noise, prepend=-2) > 1
            first, last = noise[is_head], noise[np.append(is_head[1:], True)[: len(noise)]]
        return list(zip(starts[first].tolist(), stops[last].tolist(), strict=True))

    def rest(self) -> str:
        """Joins the judged text that is not noise."""
        parts, at = [], self.first_byte
        for start, stop in self.ranges(joined=True):
            parts.append(self.data[at:start])
            at = stop
        return b"".join([*parts, self.data[at:]]).decode()

    def character_ranges(self) -> list[list[int]]:
        """Lists the noise in characters (code points) of the whole text, as Python counts them."""
        edges = chain.from_iterable(self.ranges(joined=True))
        places, characters, at = [], 0, 0
        for edge in edges:
            characters += len(self.data[at:edge].decode())
            places.append(characters)
            at = edge
        return [places[n : n + 2] for n in range(0, len(places), 2)]
