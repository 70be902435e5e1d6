"""Methods that train on some of the tokens: all but noise (the default), or those whose loss is
furthest above the teacher's (rules that rank)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.batch import GuidedBatch, TokenCounts
from vocagno.guidance.chunked_loss import Weights
from vocagno.guidance.comparison import (
    ComparedTokens,
    DocumentPairs,
    chunk_maps,
    chunk_numbers,
    compared_groups,
    identity_map,
)
from vocagno.guidance.excess_rule import (
    choose_by_excess,
    fill_with_mean,
    quota,
    quota_of_roles,
    top,
    weights_of_chunks,
)
from vocagno.guidance.line_rule import roles_by_teacher_loss, weights_of_batch
from vocagno.guidance.loss import (
    Choice,
    LossSums,
    TokenMetrics,
    chosen_cross_entropy,
    excess_loss,
    one_pass_cross_entropy,
)
from vocagno.guidance.methods.base import Method
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED

if TYPE_CHECKING:
    from vocagno.data.rows import Row


class Selection(Method):
    """The common part of methods that choose tokens or chunks."""

    def roles(self, teacher_loss_BT: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        return roles_by_teacher_loss(teacher_loss_BT, labels_BT, self.guidance)

    @property
    def counts_kept_exactly(self) -> bool:
        return self.guidance.keeps_quota

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """Computes the losses of all tokens first, for `choose` to rank, then, if gradients are
        enabled, those of the kept tokens again."""
        return chosen_cross_entropy(
            hidden_BTH,
            head,
            batch.labels_BT,
            lambda nll_BT: self.choose(nll_BT, batch.labels_BT, batch),
            num_kept=batch.num_kept,
        )

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """Adds the mean excess loss, the teacher's mean loss, and the mean threshold."""
        if not counts.with_text:  # chunks chosen at random are not compared with a teacher
            return {}
        count = max(1.0, sums.with_teacher_loss)
        entry = {
            "mean_excess_loss": sums.excess / count,
            "mean_teacher_loss": sums.teacher / count,
        }
        if sums.scopes:
            entry["threshold"] = sums.threshold / sums.scopes
        return entry


class TokenSelection(Selection):
    """The common part of `vocagno`, `rho1`, and rules of a user's own, which have a `choose`."""

    summary = "Trained on the tokens that a rule chose by the teacher's losses, aligned by text."

    def compare(
        self,
        pairs: DocumentPairs,
        overlapping_tokens: NDArray[np.int32],
        is_predicted: NDArray[np.bool_] | None,
    ) -> ComparedTokens:
        """Compares tokens, groups, or both, if a rule of single tokens measures lines on groups."""
        if self.guidance.unit == "token" and not self.guidance.needs_group_loss:
            return super().compare(pairs, overlapping_tokens, is_predicted)
        by_group = compared_groups(pairs, is_predicted)
        if self.guidance.unit == "group":
            return by_group
        return replace(super().compare(pairs, overlapping_tokens, is_predicted), by_group=by_group)

    def most_kept(self, competing_BT: Tensor, included_BT: Tensor, batch: GuidedBatch) -> int:
        if self.guidance.keeps_quota:
            return int(quota_of_roles(competing_BT, included_BT, self.guidance))
        kept_BT = competing_BT | included_BT
        # A live teacher's losses, and so these weights, come only after the count.
        if self.guidance.ignores_excess and batch.weight is not None:
            kept_BT = kept_BT & (batch.weight > 0)
        return int(kept_BT.sum())

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch) -> Choice:
        return choose_by_excess(nll_BT, labels_BT, batch, self.guidance)

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """Computes each logit once if a weight needs no student loss of other units: under the
        default rule, whose weights the batch brings, and under a fixed threshold. Otherwise
        `Selection` does it in two passes, with `choose` between them; without gradients the first
        is all."""
        guidance = self.guidance
        if not (guidance.takes_one_pass and torch.is_grad_enabled()):
            return super().cross_entropy(hidden_BTH, head, batch)
        labels_BT, ends = batch.labels_BT, None
        token_weights: Weights
        if guidance.ignores_excess:
            token_weights = weights_of_batch(batch, labels_BT).flatten()
        else:
            token_weights, ends = weights_of_chunks(labels_BT, batch, guidance)
        threshold = guidance.threshold_without_quota
        return one_pass_cross_entropy(
            hidden_BTH, head, labels_BT, token_weights, ends, threshold=threshold
        )


class VocAgno(TokenSelection):
    """The method of the paper, and the default (`method: vocagno`).

    It adds nothing to `TokenSelection`: the rule of lines is `line_rule.weights_of_lines`, which
    the collator calls; Eq. 4 of arXiv 2503.19123 is `excess_rule.choose_by_excess`.
    """


class Rho1(TokenSelection):
    """Rho-1, guidance by a reference model with the student's vocabulary (`method: rho1`; arXiv
    2404.07965)."""

    summary = "Trained on the tokens that a reference model with the same vocabulary chose (Rho-1)."

    def overlapping_tokens(self, pairs: DocumentPairs) -> NDArray[np.int32]:
        """Maps token to token by counting.
        Raises: GuidanceError if the teacher has other tokens."""
        return identity_map(pairs)


_SALT = 0x6368756E6B
"""The bytes of "chunk", so that ranks are other random numbers than the order of the rows."""


class Chunk(Selection):
    """Guidance by chunks of equal numbers of tokens (`method: chunk`), which section 6.1 of arXiv
    2503.19123 compares with alignment by text. C: chunks of a row."""

    summary = "Trained on chunks of each row, chosen by the teacher's losses or at random."

    @property
    def is_random(self) -> bool:
        """True if chunks are chosen at random."""
        return self.guidance.selection == "random"

    @property
    def needs_our_loop(self) -> bool:
        """True for random ranks: they depend on a sample's number, which only our loop knows."""
        return self.is_random

    def mapping(
        self, pairs: DocumentPairs, overlapping_tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Maps each token of the student's chunk i of a row to the teacher's chunk i."""
        return chunk_maps(pairs, self.guidance.chunks)

    def columns(self, rows: Sequence["Row"]) -> dict[str, NDArray[np.int64]]:
        """The number of each token's chunk."""
        numbers = [chunk_numbers(len(row.ids), self.guidance.chunks) for row in rows]
        return {"chunks": np.concatenate(numbers)}

    def most_kept(self, competing_BT: Tensor, included_BT: Tensor, batch: GuidedBatch) -> int:
        """Counts the tokens of the largest chunks that may be chosen. Which ones will be is decided
        by the student's losses."""
        config = self.guidance
        assert config.top_fraction is not None
        kept = 0
        assert batch.chunks is not None
        columns = batch.labels_BT, batch.chunks, batch.teacher_loss
        for labels, chunks, losses in zip(*columns, strict=True):
            valid = (labels != IGNORED) & (chunks >= 0)
            count = torch.bincount(chunks[valid], minlength=config.chunks)
            scored = torch.bincount(chunks[valid & losses.isfinite()], minlength=config.chunks) > 0
            # As in `choose`: a chunk competes as a whole, whatever the roles of its tokens are.
            competes = count > 0 if self.is_random or config.unmapped == "mean" else scored
            sizes = count[competes].sort(descending=True).values
            num_kept = quota(torch.tensor(len(sizes)), config.top_fraction)
            kept += int(sizes[: int(num_kept)].sum())
            if config.unmapped == "include":
                kept += int(count[~competes].sum())
        return kept

    def for_samples(self, seed: int, samples: Sequence[int]) -> dict[str, Tensor]:
        """Draws random ranks of chunks. They depend only on the seed and on the number of each
        sample in the run, so that neither restarts nor the number of processes nor the size of a
        micro-batch change the choice."""
        if not self.is_random:
            return {}
        rows = [
            np.random.Generator(np.random.PCG64([seed, _SALT, sample])).random(
                self.guidance.chunks, np.float32
            )
            for sample in samples
        ]
        return {"chunk_rank": torch.from_numpy(np.stack(rows))}

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch) -> Choice:
        """Keeps all tokens of the chosen chunks.

        The excess loss of a chunk, L_S - L_T of Eq. 4 (arXiv 2503.19123), is the student's mean
        loss on it (`mean_BC`) less the teacher's loss of it (`losses_BC`). The
        `ceil(top_fraction * n)` of the n competing chunks of a row with the largest are chosen,
        earlier ones first among equals. A chunk without a teacher loss goes by `unmapped`. The host
        does not wait.
        """
        config, chunks_BT, rank_BC = self.guidance, batch.chunks, batch.chunk_rank
        assert config.top_fraction is not None  # of a chunk's configuration
        if chunks_BT is None or (rank_BC is None) is self.is_random:
            raise ValueError(
                "guidance.method: chunk needs the chunks of the tokens, and ranks if the choice is "
                "random"
            )
        valid_BT = (labels_BT != IGNORED) & (chunks_BT >= 0)
        place_BT = torch.where(valid_BT, chunks_BT, config.chunks)  # the rest goes into one more
        zeros_BC = torch.zeros(len(labels_BT), config.chunks + 1, device=labels_BT.device)
        count_BC = zeros_BC.scatter_add(1, place_BT, valid_BT.float())[:, :-1]
        has_tokens_BC = competing_BC = count_BC > 0
        if rank_BC is None:
            nll_BT = nll_BT.detach().float()
            mean_BC = zeros_BC.scatter_add(1, place_BT, nll_BT)[:, :-1] / count_BC.clamp_min(1)
            # All tokens of a chunk have its loss, so whichever is written last is right.
            losses_BC = torch.full_like(zeros_BC, torch.nan)
            losses_BC = losses_BC.scatter(1, place_BT, batch.teacher_loss)[:, :-1]
            if config.unmapped == "mean":
                losses_BC = fill_with_mean(losses_BC, has_tokens_BC, batch.teacher_sums)
            else:
                competing_BC = has_tokens_BC & losses_BC.isfinite()
            rank_BC = excess_loss(mean_BC, losses_BC)
        chosen_BC = top(rank_BC, competing_BC, config.top_fraction)
        if config.unmapped == "include":
            chosen_BC = chosen_BC | (has_tokens_BC & ~competing_BC)
        # Tokens that are not predicted are in the additional chunk, which is never chosen.
        none_B1 = torch.zeros_like(chosen_BC[:, :1])
        weights_BT = torch.cat([chosen_BC, none_B1], 1).gather(1, place_BT).float()
        return Choice(weights_BT, None)
