"""Cross-entropy between a teacher and a student of another vocabulary, over buckets of ids.

C: tokens of a chunk, V: the student's vocabulary, S: places for buckets at a token, E: ids in the
buckets of a chunk, those of each token and place one after the other.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.guidance.chunked_loss import Objective, kept_rows
from vocagno.models.losses import IGNORED, losses_, losses_and_entropies_

WITHOUT_ENTROPY = (
    "guidance.distill_where: surer compares the entropy of the teacher's distribution with the "
    "student's, and these candidates have none, as those of a server, vLLM and a baked stream: set "
    "guidance.distill_where: all, or score again with a model of transformers"
)
MARGIN = 0.25
"""Nats by which a teacher may be less sure than the student and still count (`surer`)."""
_LEAST = 1e-30
"""The least probability of a bucket under the student, so that its logarithm is finite."""
_LEAST_OTHER = 1e-5
"""The probability of all ids in no bucket of the teacher below which the loss is its tangent.
It is one minus a sum of float32 numbers, so below this its logarithm would be noise."""


@dataclass(frozen=True, eq=False)
class BucketTable:
    """The student's ids in each bucket. With several teachers, those of the second are numbered
    after those of the first."""

    members: Tensor
    """(ids,) int64: the ids of all buckets, one bucket after the other."""
    begins: Tensor
    """(buckets + 1,) int64: where the ids of each bucket begin in `members`, and their number."""
    places: list[int]
    """The number of columns that each teacher has among the S of a batch, in their order."""
    shares: tuple[float, ...]
    """The weight of each teacher in the mean of those with buckets at a token; the sum is 1."""
    vocabulary_size: int
    """The number of ids of the student's tokenizer; a model may have more (V)."""
    key: str
    """A hash of the table. Batches carry it, so that no other table is used with them."""

    def on(self, device: torch.device) -> "BucketTable":
        """Returns the table on a device, to which it is copied only once."""
        return replace(
            self, members=on_device(self.members, device), begins=on_device(self.begins, device)
        )

    def sizes(self, bucket: Tensor) -> Tensor:
        """Counts the ids in each of these buckets; 0 for -1."""
        number = bucket.clamp_min(0).long()
        return torch.where(bucket >= 0, self.begins[number + 1] - self.begins[number], 0)

    def before(self, bucket_BTS: Tensor) -> NDArray[np.int64]:
        """(B * T + 1,) the number of ids in the buckets of all tokens before each one, for a batch
        on the host (`GuidedBatch.members_before`)."""
        return np.append(0, self.sizes(bucket_BTS).sum(-1).flatten().cumsum(0).numpy())

    def ids(self, bucket_CS: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
        """Lists the ids of these buckets: (E,) the index into C x S of the bucket that each belongs
        to, and (E,) the ids.

        Args: count: E; if it is None, the host waits for a device that is not the CPU.
        """
        bucket_P = bucket_CS.flatten()
        sizes_P = self.sizes(bucket_P)
        place_E = torch.repeat_interleave(sizes_P, output_size=count)
        first_P = self.begins[bucket_P.clamp_min(0).long()] - (sizes_P.cumsum(0) - sizes_P)
        # `first_P` is where a bucket begins in `members` minus where it begins among the E.
        index_E = torch.arange(len(place_E), device=place_E.device)
        return place_E, self.members[first_P[place_E] + index_E]


@lru_cache(maxsize=16)
def on_device(table: Tensor, device: torch.device) -> Tensor:
    """Returns a table on a device, to which it is copied only once, because a copy waits for the
    device."""
    return table.to(device)


class BucketCrossEntropy(Objective):
    """Cross-entropy with the label and with the teacher's distribution over buckets of ids.

    The loss of a token is w ((1 - l) CE + l H(P, Q)): w is `weights_C`, l `share_C`, CE `nll_C` and
    H(P, Q) `cross_C`. P (`p_CK`, `p_C`) are the teacher's probabilities of each bucket and of all
    ids in none, Q (`q_CK`, `q_C`) the student's. l is 0 where no teacher counts; where several do,
    H(P, Q) is their mean by `BucketTable.shares`. No paper has this loss: docs/methods.md.

    The parts are that loss, CE, and H(P, Q), which is 0 where no teacher counts. H(P, Q) and not
    KL(P || Q) is reported, because sampled candidates give the first one right on average; the
    entropy of a few of them is far below the teacher's.
    """

    num_parts = 3

    def __init__(
        self,
        labels_N: Tensor,
        bucket_NS: Tensor,
        mass_NS: Tensor,
        table: BucketTable,
        weights_N: Tensor,
        share: float,
        *,
        entropy_NR: Tensor | None = None,
        members_before: Any = None,
    ) -> None:
        """Args:
        labels_N: target ids of all N = B * T tokens; -100 where nothing is predicted.
        bucket_NS, mass_NS: the teacher's buckets and their probabilities (`Targets`).
        table: the student's ids in these buckets, on the device of the labels.
        weights_N: w of each token, 0 where nothing is predicted.
        share: l where a teacher counts.
        entropy_NR: the entropy of each teacher's whole distribution, nats. If it is passed, a
            teacher counts only where it is about as sure of the next text as the student, or surer:
            where its entropy exceeds the student's by less than `MARGIN`. No probability of the
            real token decides, so none is preferred (fixed points of docs/guidance.md: a weight
            known before the outcome).
        members_before: what `BucketTable.before` gives; without it the host waits for the device.
        """
        self._labels_N, self._bucket_NS, self._mass_NS = labels_N, bucket_NS, mass_NS
        self._table, self._weights_N, self._share = table, weights_N, share
        self._entropy_NR, self._members_before = entropy_NR, members_before
        self.has_teacher_N: Tensor = torch.zeros_like(labels_N, dtype=torch.bool)
        """True for tokens at which a teacher counted, in the chunks that were computed so far."""

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """Computes losses and gradient within the matrix of logits; only the probabilities of the
        buckets take more memory."""
        labels_C = self._labels_N[place]
        is_asked_C = labels_C != IGNORED
        labels_C1 = torch.where(is_asked_C, labels_C, 0)[:, None]  # -100 is no index
        # Whole distributions are compared. Those over the buckets of the candidates and one "other"
        # are not alike: a flat student has nearly all in "other", and would look sure.
        is_sure_CR = None
        if self._entropy_NR is None:
            nll_C, sum_C1 = losses_(logits_CV, labels_C1)
        else:
            nll_C, sum_C1, entropy_C = losses_and_entropies_(logits_CV, labels_C1)
            is_sure_CR = self._entropy_NR[place] < entropy_C[:, None] + MARGIN
        # The logits are now exponentials; divided by `sum_C1` they are probabilities.
        nll_C = torch.where(is_asked_C, nll_C, 0.0)
        weights_C = self._weights_N[place]

        bucket_CS, mass_CS = self._bucket_NS[place], self._mass_NS[place].to(logits_CV)
        place_E, id_E = self._table.ids(bucket_CS, self._count(place))
        # The indices of these ids in the matrix (C, V) as one row of numbers.
        cell_E = torch.div(place_E, bucket_CS.shape[1], rounding_mode="floor")
        cell_E = cell_E * logits_CV.shape[1] + id_E
        exponential_E = logits_CV.view(-1)[cell_E]
        q_CS = torch.zeros_like(mass_CS).flatten().index_add_(0, place_E, exponential_E)
        q_CS = (q_CS.view_as(mass_CS) / sum_C1).clamp_min(_LEAST)

        # The derivative of H(P, Q) for the logit of id v is the probability of v times a slope. One
        # part of it is that of all ids (`slope_C`), another is only of members of a bucket
        # (`slopes`). They and H are sums over the teachers that count, each times its share.
        total_share_C, slope_C, cross_C = nll_C.new_zeros(3, len(nll_C))
        slopes = []
        columns = mass_CS, q_CS, bucket_CS >= 0
        by_teacher = [torch.split(column_CS, self._table.places, 1) for column_CS in columns]
        teachers = zip(*by_teacher, self._table.shares, strict=True)
        for number, (p_CK, q_CK, has_bucket_CK, teacher_share) in enumerate(teachers):
            p_CK, q_CK = (torch.where(has_bucket_CK, of_CK, 0.0) for of_CK in (p_CK, q_CK))
            p_C, exact_q_C = (1 - p_CK.sum(1)).clamp_min(0), 1 - q_CK.sum(1)
            q_C = exact_q_C.clamp_min(_LEAST_OTHER)
            counts_C = has_bucket_CK.any(1)
            if is_sure_CR is not None:
                counts_C &= is_sure_CR[:, number]
            part_C = counts_C.to(nll_C) * teacher_share
            ratio_C, ratio_CK = p_C / q_C, p_CK / q_CK.clamp_min(_LEAST)
            slopes.append(part_C[:, None] * (ratio_C[:, None] - ratio_CK))
            log_q_CK = torch.where(has_bucket_CK, q_CK, 1.0).log()
            # Where q_C is the limit, the loss is the tangent of -p log(q) there. Its slope times
            # the exact probability keeps the sum of the gradient over all logits at 0.
            of_teacher_C = -(p_CK * log_q_CK).sum(1) - p_C * q_C.log()
            of_teacher_C -= ratio_C * (exact_q_C - q_C)
            total_share_C += part_C
            slope_C += part_C * (p_CK.sum(1) + ratio_C * exact_q_C - ratio_C)
            cross_C += part_C * of_teacher_C
        has_teacher_C = total_share_C > 0
        self.has_teacher_N[place] = has_teacher_C
        share_C = self._share * has_teacher_C.to(nll_C)
        total_share_C = total_share_C.clamp_min(_LEAST)
        factor_C = 1 - share_C + share_C * slope_C / total_share_C
        of_members_C = weights_C * share_C / total_share_C / sum_C1.squeeze(1)
        slope_CS = torch.cat(slopes, 1) * of_members_C[:, None]

        logits_CV.mul_((weights_C * factor_C)[:, None] / sum_C1)
        logits_CV.view(-1).index_add_(0, cell_E, exponential_E * slope_CS.flatten()[place_E])
        logits_CV.scatter_add_(1, labels_C1, -(weights_C * (1 - share_C))[:, None])
        mixed_C = (1 - share_C) * nll_C + share_C * cross_C / total_share_C
        mixed_C = torch.where(weights_C != 0, weights_C * mixed_C, 0.0)
        return torch.stack([mixed_C, nll_C, cross_C / total_share_C], 1)

    def rows(self, place: slice) -> Tensor | None:
        return kept_rows(self._weights_N[place])

    def _count(self, place: slice) -> int | None:
        """The number of ids in the buckets of a chunk, if the host knows it."""
        before = self._members_before
        return None if before is None else int(before[place.stop] - before[place.start])
