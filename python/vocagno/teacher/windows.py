"""Cuts texts into windows of tokens for a teacher, and records the token of each loss.

M: tokens of all texts, concatenated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

MINUS_INFINITY = -9999.0
"""What vLLM's server writes for a log-probability of minus infinity."""
ROUNDING = 0.1
"""Up to here a log-probability above 0 is rounding: bfloat16 rounds a logit of 20 by 0.06."""


class Cut(NamedTuple):
    """A run of one document's tokens that the teacher reads in one window."""

    start: int
    stop: int
    score_from: int
    """First token of the document whose loss is taken from this run."""


def cuts(num_tokens: int, capacity: int, min_context: int) -> Iterator[Cut]:
    """Cuts a document into overlapping runs of at most `capacity` tokens.

    Every token is scored once. After the first run, at least `min_context` tokens of the document
    come before it.
    """
    if not 0 < min_context < capacity:
        raise ValueError(f"min_context must be in [1, {capacity}), got {min_context}")
    start = score_from = 0
    while score_from < num_tokens:
        stop = min(start + capacity, num_tokens)
        yield Cut(start, stop, score_from)
        start, score_from = stop - min_context, stop


@dataclass(frozen=True, slots=True)
class Window:
    """A sequence of tokens that is read independently."""

    ids: NDArray[np.int64]
    """(n,) ids, including the prefix (BOS)."""
    asked_from: int
    """Losses are requested for `ids[asked_from:]`; at least 1, since the first token has none."""


def requesting(windows: Sequence[Window]) -> list[int]:
    """Numbers of the windows that request losses."""
    return [n for n, window in enumerate(windows) if window.asked_from < len(window.ids)]


@dataclass(frozen=True, slots=True)
class WindowedTexts:
    """Tokenized texts, and the windows that give a loss to each of their tokens."""

    tokens: TokenizedTexts
    windows: list[Window]
    rows: list[slice]
    """The tokens that each window's losses belong to."""
    is_asked: NDArray[np.bool_]
    """(M,) whether a token should get a loss. Excluded are a text's first token without a prefix,
    and tokens without text (a lone dummy prefix), which guide no student token."""
    refused: dict[int, str]
    """The texts without tokens, because they cannot be placed in the text, and why."""


class TextReader:
    """A teacher's tokenizer and window size."""

    def __init__(
        self, spans: TokenSpans, prefix: Sequence[int], *, context: int, min_context: int
    ) -> None:
        """`prefix` (BOS) begins every window; without one, a text's first token has no loss.
        `context` and `min_context` are as in `TeacherConfig`."""
        self.spans = spans
        self.prefix: NDArray[np.int64] = np.array(prefix, np.int64)
        self.context = context
        self._capacity = context + 1 - len(self.prefix)  # the last token is not read
        self._min_context = min_context

    def read(self, texts: Sequence[str]) -> WindowedTexts:
        """Tokenizes texts and cuts each of them into windows."""
        tokens, refused = self.spans.try_encode(texts)
        ids = tokens.ids.astype(np.int64)
        is_asked = tokens.spans[:, 0] < tokens.spans[:, 1]
        windows, rows = [], []
        for number in range(len(tokens)):
            text = tokens.text(number)
            if not len(self.prefix) and text.stop > text.start:
                is_asked[text.start] = False
            for cut in cuts(text.stop - text.start, self._capacity, self._min_context):
                read = np.concatenate([self.prefix, ids[text][cut.start : cut.stop]])
                asked_from = max(1, len(self.prefix) + cut.score_from - cut.start)
                windows.append(Window(read, asked_from))
                stop = text.start + cut.stop
                rows.append(slice(stop - (len(read) - asked_from), stop))
        return WindowedTexts(tokens, windows, rows, is_asked, refused)


def losses_of(
    log_probabilities: Sequence[float | None] | NDArray[np.float64],
    error: Callable[[str], Exception],
) -> NDArray[np.float32]:
    """(n,) losses in nats; NaN for a log-probability that is missing, NaN or minus infinity, and 0
    for one that is above 0 by rounding.

    Args: error: makes the exception for one that is further above 0.
    """
    found = np.array(log_probabilities, np.float64)  # None becomes NaN
    if (found > ROUNDING).any():
        raise error(f"gives a log-probability of {np.nanmax(found):g}; expected at most 0")
    losses = np.where(found > MINUS_INFINITY, np.maximum(-found, 0.0), np.nan)
    return losses.astype(np.float32)
