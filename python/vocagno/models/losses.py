"""Computes the loss of every token with the logits of a chunk of tokens at a time, and holds the
distributions of a teacher.

A function whose name ends in `_` overwrites its first argument.

N: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk, B: rows, T: tokens of a row,
M: tokens of the teacher, R: rows of a block, W: columns of a block, or of a part of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.models.head import Head, LanguageHead, chunks


def chunked_nll(hidden_NH: Tensor, head: Head, labels_N: Tensor) -> Tensor:
    """Computes (N,) float32, the loss of each label in nats, from the states that predict it.

    Logits exist for one chunk at a time, so memory does not grow with N times V.
    """
    nll_N = hidden_NH.new_empty(len(hidden_NH), dtype=torch.float32)
    for logits_CV, place in logits_of_chunks(hidden_NH, head):
        nll_N[place] = losses_(logits_CV, labels_N[place, None].to(logits_CV.device))[0]
    return nll_N


def chunked_entropy(hidden_NH: Tensor, head: Head) -> Tensor:
    """Computes (N,) float32, the entropy in nats of the distribution that each state predicts."""
    entropy_N = hidden_NH.new_empty(len(hidden_NH), dtype=torch.float32)
    for logits_CV, place in logits_of_chunks(hidden_NH, head):
        # With the limit, an id that the model rules out adds 0 instead of 0 * -inf, which is NaN.
        log_p_CV = logits_CV.sub_(logits_CV.logsumexp(1, keepdim=True)).clamp_min_(_LOWEST)
        entropy_N[place] = -(log_p_CV.exp() * log_p_CV).sum(1)
    return entropy_N


def logits_of_chunks(hidden_NH: Tensor, head: Head) -> Iterator[tuple[Tensor, slice]]:
    """Yields the logits of one chunk of states after the other, (C, V) float32 without gradient,
    with the rows of that chunk. The caller may overwrite the logits; the next chunk does."""
    with torch.no_grad():
        if isinstance(head, LanguageHead) and head.weight_VH.dtype != hidden_NH.dtype:
            head = head.as_type(torch.float32)  # once for all chunks
        else:
            head = head.for_chunks()
        room = head.room_for(len(hidden_NH))
    for place in chunks(len(hidden_NH), head.vocabulary_size, head.device):
        with torch.no_grad():
            logits_CV = head.logits(hidden_NH[place].to(head.device), room)
        yield logits_CV, place


def losses_(logits_CV: Tensor, labels_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Computes (C,) the loss of each label in nats, and (C, 1) the row sums of exponentials.

    The logits are overwritten with their exponentials, after each row's maximum was subtracted, so
    that no other matrix is needed.
    """
    label_C1 = logits_CV.gather(1, labels_C1)
    top_C1, sum_C1, _ = _exponentials_(logits_CV)
    return (sum_C1.log() + top_C1 - label_C1).squeeze(1), sum_C1


class LossesAndEntropies(NamedTuple):
    """The result of `losses_and_entropies_` for the logits of C tokens."""

    nll_C: Tensor
    """The loss of each label in nats, the same bits as from `losses_`."""
    sum_C1: Tensor
    """The row sums of exponentials, the same bits as from `losses_`."""
    entropy_C: Tensor
    """The entropy in nats of the distribution over the first `num_ids` ids."""


def losses_and_entropies_(
    logits_CV: Tensor,
    labels_C1: Tensor,
    num_ids: int | None = None,
    top_C1: Tensor | None = None,
) -> LossesAndEntropies:
    """Computes losses and entropies in one pass. The logits are overwritten like by `losses_`.

    Args:
        num_ids: entropies are of the distribution over the first so many ids. Default: all.
        top_C1: the maximum of each row, if it is known.
    """
    label_C1 = logits_CV.gather(1, labels_C1)
    top_C1, sum_C1, entropy_C = _exponentials_(logits_CV, num_ids or logits_CV.shape[1], top_C1)
    nll_C = (sum_C1.log() + top_C1 - label_C1).squeeze(1)
    return LossesAndEntropies(nll_C, sum_C1, entropy_C)


def _exponentials_(
    logits_CV: Tensor, num_ids: int = 0, top_C1: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrites logits with their exponentials after the rows' maxima were subtracted. Returns
    (C, 1) the maxima, (C, 1) the sums, and (C,) the entropies over the first `num_ids` ids (0:
    NaN).

    A CPU computes a block at a time, which stays in its caches. 256 x 262,144 on one core: 107 ms,
    117 with whole matrices; with entropies 179 ms, 364 with whole matrices in a pass of their own.
    """
    num_rows, size = logits_CV.shape
    is_on_cpu = logits_CV.device.type == "cpu"
    rows, width = (max(1, _CACHED // max(1, size)), _CACHED) if is_on_cpu else (num_rows, size)
    tops = logits_CV.new_empty(num_rows, 1) if top_C1 is None else top_C1
    sum_C, known_sum_C, dot_C = logits_CV.new_zeros(3, num_rows)
    for first in range(0, num_rows, max(1, rows)):
        place = slice(first, first + rows)
        rows_RV = logits_CV[place]
        if top_C1 is None:
            torch.amax(rows_RV, 1, keepdim=True, out=tops[place])
        for start in range(0, size, max(1, width)):
            block_RW = rows_RV[:, start : start + width]
            known_RW = block_RW[:, : max(0, num_ids - start)]
            if not known_RW.numel():
                sum_C[place] += block_RW.sub_(tops[place]).exp_().sum(1)
                continue
            # A logit of -inf has no part in the entropy, but 0 * -inf would be NaN. With the limit,
            # its exponential is still 0, and so is the product.
            shifted_RW = torch.sub(block_RW, tops[place]).clamp_min_(_LOWEST)
            sum_R = torch.exp(shifted_RW, out=block_RW).sum(1)
            sum_C[place] += sum_R
            known_sum_C[place] += sum_R if known_RW.shape == block_RW.shape else known_RW.sum(1)
            dot_C[place] += torch.linalg.vecdot(known_RW, shifted_RW[:, : known_RW.shape[1]])
    return tops, sum_C[:, None], known_sum_C.log() - dot_C / known_sum_C


_CACHED = 1 << 16
"""The number of logits in a block on a CPU: 256 kB of float32."""
_LOWEST = -1e4
"""A difference of logits whose exponential is 0 in float32."""
IGNORED = -100
"""The label of padding and of tokens that are not predicted."""

AnyArray = TypeVar("AnyArray", Tensor, NDArray[Any])


def causal_shift(sequence: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Splits a sequence into the inputs and the labels of a causal model: token i is predicted from
    token i - 1 and those before it.

    The last axis is the position. The first token is only an input, the last only a label. The
    shift is defined only here, for student and teacher, ids and losses.
    """
    return sequence[..., :-1], sequence[..., 1:]


def teacher_guided_loss(nll_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Sums the losses of the kept tokens in float32 (Eq. 3 without its denominator).

    The loop divides by one count for the whole optimizer step. `weights_BT` has no gradient.
    """
    if nll_BT.shape != weights_BT.shape:
        raise ValueError(f"nll {tuple(nll_BT.shape)} and weights {tuple(weights_BT.shape)} differ")
    # Fill before multiplying: an infinite loss at a dropped token would make inf * 0 = nan.
    return (nll_BT.masked_fill(weights_BT == 0, 0.0) * weights_BT).sum()


@dataclass(frozen=True, slots=True)
class TeacherStates:
    """A teacher's distributions: hidden states and the head that turns them into logits."""

    states_MH: Tensor
    head: Head
    partner_BT: Tensor
    """For each label, the index (of M) of the state that predicts the teacher's counterpart of it;
    -1 for none."""
    num_ids: int | None = None
    """For `kld`: number of leading ids that both vocabularies share; heads may have more. Default:
    all of the student's."""

    def logits(self, partner_C: Tensor, num_ids: int | None = None) -> Tensor:
        """Computes the teacher's logits for C tokens, (C, W) float32, from the states with the
        indices `partner_C` (a row of state 0 for -1). W is `num_ids`, or the whole vocabulary for
        None."""
        head = self.head if num_ids is None else self.head.first(num_ids)
        states_CH = self.states_MH[partner_C.clamp_min(0).to(self.states_MH.device)]
        return head.logits(states_CH.to(head.device)).to(partner_C.device)
