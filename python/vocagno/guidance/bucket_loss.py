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
"""Least probability of a bucket under the student, so that its logarithm is finite."""
_LEAST_OTHER = 1e-5
"""Probability of all ids in no bucket of the teacher below which the loss is its tangent.
It is one minus a sum of float32 numbers, so below this its logarithm would be noise."""


@dataclass(frozen=True, eq=False)
class BucketTable:
    """The student's ids in each bucket, of one teacher or several, whose buckets are counted
    through."""

    members: Tensor
    """(ids,) int64: the ids of the buckets, one after the other."""
    begins: Tensor
    """(buckets + 1,) int64: where those of each bucket begin."""
    places: list[int]
    """S of each teacher, in the order of the columns of the candidates."""
    shares: tuple[float, ...]
    """How much each teacher counts, among those that have buckets at a token; the sum is 1."""
    vocabulary_size: int
    """V, of the tokenizer; a model may have more ids."""
    key: str
    """A hash of all of it, which batches carry, so that no other table is used with them."""

    def on(self, device: torch.device) -> "BucketTable":
        """The same on a device, copied once."""
        return replace(
            self, members=on_device(self.members, device), begins=on_device(self.begins, device)
        )

    def sizes(self, bucket: Tensor) -> Tensor:
        """How many ids are in each of these buckets; 0 for -1."""
        number = bucket.clamp_min(0).long()
        return torch.where(bucket >= 0, self.begins[number + 1] - self.begins[number], 0)

    def before(self, bucket_BTS: Tensor) -> NDArray[np.int64]:
        """`GuidanceTensors.members_before` of a batch on the host."""
        return np.append(0, self.sizes(bucket_BTS).sum(-1).flatten().cumsum(0).numpy())

    def ids(self, bucket_CS: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
        """(E,) the place, in the order of C x S, that each id of these buckets is for, and the id.

        Args: count: E; None: the host waits for it, if the device is not the CPU.
        """
        bucket_P = bucket_CS.flatten()
        sizes_P = self.sizes(bucket_P)
        place_E = torch.repeat_interleave(sizes_P, output_size=count)
        first_P = self.begins[bucket_P.clamp_min(0).long()] - (sizes_P.cumsum(0) - sizes_P)
        inside_E = torch.arange(len(place_E), device=place_E.device)
        return place_E, self.members[first_P[place_E] + inside_E]


@lru_cache(maxsize=16)
def on_device(table: Tensor, device: torch.device) -> Tensor:
    """A table on a device, copied once: a copy waits for the device."""
    return table.to(device)


class BucketCrossEntropy(Objective):
    """The loss of labels, a share of which is that of the teacher's distribution over buckets:
    w ((1 - l) CE + l H(P, Q)), and the share l is 0 where there is none, or none that counts.

    Parts: that loss, the loss of the label, and H(P, Q), 0 where none counts. P: the teacher's
    probabilities of the buckets and of all other ids, Q: the student's. H(P, Q) and not KL(P || Q)
    is reported, because sampled candidates give the first one right on average; the entropy of a
    few of them is far below the teacher's.
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
        labels_N, bucket_NS, mass_NS, table, members_before: as `GuidanceTensors`, of all N tokens
            one after the other.
        weights_N: w of each token, 0 where nothing is predicted.
        share: l where there is a teacher.
        entropy_NR: as `GuidanceTensors.candidate_entropy`. If given, a teacher counts only where it
            is about as sure of the next text as the student, or surer: where the entropy of its
            whole distribution exceeds that of the student's by less than `MARGIN`. No probability
            of the real token decides, so none is preferred (fixed points of docs/guidance.md: a
            weight known before the outcome).
        """
        self._labels_N, self._bucket_NS, self._mass_NS = labels_N, bucket_NS, mass_NS
        self._table, self._weights_N, self._share = table, weights_N, share
        self._entropy_NR, self._members_before = entropy_NR, members_before
        self.is_told_N: Tensor = torch.zeros_like(labels_N, dtype=torch.bool)
        """Where a teacher counted, in the chunks that were computed."""

    def __call__(self, logits_CV: Tensor, place: slice) -> Tensor:
        """In place, but for the numbers of the buckets."""
        labels_C = self._labels_N[place]
        is_asked_C = labels_C != IGNORED
        labels_C1 = torch.where(is_asked_C, labels_C, 0)[:, None]
        # Whole distributions are compared. Those over the buckets of the candidates and one "other"
        # are not alike: a flat student has nearly all in "other", and would look sure.
        is_sure_CR = None
        if self._entropy_NR is None:
            nll_C, sum_C1 = losses_(logits_CV, labels_C1)
        else:
            nll_C, sum_C1, entropy_C = losses_and_entropies_(logits_CV, labels_C1)
            is_sure_CR = self._entropy_NR[place] < entropy_C[:, None] + MARGIN
        # The logits are now exponentials.
        nll_C = torch.where(is_asked_C, nll_C, 0.0)
        weights_C = self._weights_N[place]

        bucket_CS, mass_CS = self._bucket_NS[place], self._mass_NS[place].to(logits_CV)
        place_E, id_E = self._table.ids(bucket_CS, self._count(place))
        cell_E = torch.div(place_E, bucket_CS.shape[1], rounding_mode="floor")
        cell_E = cell_E * logits_CV.shape[1] + id_E
        exponential_E = logits_CV.view(-1)[cell_E]
        q_CS = torch.zeros_like(mass_CS).flatten().index_add_(0, place_E, exponential_E)
        q_CS = (q_CS.view_as(mass_CS) / sum_C1).clamp_min(_LEAST)

        # Of all teachers that count: sums, each times its share of them.
        told_C, lack_C, cross_C = nll_C.new_zeros(3, len(nll_C))
        slopes = []  # of the members of each place, next to that of all ids
        given = mass_CS, q_CS, bucket_CS >= 0
        of_each = [torch.split(one, self._table.places, 1) for one in given]
        teachers = zip(*of_each, self._table.shares, strict=True)
        for number, (p_CK, q_CK, is_one_CK, part) in enumerate(teachers):
            p_CK, q_CK = (torch.where(is_one_CK, of_CK, 0.0) for of_CK in (p_CK, q_CK))
            p_C, exact_q_C = (1 - p_CK.sum(1)).clamp_min(0), 1 - q_CK.sum(1)
            q_C = exact_q_C.clamp_min(_LEAST_OTHER)
            counts_C = is_one_CK.any(1)
            if is_sure_CR is not None:
                counts_C &= is_sure_CR[:, number]
            part_C = counts_C.to(nll_C) * part
            ratio_C, ratio_CK = p_C / q_C, p_CK / q_CK.clamp_min(_LEAST)
            slopes.append(part_C[:, None] * (ratio_C[:, None] - ratio_CK))
            log_q_CK = torch.where(is_one_CK, q_CK, 1.0).log()
            # Where q_C is the limit, the loss is the tangent of -p log(q) there. Its slope times
            # the exact probability keeps the sum of the gradient over all logits at 0.
            own_C = -(p_CK * log_q_CK).sum(1) - p_C * q_C.log() - ratio_C * (exact_q_C - q_C)
            told_C += part_C
            lack_C += part_C * (p_CK.sum(1) + ratio_C * exact_q_C - ratio_C)
            cross_C += part_C * own_C
        is_told_C = told_C > 0
        self.is_told_N[place] = is_told_C
        share_C, told_C = self._share * is_told_C.to(nll_C), told_C.clamp_min(_LEAST)
        factor_C = 1 - share_C + share_C * lack_C / told_C
        of_members_C = weights_C * share_C / told_C / sum_C1.squeeze(1)
        slope_CS = torch.cat(slopes, 1) * of_members_C[:, None]

        logits_CV.mul_((weights_C * factor_C)[:, None] / sum_C1)
        logits_CV.view(-1).index_add_(0, cell_E, exponential_E * slope_CS.flatten()[place_E])
        logits_CV.scatter_add_(1, labels_C1, -(weights_C * (1 - share_C))[:, None])
        mixed_C = (1 - share_C) * nll_C + share_C * cross_C / told_C
        mixed_C = torch.where(weights_C != 0, weights_C * mixed_C, 0.0)
        return torch.stack([mixed_C, nll_C, cross_C / told_C], 1)

    def rows(self, place: slice) -> Tensor | None:
        return kept_rows(self._weights_N[place])

    def _count(self, place: slice) -> int | None:
        before = self._members_before
        return None if before is None else int(before[place.stop] - before[place.start])
