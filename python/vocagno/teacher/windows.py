"""Cuts texts into windows of tokens that a teacher can read, and records which token each of the
windows' losses belongs to.

M: tokens of all texts, concatenated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

MINUS_INFINITY = -9999.0
"""The number that vLLM's server writes for a log-probability of minus infinity."""
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


def windows_to_score(windows: Sequence[Window]) -> list[int]:
    """The indices of the windows that request at least one loss."""
    return [n for n, window in enumerate(windows) if window.asked_from < len(window.ids)]


@dataclass(frozen=True, slots=True)
class WindowedTexts:
    """Tokenized texts, and the windows that give a loss to each of their tokens."""

    tokens: TokenizedTexts
    windows: list[Window]
    rows: list[slice]
    """For each window, the tokens that its losses belong to."""
    is_asked: NDArray[np.bool_]
    """(M,) True for a token that should get a loss. False for the first token of a text if there is
    no prefix, and for tokens without text (a lone dummy prefix), which guide no student token."""
    refused: dict[int, str]
    """The reason for each text that has no tokens because they cannot be placed in it."""


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
                window_ids = np.concatenate([self.prefix, ids[text][cut.start : cut.stop]])
                # Without a prefix the first token of a window is predicted from nothing.
                asked_from = max(1, len(self.prefix) + cut.score_from - cut.start)
                windows.append(Window(window_ids, asked_from))
                stop = text.start + cut.stop
                rows.append(slice(stop - (len(window_ids) - asked_from), stop))
        return WindowedTexts(tokens, windows, rows, is_asked, refused)


def losses_of(
    log_probabilities: Sequence[float | None] | NDArray[np.float64],
    error: Callable[[str], Exception],
) -> NDArray[np.float32]:
    """(n,) float32: the losses in nats, from log-probabilities that a server or engine gives.

    A log-probability that is missing, NaN or minus infinity gives NaN, and one that is above 0 by
    rounding gives 0.

    Args: error: makes the exception for one that is further above 0.
    """
    log_p = np.array(log_probabilities, np.float64)  # None becomes NaN
    if (log_p > ROUNDING).any():
        raise error(f"gives a log-probability of {np.nanmax(log_p):g}; expected at most 0")
    losses = np.where(log_p > MINUS_INFINITY, np.maximum(-log_p, 0.0), np.nan)
    return losses.astype(np.float32)
