"""Documents as runs of tokens that a teacher can read at once."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A run of one document's tokens that the teacher reads at once."""

    document: int
    start: int
    stop: int
    score_from: int
    """First token of the document whose loss is taken from this window."""


def windows(document: int, num_tokens: int, capacity: int, min_context: int) -> Iterator[Window]:
    """Cuts a document into overlapping windows of at most `capacity` tokens.

    Every token is scored once, and after the first window with at least `min_context` tokens of
    its document before it.
    """
    if not 0 < min_context < capacity:
        raise ValueError(f"min_context must be in [1, {capacity}), got {min_context}")
    start = score_from = 0
    while score_from < num_tokens:
        stop = min(start + capacity, num_tokens)
        yield Window(document, start, stop, score_from)
        start, score_from = stop - min_context, stop
