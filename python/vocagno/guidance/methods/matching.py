"""Methods that train on all tokens, and towards what a store says of the teacher: its likelihood of
each group (`alm`), or its most likely tokens (`distill`). The vocabularies may differ.

B: rows, T: tokens of a row, N = B * T, C: tokens of a chunk.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.bucket_loss import WITHOUT_ENTROPY, BucketCrossEntropy
from vocagno.guidance.chunked_loss import chunked_loss
from vocagno.guidance.loss import Choice, TokenMetrics, one_pass_cross_entropy
from vocagno.guidance.mappings import ComparedTokens, Pieces, compared_groups, group_ends
from vocagno.guidance.methods.base import StudentOutput, log_of_distance, sums_of
from vocagno.guidance.methods.selection import TokenSelection
from vocagno.guidance.rules import fixed_weights, group_means, required
from vocagno.guidance.tensors import GuidanceTensors, LossSums, StudentSide, TokenCounts
from vocagno.models.losses import IGNORED


class Matching(TokenSelection):
    """The common part of `alm` and `distill`: groups, and lines that are noise to the teacher."""

    @property
    def share(self) -> float:
        """The teacher's, in the loss of a token."""
        share = self.guidance.weight_of_distance
        assert share is not None
        return share

    def compared(
        self, pieces: Pieces, meeting: NDArray[np.int32], is_predicted: NDArray[np.bool_] | None
    ) -> ComparedTokens:
        """Groups."""
        return compared_groups(pieces, is_predicted)

    def kept(self, labels_BT: Tensor, teacher: GuidanceTensors) -> Tensor:
        """(B, T) float32: 0.0 for noise and where nothing is predicted, else 1.0."""
        if self.guidance.window is not None:
            return fixed_weights(teacher, labels_BT)
        return (labels_BT != IGNORED).float()

    def loss(self, student: StudentSide, teacher: GuidanceTensors) -> StudentOutput:
        loss, metrics = self.cross_entropy(student, teacher)
        return self._output(loss, metrics, student, teacher)

    def _output(
        self,
        loss: Tensor,
        metrics: TokenMetrics,
        student: StudentSide,
        teacher: GuidanceTensors,
        **more: Tensor,
    ) -> StudentOutput:
        """What is logged is the plain loss of the tokens that train, and the teacher's there: on
        lines that are dropped as noise neither model knows what follows. Args: more: other sums."""
        plain = (metrics.nll_BT * metrics.weights_BT).sum()
        teacher_loss_BT = teacher.teacher_loss.masked_fill(metrics.weights_BT == 0, torch.nan)
        sums = sums_of(plain, metrics, student.labels_BT, teacher_loss_BT)._replace(**more)
        return StudentOutput(loss, sums.tensor(), metrics.nll_BT, metrics.weights_BT)


class LikelihoodMatching(Matching):
    """`method: alm`: the limit of a large temperature of arXiv 2503.20083, on groups.

    Its gradient is that of the cross-entropy of a group, times 1 - L_T / L_S: the teacher's loss
    and the student's, summed over the group. So it is a weight for each token, which is negative
    where the student is surer than the teacher, and 0 where both are as sure.
    """

    summary = "Trained on every token, and towards the teacher's likelihood of each piece of text."

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: GuidanceTensors) -> Choice:
        """Weights, which may be negative: 1 - l + l clip(1 - L_T / L_S, -1, 1), and 1 for a token
        without a group."""
        groups_BT = required(teacher.groups, "method: alm needs the groups of the tokens")
        weights_BT = self._weights(nll_BT.detach(), teacher.teacher_loss, groups_BT)
        weights_BT = weights_BT * self.kept(labels_BT, teacher)
        return Choice(weights_BT, nll_BT.new_full((len(nll_BT),), -torch.inf))

    def cross_entropy(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics]:
        """In one pass over the logits. A chunk cuts no group, whose losses are added up."""
        groups_BT = required(teacher.groups, "method: alm needs the groups of the tokens")
        ends = group_ends(groups_BT.cpu()) if teacher.chunk_ends is None else teacher.chunk_ends
        kept_N = self.kept(student.labels_BT, teacher).flatten()
        loss_N, groups_N = teacher.teacher_loss.flatten(), groups_BT.flatten()

        def weigh(nll_C: Tensor, place: slice) -> Tensor:
            given = (one[None] for one in (nll_C, loss_N[place], groups_N[place]))
            return self._weights(*given)[0] * kept_N[place]

        total, metrics = one_pass_cross_entropy(student, weigh, ends, threshold=-torch.inf)
        return total, TokenMetrics(metrics.nll_BT, kept_N.view(metrics.nll_BT.shape))

    def _weights(self, nll_BT: Tensor, teacher_loss_BT: Tensor, groups_BT: Tensor) -> Tensor:
        ratio_BT = teacher_loss_BT / group_means(nll_BT, groups_BT)
        slope_BT = (1 - ratio_BT).clamp(-1, 1)  # a student's loss of 0: infinitely surer
        weights_BT = 1 - self.share + self.share * slope_BT
        is_told_BT = (groups_BT >= 0) & teacher_loss_BT.isfinite()
        return torch.where(is_told_BT & ~slope_BT.isnan(), weights_BT, 1.0)


class Distill(Matching):
    """`method: distill`: cross-entropy with the teacher's distribution over buckets of ids."""

    summary = "Trained on every token, and towards the teacher's most likely tokens."

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, teacher: GuidanceTensors) -> Choice:
        """All tokens but noise: their share in the loss is another matter."""
        kept_BT = self.kept(labels_BT, teacher)
        return Choice(kept_BT, nll_BT.new_full((len(nll_BT),), -torch.inf))

    def cross_entropy(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics]:
        """In one pass over the logits."""
        return self._distilled(student, teacher)[:2]

    def loss(self, student: StudentSide, teacher: GuidanceTensors) -> StudentOutput:
        total, metrics, (cross_entropy, pairs) = self._distilled(student, teacher)
        return self._output(total, metrics, student, teacher, distance=cross_entropy, pairs=pairs)

    def _distilled(
        self, student: StudentSide, teacher: GuidanceTensors
    ) -> tuple[Tensor, TokenMetrics, tuple[Tensor, Tensor]]:
        """The loss, its metrics, and the sum of H(P, Q) with the number of tokens that it is of."""
        labels_BT = student.labels_BT
        what = "method: distill needs the candidates of the tokens, and their buckets"
        bucket_NS = required(teacher.candidates, what).flatten(0, -2)
        mass_NS = required(teacher.candidate_mass, what).flatten(0, -2)
        table = required(teacher.buckets, what)
        if teacher.bucket_key not in (None, table.key):
            raise ValueError(
                "candidates: of other buckets than those of the loss; give both the same buckets"
            )
        if (size := student.head.vocabulary_size) < table.vocabulary_size:
            raise ValueError(
                f"buckets: of {table.vocabulary_size:,} ids of the student's tokenizer, but the "
                f"head has {size:,}: they do not belong together"
            )
        entropy_NR = None
        if self.guidance.needs_entropy:
            if teacher.candidate_entropy is None:
                raise ValueError(WITHOUT_ENTROPY)
            entropy_NR = teacher.candidate_entropy.flatten(0, -2)
        kept_N = self.kept(labels_BT, teacher).flatten()
        objective = BucketCrossEntropy(
            labels_BT.flatten(),
            bucket_NS,
            mass_NS,
            table.on(labels_BT.device),
            kept_N,
            self.share,
            entropy_NR=entropy_NR,
            members_before=teacher.members_before,
        )
        total, parts_N3 = chunked_loss(student.flat_hidden, student.head, objective)
        nll_BT = parts_N3[:, 1].view(labels_BT.shape)
        metrics = TokenMetrics(nll_BT, kept_N.view(labels_BT.shape))
        is_used_N = objective.is_told_N & (kept_N > 0)
        cross_entropy = torch.where(is_used_N, parts_N3[:, 2], 0.0).sum()
        return total, metrics, (cross_entropy, is_used_N.sum())

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """Also the mean cross-entropy of the teacher's distribution over buckets under the
        student's, and the share of tokens that have one."""
        of_pairs = log_of_distance(sums, counts)
        of_pairs["mean_cross_entropy"] = of_pairs.pop("mean_distance")
        return super().log(sums, counts) | of_pairs
