"""Selective cross-entropy (Eq. 3 and 4 of arXiv 2503.19123): the losses of all tokens rank them,
the chosen ones train.

B: rows, T: tokens of a row, N = B * T, K: kept tokens, H: hidden size, V: vocabulary.

With one product of states and weights as the unit, ordinary cross-entropy takes three (logits, and
the gradients of states and weights). Here it is one for the losses of all, and three of the chosen:
at 40 %, 2.2. With a threshold that is known beforehand (`takes_one_pass`) the logits of a
chunk are weighted and differentiated at once: one for all, and two of the chosen (on a CPU; on
other devices, where the host does not wait to know which these are, two of all).
"""

from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.guidance.batch import GuidedBatch, check_guidance
from vocagno.guidance.loss import TokenMetrics
from vocagno.guidance.methods import method_of
from vocagno.models.head import Head, LanguageHead
from vocagno.models.losses import IGNORED
from vocagno.models.own_head import GivenLogits


def selective_cross_entropy(
    hidden_BTH: Tensor,
    head: Head | Tensor | None,
    labels_BT: Tensor,
    teacher: Tensor | GuidedBatch,
    guidance: GuidanceConfig,
    *,
    num_kept: int | None = None,
    reduction: Literal["sum", "mean"] = "sum",
) -> tuple[Tensor, TokenMetrics]:
    """The loss of the tokens that the teacher chooses.

    This is L(S) = -sum W(x_i) log P(x_i | x_<i; S) of Eq. 3 (arXiv 2503.19123). W is
    `weights_BT` of the metrics, by Eq. 4 from L_S - L_T, and -log P is their `nll_BT`. The paper's
    mean over N tokens is `reduction="mean"` with `guidance.normalize: tokens`.

    Args:
        hidden_BTH: last hidden states; state i predicts `labels_BT[:, i]`.
        head: the weights of the language head (V, H), or `language_head(model)`, which knows
            biases, scales, soft caps and heads that are no product. None: `hidden_BTH` are logits
            (B, T, V), whose gradient takes as much memory in float32.
        labels_BT: target ids, int64; -100 where nothing is predicted.
        teacher: (B, T) the teacher's loss for each target in nats, NaN where it has none; or what
            `guided_batch` makes, with all else that a method looks at.
        guidance: how tokens are chosen; methods that do not choose (`cpt`) keep all.
        num_kept: the number of tokens that will be kept at most, which `count_kept` gives before
            the forward pass, so that the host need not wait for a device; default: that of
            `teacher`.
        reduction: sum, or mean: divided by the tokens that `guidance.normalize` names.
    Returns: the loss, float32, and the metrics of each token.
    Raises: ValueError for shapes that do not fit each other, for other negative labels than -100
        (on a CPU; on other devices the lookup fails), for tensors that the method needs and does
        not get, and for more kept tokens than `num_kept` (on a CPU; else the loss is NaN);
        ConfigError for tensors of other guidance; TypeError for a module as the head.

    Logits exist a chunk at a time, and the losses that rank are float32 whatever the type of the
    model (bfloat16 losses are up to 0.03 nats off). Without gradients enabled, nothing but losses
    is computed.
    """
    method = method_of(guidance)
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction: expected 'sum' or 'mean', got {reduction!r}")
    head = GivenLogits.of(hidden_BTH) if head is None else _as_head(head)
    batch = _as_batch(teacher)
    if num_kept is not None:
        batch = replace(batch, num_kept=num_kept)
    _check_shapes(hidden_BTH, head, labels_BT, batch.teacher_loss)
    batch = _with_labels(batch, labels_BT, guidance)
    _check_labels(labels_BT)
    total, metrics = method.cross_entropy(hidden_BTH, head, batch)
    if reduction == "mean":
        # Of this batch only: a loop with several micro-batches divides sums by the step's count.
        is_predicted_BT, is_kept_BT = labels_BT != IGNORED, metrics.weights_BT > 0
        counted_BT = is_predicted_BT if guidance.normalize == "tokens" else is_kept_BT
        total = total / counted_BT.sum().clamp_min(1)
    return total, metrics


def token_weights(
    student_nll_BT: Tensor,
    teacher: Tensor | GuidedBatch,
    labels_BT: Tensor,
    guidance: GuidanceConfig,
) -> Tensor:
    """(B, T) float32 without gradient: W(x_i) of Eq. 4 (arXiv 2503.19123), 1.0 for the tokens that
    train the student, else 0.0; a share where the batch has baked weights. Under `alm` a token's
    loss is multiplied by it, and it may be negative.

    Args:
        student_nll_BT: the student's loss on each token in nats, L_S (Eq. 1).
        teacher: (B, T) the teacher's loss on each token in nats, L_T (Eq. 2), NaN where it has
            none; or the tensors that `guided_batch` makes.
        labels_BT: target ids, -100 where nothing is predicted.
        guidance: the rule.
    Raises: ValueError if `teacher` lacks something that the rule needs; ConfigError for tensors of
        other guidance, and for `distill`, which is no weight.
    """
    if guidance.needs_candidates:
        raise ConfigError("guidance.method: distill is no weight; use selective_cross_entropy")
    batch = _with_labels(_as_batch(teacher), labels_BT, guidance)
    return method_of(guidance).choose(student_nll_BT, labels_BT, batch).weights_BT


def count_kept(teacher_loss_BT: Tensor, labels_BT: Tensor, guidance: GuidanceConfig) -> int:
    """Counts the tokens that will be kept, before any forward pass, which
    `selective_cross_entropy` takes as `num_kept`.

    Raises: ValueError if it is known only after the forward pass (chunks, thresholds).
    """
    method = method_of(guidance)
    if not method.counts_kept_exactly:
        raise ValueError("how many tokens are kept is known only after the forward pass")
    return method.most_kept(
        *method.roles(teacher_loss_BT, labels_BT),
        GuidedBatch(teacher_loss=teacher_loss_BT, labels=labels_BT),
    )


def _as_batch(teacher: Tensor | GuidedBatch) -> GuidedBatch:
    return GuidedBatch(teacher_loss=teacher) if isinstance(teacher, Tensor) else teacher


def _with_labels(batch: GuidedBatch, labels_BT: Tensor, guidance: GuidanceConfig) -> GuidedBatch:
    """Puts labels into a batch, and checks that its columns fit them and the guidance."""
    batch.check(labels_BT, guidance)
    # Columns of another rule would choose other tokens than are meant, without an error.
    if batch.guidance is not None:
        check_guidance(batch.guidance, guidance, "teacher")
    return replace(batch, labels=labels_BT)


def _as_head(head: Any) -> Head:
    if isinstance(head, Tensor):
        return LanguageHead(head)
    if not isinstance(head, Head):
        raise TypeError(
            f"head: expected a tensor (V, H) or language_head(model), got {type(head).__name__}; "
            "of a linear layer without bias give its weight"
        )
    return head


def _check_labels(labels_BT: Tensor) -> None:
    """Rejects negative labels that are not -100, on a CPU. Elsewhere the host would wait."""
    if labels_BT.device.type != "cpu":
        return
    is_wrong_BT = (labels_BT < 0) & (labels_BT != IGNORED)
    if is_wrong_BT.any():
        raise ValueError(
            f"labels: {int(labels_BT[is_wrong_BT][0])} is not a token id; use {IGNORED} where "
            "nothing is predicted"
        )


def _check_shapes(
    hidden_BTH: Tensor, head: Head, labels_BT: Tensor, teacher_loss_BT: Tensor
) -> None:
    states = tuple(hidden_BTH.shape)
    if labels_BT.shape != states[:-1] or teacher_loss_BT.shape != labels_BT.shape:
        raise ValueError(
            f"hidden states {states}, labels {tuple(labels_BT.shape)} and teacher losses "
            f"{tuple(teacher_loss_BT.shape)}: expected (B, T, H), (B, T) and (B, T)"
        )
    shape = tuple(head.weight_VH.shape) if isinstance(head, LanguageHead) else (head.hidden_size,)
    if shape[-1] != states[-1] or (isinstance(head, LanguageHead) and len(shape) != 2):
        raise ValueError(f"head weights {shape}: expected (V, H) with H = {states[-1]}")
