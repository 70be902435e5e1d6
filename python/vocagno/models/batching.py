"""Which sequences a model reads together, and in what shape.

B: rows of a batch, T: places of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = list[list[int]]
"""For each row of a batch the sequences in it, by number."""


def buckets(lengths: Sequence[int], batch_tokens: int) -> Iterator[Rows]:
    """Sequences of like length together, one a row, so that little of a batch is padding.

    A batch has at most `batch_tokens` places (or one row).
    """
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = order[start : start + max(1, batch_tokens // longest)]
        yield [[number] for number in rows]
        start += len(rows)


def packs(lengths: Sequence[int], batch_tokens: int, width: int) -> Iterator[Rows]:
    """Sequences one after the other in rows of up to `width` places: each goes into the fullest row
    that has room for it, the longest first (best fit, decreasing).

    A batch has at most `batch_tokens` places (or one row).
    """
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # places left -> rows
    for number in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        length = lengths[number]
        room = min((left for left in with_room if left >= length), default=None)
        if room is None:
            row, room = len(rows), max(width, length)
            rows.append([])
        else:
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room]
        rows[row].append(number)
        with_room.setdefault(room - length, []).append(row)
    fill = [sum(lengths[number] for number in row) for row in rows]
    for batch in buckets(fill, batch_tokens):
        yield [rows[row] for (row,) in batch]


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of rows, on the host."""

    ids_BT: NDArray[np.int64]
    piece_BT: NDArray[np.int64]
    """Which sequence of its row each place belongs to; padding is -1."""
    first_places: list[int]
    """Of each sequence, in the order of the rows: where it begins in the flattened batch."""

    @property
    def padding(self) -> int:
        """Places that hold nothing."""
        return int((self.piece_BT < 0).sum())


def lay_out(rows: Rows, sequences: Sequence[NDArray[np.int64]]) -> Layout:
    """Puts sequences at their places; rows are padded at their end."""
    width = max(sum(len(sequences[number]) for number in row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    piece = np.full((len(rows), width), -1, np.int64)
    first_places = []
    for index, row in enumerate(rows):
        place = 0
        for count, number in enumerate(row):
            stop = place + len(sequences[number])
            ids[index, place:stop], piece[index, place:stop] = sequences[number], count
            first_places.append(index * width + place)
            place = stop
    return Layout(ids, piece, first_places)
