"""Methods that train on all tokens, and towards what a store says of the teacher: its likelihood of
each group (`alm`), or its most likely tokens (`distill`). The vocabularies may differ.

B: rows, T: tokens of a row, N = B * T, C: tokens of a chunk.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.batch import GuidedBatch, TokenCounts
from vocagno.guidance.bucket_loss import WITHOUT_ENTROPY, BucketCrossEntropy
from vocagno.guidance.chunked_loss import chunked_loss
from vocagno.guidance.comparison import ComparedTokens, DocumentPairs, compared_groups, safe_cuts
from vocagno.guidance.excess_rule import group_means
from vocagno.guidance.line_rule import require_value, weights_of_batch
from vocagno.guidance.loss import Choice, LossSums, TokenMetrics, one_pass_cross_entropy
from vocagno.guidance.methods.base import StudentOutput, log_of_distance, sums_of
from vocagno.guidance.methods.selection import TokenSelection
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED


class Matching(TokenSelection):
    """The common part of `alm` and `distill`: groups, and lines that are noise to the teacher."""

    @property
    def share(self) -> float:
        """The share l of the teacher's part in a token's loss; the rest is cross-entropy."""
        share = self.guidance.weight_of_distance
        assert share is not None
        return share

    def compare(
        self,
        pairs: DocumentPairs,
        overlapping_tokens: NDArray[np.int32],
        is_predicted: NDArray[np.bool_] | None,
    ) -> ComparedTokens:
        """Compares groups, whatever the unit of the rule of lines is."""
        return compared_groups(pairs, is_predicted)

    def loss_mask(self, labels_BT: Tensor, batch: GuidedBatch) -> Tensor:
        """(B, T) float32: 0.0 for noise and where nothing is predicted, else 1.0."""
        if self.guidance.has_line_rule:
            return weights_of_batch(batch, labels_BT)
        return (labels_BT != IGNORED).float()

    def loss(self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch) -> StudentOutput:
        return self._output(*self.cross_entropy(hidden_BTH, head, batch), batch)

    def _output(
        self, loss: Tensor, metrics: TokenMetrics, batch: GuidedBatch, **other_sums: Tensor
    ) -> StudentOutput:
        """The loss, with the sums that are logged.

        Logged are the plain loss of the tokens that train, and the teacher's loss on them. On lines
        that are dropped as noise neither model knows what follows, so they would only add noise.

        Args: other_sums: fields of `LossSums` that the method adds.
        """
        plain = (metrics.nll_BT * metrics.weights_BT).sum()
        teacher_loss_BT = batch.teacher_loss.masked_fill(metrics.weights_BT == 0, torch.nan)
        sums = sums_of(plain, metrics, batch.labels_BT, teacher_loss_BT)._replace(**other_sums)
        return StudentOutput(loss, sums.tensor(), metrics.nll_BT, metrics.weights_BT)


class LikelihoodMatching(Matching):
    """Approximate likelihood matching on groups (`method: alm`), with the gradient that the loss of
    arXiv 2503.20083 has in the limit of a large temperature.

    Its gradient is that of the cross-entropy of a group, times 1 - L_T / L_S: the teacher's loss
    and the student's, summed over the group. So it is a weight for each token, which is negative
    where the student is surer than the teacher, and 0 where both are as sure. `ratio_BT` is
    L_T / L_S, of means: both sums are divided by the same number of tokens.
    """

    summary = "Trained on every token, and towards the teacher's likelihood of each piece of text."

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch) -> Choice:
        """Gives each token the weight 1 - l + l clip(1 - L_T / L_S, -1, 1), which may be negative;
        1 for a token without a group."""
        groups_BT = require_value(batch.groups, "method: alm needs the groups of the tokens")
        weights_BT = self._weights(nll_BT.detach(), batch.teacher_loss, groups_BT)
        weights_BT = weights_BT * self.loss_mask(labels_BT, batch)
        return Choice(weights_BT, nll_BT.new_full((len(nll_BT),), -torch.inf))

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """Computes the loss in one pass over the logits. No chunk cuts a group, because a weight
        needs the losses of the whole group."""
        groups_BT = require_value(batch.groups, "method: alm needs the groups of the tokens")
        ends = safe_cuts(groups_BT.cpu()) if batch.chunk_ends is None else batch.chunk_ends
        kept_N = self.loss_mask(batch.labels_BT, batch).flatten()
        loss_N, groups_N = batch.teacher_loss.flatten(), groups_BT.flatten()

        def weigh(nll_C: Tensor, place: slice) -> Tensor:
            weights_1C = self._weights(nll_C[None], loss_N[None, place], groups_N[None, place])
            return weights_1C[0] * kept_N[place]

        total, metrics = one_pass_cross_entropy(
            hidden_BTH, head, batch.labels_BT, weigh, ends, threshold=-torch.inf
        )
        return total, TokenMetrics(metrics.nll_BT, kept_N.view(metrics.nll_BT.shape))

    def _weights(self, nll_BT: Tensor, teacher_loss_BT: Tensor, groups_BT: Tensor) -> Tensor:
        """(B, T): the weight of each token before noise is dropped."""
        ratio_BT = teacher_loss_BT / group_means(nll_BT, groups_BT)
        slope_BT = (1 - ratio_BT).clamp(-1, 1)  # a student's loss of 0: infinitely surer
        weights_BT = 1 - self.share + self.share * slope_BT
        is_compared_BT = (groups_BT >= 0) & teacher_loss_BT.isfinite()
        return torch.where(is_compared_BT & ~slope_BT.isnan(), weights_BT, 1.0)


class Distill(Matching):
    """Distillation across vocabularies (`method: distill`): the cross-entropy H(P, Q) of the
    student's distribution with the teacher's over buckets of ids (`BucketCrossEntropy`)."""

    summary = "Trained on every token, and towards the teacher's most likely tokens."

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch) -> Choice:
        """Keeps all tokens but noise. How much each learns from the teacher is no matter of choice:
        the loss decides it by the share and by `distill_where`."""
        kept_BT = self.loss_mask(labels_BT, batch)
        return Choice(kept_BT, nll_BT.new_full((len(nll_BT),), -torch.inf))

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """Computes the loss in one pass over the logits."""
        return self._distill(hidden_BTH, head, batch)[:2]

    def loss(self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch) -> StudentOutput:
        total, metrics, (cross_entropy, pairs) = self._distill(hidden_BTH, head, batch)
        return self._output(total, metrics, batch, distance=cross_entropy, pairs=pairs)

    def _distill(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics, tuple[Tensor, Tensor]]:
        """The loss, its metrics, and the sum of H(P, Q) with the number of tokens that have one."""
        labels_BT = batch.labels_BT
        need = "method: distill needs the candidates of the tokens, and their buckets"
        bucket_NS = require_value(batch.candidates, need).flatten(0, -2)
        mass_NS = require_value(batch.candidate_mass, need).flatten(0, -2)
        table = require_value(batch.buckets, need)
        if batch.bucket_key not in (None, table.key):
            raise ValueError(
                "candidates: the batch was made with other buckets than those of the loss; give "
                "both the same"
            )
        if (size := head.vocabulary_size) < table.vocabulary_size:
            raise ValueError(
                f"buckets: the student's tokenizer has {table.vocabulary_size:,} ids, but its head "
                f"has {size:,}; make the buckets with the tokenizer of this model"
            )
        entropy_NR = None
        if self.guidance.needs_entropy:
            if batch.candidate_entropy is None:
                raise ValueError(WITHOUT_ENTROPY)
            entropy_NR = batch.candidate_entropy.flatten(0, -2)
        kept_N = self.loss_mask(labels_BT, batch).flatten()
        objective = BucketCrossEntropy(
            labels_BT.flatten(),
            bucket_NS,
            mass_NS,
            table.on(labels_BT.device),
            kept_N,
            self.share,
            entropy_NR=entropy_NR,
            members_before=batch.members_before,
        )
        total, parts_N3 = chunked_loss(hidden_BTH.flatten(0, -2), head, objective)
        # Parts: the mixed loss, the loss of the label, and H(P, Q).
        nll_BT = parts_N3[:, 1].view(labels_BT.shape)
        metrics = TokenMetrics(nll_BT, kept_N.view(labels_BT.shape))
        is_used_N = objective.has_teacher_N & (kept_N > 0)
        cross_entropy = torch.where(is_used_N, parts_N3[:, 2], 0.0).sum()
        return total, metrics, (cross_entropy, is_used_N.sum())

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """Adds the mean cross-entropy of the teacher's distribution over buckets under the
        student's, and the share of tokens that have one."""
        of_pairs = log_of_distance(sums, counts)
        of_pairs["mean_cross_entropy"] = of_pairs.pop("mean_distance")
        return super().log(sums, counts) | of_pairs
