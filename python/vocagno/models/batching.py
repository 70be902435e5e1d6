"""Batches of sequences, and their layout in rows.

B: rows of a batch, T: places of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = list[list[int]]
"""The numbers of the sequences in each row of a batch."""


def buckets(lengths: Sequence[int], batch_tokens: int) -> Iterator[Rows]:
    """Batches sequences of similar length, one per row, to reduce padding.

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
    """Packs sequences into rows of up to `width` places, longest first: each goes into the fullest
    row that has room for it (best fit decreasing).

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
    """First place of each sequence in the flattened batch, in the order of the rows."""

    @property
    def padding(self) -> int:
        """Number of padding places."""
        return int((self.piece_BT < 0).sum())


def lay_out(rows: Rows, sequences: Sequence[NDArray[np.int64]]) -> Layout:
    """Copies sequences into rows, padded at their end."""
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
