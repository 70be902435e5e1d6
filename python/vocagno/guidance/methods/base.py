"""The interface between a run and a method of guidance, from the mapping to the log.

B: rows, T: tokens of a row, N = B * T, H: hidden size.
"""

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from vocagno.alignment.mapping import align, reduce
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.batch import GuidedBatch, TokenCounts
from vocagno.guidance.comparison import ComparedTokens, DocumentPairs
from vocagno.guidance.loss import Choice, LossSums, TokenMetrics, excess_loss, full_cross_entropy
from vocagno.models.head import Head
from vocagno.models.losses import IGNORED

if TYPE_CHECKING:  # rows and stores need pyarrow, the loss does not
    from vocagno.data.rows import Row
    from vocagno.guidance.bucket_targets import BucketTargets


class StudentOutput(NamedTuple):
    """Result of the student's forward pass; only the loss carries a gradient."""

    loss: Tensor
    """A sum, to be divided by the count of the whole step."""
    sums: Tensor
    """(10,) the sums that are logged (`LossSums.tensor`)."""
    nll_BT: Tensor
    """Losses in nats."""
    weights_BT: Tensor
    """(B, T) 0.0 for dropped tokens, else 1.0 or a share (`TokenMetrics.weights_BT`)."""


class Method(ABC):
    """A method of guidance. This base class answers for a method that trains on all tokens."""

    summary: ClassVar[str]
    """One sentence for the card of a trained model."""

    def __init__(self, guidance: GuidanceConfig, targets: "BucketTargets | None" = None) -> None:
        """Args: targets: for `distill`, the buckets of both vocabularies."""
        self.guidance = guidance
        self.targets = targets

    @property
    def tags(self) -> list[str]:
        """Tags of a trained model."""
        name = self.guidance.method.rpartition(":")[2]
        return ["vocagno"] if name in ("vocagno", "cpt") else ["vocagno", name]

    @property
    def needs_our_loop(self) -> bool:
        """True if `GuidedTrainer` cannot carry the method out, because it needs more than stored
        losses."""
        return self.guidance.needs_live_teacher

    # Rows and the teacher's tokens (NumPy, on the host)

    def overlapping_tokens(self, pairs: DocumentPairs) -> NDArray[np.int32]:
        """(n, 2) the range [j, k] of teacher tokens that share text with each student token i, with
        k exclusive. Source: Algorithm 1 of arXiv 2503.19123, whose ranges Eq. 2 reads. Coverage is
        counted on it, whatever the method compares."""
        # Workers of a DataLoader share the cores among them, as their torch does.
        num_threads = None if get_worker_info() is None else 1
        return align(
            pairs.student_spans,
            pairs.teacher_spans,
            student_cu_seqlens=pairs.student_cu,
            teacher_cu_seqlens=pairs.teacher_cu,
            num_threads=num_threads,
        )

    def mapping(
        self, pairs: DocumentPairs, overlapping_tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """(n, 2) the range of teacher tokens that each student token is compared with."""
        return overlapping_tokens

    def compare(
        self,
        pairs: DocumentPairs,
        overlapping_tokens: NDArray[np.int32],
        is_predicted: NDArray[np.bool_] | None,
    ) -> ComparedTokens:
        """The teacher's loss of each student token: L_T of Eq. 2 (arXiv 2503.19123), Phi over
        -log P(x_l | x_<l) for l in [j, k], with `mapping` as the ranges, `teacher_nll` as -log P,
        and `guidance.aggregation` as Phi (max by default)."""
        mapping = self.mapping(pairs, overlapping_tokens)
        loss = reduce(pairs.teacher_nll, mapping, self.guidance.aggregation)
        return ComparedTokens(mapping, loss)

    def columns(self, rows: Sequence["Row"]) -> dict[str, NDArray[np.int64]]:
        """The columns that the method adds to a batch: a value for each token, all rows one after
        the other; at padding the value of the declaration."""
        return {}

    # Counts (on the host, before the forward pass)

    def roles(self, teacher_loss_BT: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Two boolean (B, T) tensors: the tokens that compete for being kept, and those that are
        kept without competing."""
        is_predicted_BT = labels_BT != IGNORED
        return torch.zeros_like(is_predicted_BT), is_predicted_BT

    @property
    def counts_kept_exactly(self) -> bool:
        """True if `most_kept` is exact for any batch by its labels and teacher losses.

        Otherwise it is an upper bound. Under the default rule, too: its weights need the lines,
        which are no argument of `count_kept`, and a live teacher's losses come after the count.
        """
        return True

    def most_kept(self, competing_BT: Tensor, included_BT: Tensor, batch: GuidedBatch) -> int:
        """Counts the tokens of a batch that can be kept at most.

        Args:
            competing_BT, included_BT: what `roles` gives.
            batch: the other columns.
        """
        return int(included_BT.sum())

    def for_samples(self, seed: int, samples: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of a micro-batch that depend on the number of each sample in the run."""
        return {}

    # The loss (on the device)

    def choose(self, nll_BT: Tensor, labels_BT: Tensor, batch: GuidedBatch) -> Choice:
        """Weighs each token (W(x_i) of Eq. 3, arXiv 2503.19123), given the student's loss on it in
        nats. Not called where `cross_entropy` has the weights without it, as by the default rule.

        Raises: ValueError if the batch lacks something that the method needs.
        """
        return Choice((labels_BT != IGNORED).float(), None)

    def cross_entropy(
        self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch
    ) -> tuple[Tensor, TokenMetrics]:
        """The sum of the losses of the tokens that train, with gradients if they are enabled, and
        the metrics of each token.

        Args: hidden_BTH: last hidden states; state i predicts `batch.labels[:, i]`.
        Raises: ValueError if the batch lacks something that the method needs.
        """
        return full_cross_entropy(hidden_BTH, head, batch.labels_BT, batch.num_kept)

    def loss(self, hidden_BTH: Tensor, head: Head, batch: GuidedBatch) -> StudentOutput:
        """The loss of a forward pass and its metrics."""
        loss, metrics = self.cross_entropy(hidden_BTH, head, batch)
        sums = sums_of(loss.detach(), metrics, batch.labels_BT, batch.teacher_loss)
        return StudentOutput(loss, sums.tensor(), metrics.nll_BT, metrics.weights_BT)

    def log(self, sums: LossSums, counts: TokenCounts) -> dict[str, Any]:
        """Entries of `metrics.jsonl`, given the totals of a window."""
        return {}


def sums_of(
    total: Tensor, metrics: TokenMetrics, labels_BT: Tensor, teacher_loss_BT: Tensor
) -> LossSums:
    """Sums up what is logged of a forward pass."""
    excess_BT = excess_loss(metrics.nll_BT, teacher_loss_BT)
    excess_BT = excess_BT.where(labels_BT != IGNORED, torch.nan)  # a loss of 0 stands there
    has_teacher_loss_BT = excess_BT.isfinite()
    sums = LossSums(
        nll=metrics.nll_BT.sum(),
        kept_nll=total,
        excess=excess_BT.nansum(),
        teacher=teacher_loss_BT.where(has_teacher_loss_BT, torch.nan).nansum(),
        with_teacher_loss=has_teacher_loss_BT.sum(),
        kept=metrics.weights_BT.sum(),
    )
    if (thresholds_S := metrics.thresholds_S) is None:
        return sums
    # -inf (no threshold on the excess loss) and NaN (no unit competed) have no place in a mean.
    has_threshold_S = thresholds_S.isfinite()
    threshold = torch.where(has_threshold_S, thresholds_S, 0.0).sum()
    return sums._replace(threshold=threshold, scopes=has_threshold_S.sum())


def log_of_distance(sums: LossSums, counts: TokenCounts) -> dict[str, float]:
    """The mean distance, and the share of tokens that have one."""
    return {
        "mean_distance": sums.distance / max(1.0, sums.pairs),
        "paired": sums.pairs / max(1, counts.predicted),
    }


class Naive(Method):
    """Continual pretraining without guidance (`method: cpt`): W(x_i) = 1 for every token."""

    summary = "Trained on every token, without a teacher."
