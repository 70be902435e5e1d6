"""Methods that train on some of the tokens: those whose loss is furthest above the teacher's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.loss import TokenMetrics, chosen_cross_entropy, thresholded_cross_entropy
from vocagno.guidance.mappings import (
    ComparedTokens,
    Pieces,
    chunk_maps,
    chunk_numbers,
    compared_groups,
    identity_map,
)
from vocagno.guidance.methods.base import Method
from vocagno.guidance.rules import (
    Choice,
    choose,
    excess_loss,
    fill_with_mean,
    kept_count,
    quota_of_roles,
    roles,
    top,
)
from vocagno.guidance.tensors import GuidanceTensors, LossSums, StudentSide, TokenCounts
from vocagno.models.losses import IGNORED

if TYPE_CHECKING:
    from vocagno.data.rows import Row


class Selection(Method):
    """The common part of methods that rank tokens or chunks."""

    def roles(self, teacher_loss_BT: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        """As `Method.roles`."""
        return roles(teacher_loss_BT, labels_BT, self.guidance)

    @property
    def knows_kept(self) -> bool:
        """As `Method.knows_kept`."""
        return self.guidance.keeps_quota

    def cross_entropy(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics]:
        """As `Method.cross_entropy`: the losses of all tokens first, which `choose` ranks."""
        return chosen_cross_entropy(
            student,
            lambda nll_BT: self.choose(nll_BT, student.labels_BT, teacher),
            num_kept=teacher.num_kept,
        )

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """As `Method.log`: mean excess and teacher loss, and the threshold."""
        if not counts.with_text:  # chosen at random
            return {}
        ranked = max(1.0, sums.ranked)
        entry = {
            "mean_excess_loss": sums.excess / ranked,
            "mean_teacher_loss": sums.teacher / ranked,
        }
        if sums.scopes:
            entry["threshold"] = sums.threshold / sums.scopes
        return entry


class TokenSelection(Selection):
    """The common part of `vocagno` and `rho1`."""

    def most_kept(
        self, competing_BT: Tensor, included_BT: Tensor, tensors: dict[str, Tensor]
    ) -> int:
        """As `Method.most_kept`."""
        if self.guidance.keeps_quota:
            return int(quota_of_roles(competing_BT, included_BT, self.guidance))
        return int(competing_BT.sum() + included_BT.sum())

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: GuidanceTensors) -> Choice:
        """As `Method.choose`."""
        return choose(nll_BT, labels_BT, teacher, self.guidance)

    def cross_entropy(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics]:
        """As `Method.cross_entropy`; in one pass over the logits if the threshold is known."""
        if not (self.guidance.has_fixed_threshold and torch.is_grad_enabled()):
            return super().cross_entropy(student, teacher)
        return thresholded_cross_entropy(student, teacher, self.guidance)


class VocAgno(TokenSelection):
    """`method: vocagno` (arXiv 2503.19123, Eq. 2 to 4)."""

    summary = "Trained on the tokens whose loss is furthest above the teacher's, aligned by text."
    can_show_text = True

    def compared(
        self,
        pieces: Pieces,
        meeting: NDArray[np.int32],
        is_predicted: NDArray[np.bool_] | None,
    ) -> ComparedTokens:
        """As `Method.compared`; for `unit: group`, of the groups."""
        if self.guidance.unit == "token" and not self.guidance.needs_group_loss:
            return super().compared(pieces, meeting, is_predicted)
        by_group = compared_groups(
            pieces.student,
            pieces.teacher,
            pieces.teacher_nll,
            is_predicted,
            pieces.ends_row(),
            **pieces.cu_seqlens,
        )
        if self.guidance.unit == "group":
            return by_group
        return replace(super().compared(pieces, meeting, is_predicted), by_group=by_group)


class Rho1(TokenSelection):
    """`method: rho1` (arXiv 2404.07965)."""

    summary = "Trained on the tokens whose loss is furthest above a reference model's (Rho-1)."

    def meeting(self, pieces: Pieces) -> NDArray[np.int32]:
        """As `Method.meeting`: token to token, by counting.

        Raises: GuidanceError if the teacher's tokens are others.
        """
        return identity_map(
            pieces.student,
            pieces.teacher,
            pieces.student_cu,
            pieces.teacher_cu,
            pieces.numbers,
            pieces.begins_row(),
        )


_SALT = 0x6368756E6B  # "chunk": other numbers than those of the order of the rows


def chunk_weights(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    chunks_BT: Tensor,
    config: GuidanceConfig,
    rank_BC: Tensor | None = None,
    teacher_sums_B2: Tensor | None = None,
) -> Tensor:
    """1.0 for all tokens of the chosen chunks, 0.0 for the others.

    Args:
        student_nll_BT: the student's loss on each token, float32 nats.
        teacher_loss_BT: of each token the aggregated teacher loss of its chunk, NaN for none.
        labels_BT: target ids; tokens of -100 neither train nor count in the mean of their chunk.
        chunks_BT: the number of each token's chunk, -1 at padding.
        config: chunks, top_fraction, unmapped (a chunk without a teacher loss goes by it).
        rank_BC: ranks chunks instead of their excess loss (`random_ranks`).
        teacher_sums_B2: as `token_weights`.
    Returns: (B, T) float32 without gradient, on the same device; the host does not wait.

    The excess loss of a chunk is the student's mean loss on it less the teacher's loss of it; the
    `ceil(top_fraction * n)` of the n competing chunks of a row with the largest are chosen, earlier
    ones first among equals.
    """
    assert config.top_fraction is not None  # of a chunk's configuration
    valid_BT = (labels_BT != IGNORED) & (chunks_BT >= 0)
    place_BT = torch.where(valid_BT, chunks_BT, config.chunks)  # the rest goes into one more
    zeros_BC = torch.zeros(len(labels_BT), config.chunks + 1, device=labels_BT.device)
    count_BC = zeros_BC.scatter_add(1, place_BT, valid_BT.float())[:, :-1]
    has_tokens_BC = count_BC > 0
    if rank_BC is None:
        nll_BT = student_nll_BT.detach().float()
        mean_BC = zeros_BC.scatter_add(1, place_BT, nll_BT)[:, :-1] / count_BC.clamp_min(1)
        # All tokens of a chunk have its loss, so whichever is written last is right.
        teacher_BC = torch.full_like(zeros_BC, torch.nan).scatter(1, place_BT, teacher_loss_BT)
        teacher_BC = teacher_BC[:, :-1]
        has_loss_BC = has_tokens_BC & teacher_BC.isfinite()
        competing_BC, included_BC = has_loss_BC, has_tokens_BC & ~has_loss_BC
        if config.unmapped == "mean":
            competing_BC = has_tokens_BC
            teacher_BC = fill_with_mean(teacher_BC, competing_BC, teacher_sums_B2)
        rank_BC = excess_loss(mean_BC, teacher_BC)
    else:
        competing_BC, included_BC = has_tokens_BC, torch.zeros_like(has_tokens_BC)
    chosen_BC = top(rank_BC, competing_BC, config.top_fraction)
    if config.unmapped == "include":
        chosen_BC = chosen_BC | included_BC
    none_B1 = torch.zeros_like(chosen_BC[:, :1])
    return torch.cat([chosen_BC, none_B1], 1).gather(1, place_BT).float()


def most_kept(
    labels_BT: Tensor, chunks_BT: Tensor, teacher_loss_BT: Tensor, config: GuidanceConfig
) -> int:
    """Tokens that `chunk_weights` can keep at most, known on the host before the forward pass: if
    the largest chunks are chosen."""
    assert config.top_fraction is not None
    kept = 0
    for labels, chunks, losses in zip(labels_BT, chunks_BT, teacher_loss_BT, strict=True):
        valid = (labels != IGNORED) & (chunks >= 0)
        count = torch.bincount(chunks[valid], minlength=config.chunks)
        scored = torch.bincount(chunks[valid & losses.isfinite()], minlength=config.chunks) > 0
        all_compete = config.selection == "random" or config.unmapped == "mean"
        competes = count > 0 if all_compete else scored
        sizes = count[competes].sort(descending=True).values
        kept += int(sizes[: int(kept_count(torch.tensor(len(sizes)), config.top_fraction))].sum())
        if config.unmapped == "include":
            kept += int(count[~competes].sum())
    return kept


def random_ranks(seed: int, samples: Sequence[int], chunks: int) -> Tensor:
    """(B, chunks) float32 that rank the chunks of rows at random: a function of the seed and of the
    number of each sample in the run, so that neither restarts nor the number of processes, nor how
    a step is cut up, change the choice."""
    rows = [
        np.random.Generator(np.random.PCG64([seed, _SALT, sample])).random(chunks, np.float32)
        for sample in samples
    ]
    return torch.from_numpy(np.stack(rows))


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

    def mapping(self, pieces: Pieces, meeting: NDArray[np.int32]) -> NDArray[np.int32]:
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

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: GuidanceTensors) -> Choice:
        """As `Method.choose`."""
        chunks_BT, rank_BC = teacher.chunks, teacher.chunk_rank
        if chunks_BT is None or (rank_BC is None) is self.is_random:
            raise ValueError(
                "guidance.method: chunk needs the chunks of the tokens, and ranks if the choice is "
                "random"
            )
        given = nll_BT, teacher.teacher_loss, labels_BT, chunks_BT
        more = self.guidance, rank_BC, teacher.teacher_sums
        return Choice(chunk_weights(*given, *more), None)
