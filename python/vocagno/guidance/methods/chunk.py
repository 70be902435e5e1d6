"""Chunks instead of tokens: equal parts of a row, each side cut into as many (Table 2 of arXiv
2503.19123)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.chunk_weights import chunk_weights, most_kept, random_ranks
from vocagno.guidance.criteria import TeacherSide
from vocagno.guidance.mappings import chunk_maps, chunk_numbers
from vocagno.guidance.methods.selection import Selection
from vocagno.guidance.weights import Choice

if TYPE_CHECKING:
    from vocagno.data.rows import Row
    from vocagno.guidance.pieces import Pieces


class Chunk(Selection):
    """`method: chunk`."""

    summary = "Trained on the chunks whose loss is furthest above the teacher's."

    @property
    def is_random(self) -> bool:
        """Whether chunks are chosen at random."""
        return self.guidance.selection == "random"

    @property
    def needs_our_loop(self) -> bool:
        """As `Method.needs_our_loop`: random ranks are a function of the sample's number."""
        return self.is_random

    def mapping(self, pieces: "Pieces", meeting: NDArray[np.int32]) -> NDArray[np.int32]:
        """As `Method.mapping`: chunk i to chunk i."""
        return chunk_maps(pieces.row_sizes, pieces.teacher_rows(), self.guidance.chunks)

    def columns(self, rows: Sequence["Row"]) -> dict[str, NDArray[np.int64]]:
        """As `Method.columns`: the number of each token's chunk."""
        numbers = [chunk_numbers(len(row.ids), self.guidance.chunks) for row in rows]
        return {"chunks": np.concatenate(numbers)}

    def most_kept(
        self, competing_BT: Tensor, included_BT: Tensor, tensors: dict[str, Tensor]
    ) -> int:
        """As `Method.most_kept`: if the largest chunks are chosen."""
        given = tensors["labels"], tensors["chunks"], tensors["teacher_loss"]
        return most_kept(*given, self.guidance)

    def for_samples(self, seed: int, samples: Sequence[int]) -> dict[str, Tensor]:
        """As `Method.for_samples`: random ranks."""
        if not self.is_random:
            return {}
        return {"chunk_rank": random_ranks(seed, samples, self.guidance.chunks)}

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: TeacherSide) -> Choice:
        """As `Method.choose`."""
        chunks_BT, rank_BC = teacher.criteria.chunks_BT, teacher.criteria.rank_BC
        if chunks_BT is None or (rank_BC is None) is self.is_random:
            raise ValueError(
                "guidance.method: chunk needs the chunks of the tokens, and ranks if the choice is "
                "random"
            )
        given = nll_BT, teacher.teacher_loss_BT, labels_BT, chunks_BT
        more = self.guidance, rank_BC, teacher.criteria.teacher_sums_B2
        return Choice(chunk_weights(*given, *more), None)
