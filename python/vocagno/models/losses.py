"""The loss of every token without the logits of every token, and a teacher's distributions.

N: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk, B: rows, T: tokens of a row,
M: tokens of the teacher.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.models.head import Head, LanguageHead, chunks


def chunked_nll(
    hidden_NH: Tensor,
    head: Head,
    labels_N: Tensor,
    look: Callable[[Tensor, Tensor, slice], None] | None = None,
    look_after: Callable[[Tensor, Tensor, slice], None] | None = None,
) -> Tensor:
    """(N,) float32: the loss of each label in nats, from the states that predict it.

    Logits exist for one chunk at a time, so memory does not grow with N times V.

    Args:
        look: is given the logits of each chunk, before they are overwritten, with the labels (C, 1)
            and the place of the chunk.
        look_after: is given their exponentials and the row sums (C, 1), as from `losses_`.
    """

    def losses(logits_CV: Tensor, place: slice) -> Tensor:
        labels_C1 = labels_N[place, None].to(logits_CV.device)
        if look is not None:
            look(logits_CV, labels_C1, place)
        nll_C, sum_C1 = losses_(logits_CV, labels_C1)
        if look_after is not None:
            look_after(logits_CV, sum_C1, place)
        return nll_C

    return _of_each_chunk(hidden_NH, head, losses)


def chunked_entropy(hidden_NH: Tensor, head: Head) -> Tensor:
    """(N,) float32: the entropy of the distribution that each state gives, in nats."""

    def entropy(logits_CV: Tensor, _: slice) -> Tensor:
        log_p_CV = logits_CV.sub_(logits_CV.logsumexp(1, keepdim=True))
        return -(log_p_CV.exp() * log_p_CV).sum(1)

    return _of_each_chunk(hidden_NH, head, entropy)


@torch.no_grad()
def _of_each_chunk(
    hidden_NH: Tensor, head: Head, value: Callable[[Tensor, slice], Tensor]
) -> Tensor:
    if isinstance(head, LanguageHead) and head.weight_VH.dtype != hidden_NH.dtype:
        head = head.as_type(torch.float32)  # once for all chunks
    else:
        head = head.for_chunks()
    found_N = hidden_NH.new_empty(len(hidden_NH), dtype=torch.float32)
    room = head.room_for(len(hidden_NH))
    for place in chunks(len(hidden_NH), head.vocabulary_size, head.device):
        found_N[place] = value(head.logits(hidden_NH[place].to(head.device), room), place)
    return found_N


def losses_(logits_CV: Tensor, labels_C1: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) the loss of each label, and (C, 1) row sums of exponentials. Overwrites the logits with
    their exponentials after subtracting each row's maximum, so no other matrix is needed."""
    picked_C1 = logits_CV.gather(1, labels_C1)
    top_C1 = logits_CV.amax(1, keepdim=True)
    sum_C1 = logits_CV.sub_(top_C1).exp_().sum(1, keepdim=True)
    return (sum_C1.log() + top_C1 - picked_C1).squeeze(1), sum_C1


def entropy_of(exponentials_CV: Tensor, sum_C1: Tensor) -> Tensor:
    """(C,) the entropy in nats of distributions, from the exponentials and row sums that `losses_`
    gives.

    On a CPU a few rows at a time, which stay in its caches: 0.32 s for 256 x 262,144 on one core.
    `torch.special.entr` takes 1.0 s, and whole matrices more memory.
    """
    num_rows, size = exponentials_CV.shape
    is_cpu = exponentials_CV.device.type == "cpu"
    at_a_time = max(1, _CACHED // max(1, size) if is_cpu else num_rows)
    sums = [
        # The logarithm of an exponential that is 0 counts as 0; a NaN stays one.
        torch.linalg.vecdot(part, part.log().nan_to_num_(neginf=0.0))
        for part in torch.split(exponentials_CV, at_a_time)
    ]
    sum_C = sum_C1.squeeze(1)
    return sum_C.log() - torch.cat(sums) / sum_C


_CACHED = 1 << 20
"""Numbers that are computed on at a time where more would leave the caches of a CPU."""
IGNORED = -100
"""The label of padding and of tokens that are not predicted."""

AnyArray = TypeVar("AnyArray", Tensor, NDArray[Any])


def causal_shift(sequence: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The inputs and labels of a causal model: token i is predicted from token i - 1.

    The last axis is the position. The first token is only an input, the last only a label. The
    shift is defined only here, for student and teacher, ids and losses.
    """
    return sequence[..., :-1], sequence[..., 1:]


def teacher_guided_loss(nll_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """The sum of the losses of the kept tokens, float32 (Eq. 3 without its denominator).

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
    """Which of the M states predicts the teacher's counterpart of each label; -1 for none."""
    num_ids: int | None = None
    """For `kld`: number of leading ids that both vocabularies share; heads may have more. Default:
    all of the student's."""

    def logits(self, partner_C: Tensor, num_ids: int | None = None) -> Tensor:
        """(C, W) float32, optionally only of the teacher's first `num_ids` ids."""
        head = self.head if num_ids is None else self.head.first(num_ids)
        states_CH = self.states_MH[partner_C.clamp_min(0).to(self.states_MH.device)]
        return head.logits(states_CH.to(head.device)).to(partner_C.device)
