"""The loss of every token without the logits of every token.

N: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vocagno.errors import InputError
from vocagno.training.causal import base_output

CHUNK_ELEMENTS = 1 << 24
"""Logits that exist at a time: 64 MiB in float32, if a vocabulary is not so large that
`LEAST_ROWS` of them are more."""
LEAST_ROWS = 256
"""Tokens of a chunk, however large the vocabulary: with fewer the product waits for the weights."""


class UnsupportedModelError(InputError):
    """A model whose loss cannot be computed from its hidden states by a known head."""


@dataclass(frozen=True, slots=True)
class LanguageHead:
    """How a causal language model turns hidden states into logits."""

    weight_VH: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    """Factor on the logits (Cohere multiplies, Granite divides)."""
    softcap: float | None = None
    """Logits are squeezed to (-softcap, softcap) by tanh (Gemma 2)."""

    def logits(self, hidden_CH: Tensor, room: Tensor | None = None) -> Tensor:
        """(C, V) in float32: operands in the model's type, accumulated in float32.

        Args:
            room: of `room_for`, where they may be put; then there is no gradient.
        """
        out = None if room is None else room[: len(hidden_CH)]
        if hidden_CH.is_cuda and hidden_CH.dtype != torch.float32:
            logits_CV = torch.mm(hidden_CH, self.weight_VH.T, out_dtype=torch.float32)
        else:  # no such product on CPU; the operands are exact in float32
            logits_CV = torch.mm(hidden_CH.float(), self.weight_VH.float().T, out=out)
        if self.bias_V is not None:
            logits_CV += self.bias_V.float()
        if self.scale != 1.0:
            logits_CV *= self.scale
        if self.softcap is not None:
            logits_CV.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits_CV

    def room_for(self, num_rows: int) -> Tensor | None:
        """Memory for the logits of one chunk after the other: on a CPU fresh memory costs time
        beside the product that fills it; elsewhere the allocator keeps it anyway."""
        if self.weight_VH.device.type != "cpu":
            return None
        size = min(num_rows, chunk_rows(self.weight_VH.shape[0]))
        return torch.empty(size, self.weight_VH.shape[0], dtype=torch.float32)

    def for_chunks(self) -> "LanguageHead":
        """The same, with what `logits` would do to the weights done once for all chunks."""
        weight_VH = self.weight_VH if self.weight_VH.is_cuda else self.weight_VH.float()
        return replace(self, weight_VH=weight_VH)


def language_head(model: Any) -> LanguageHead:
    """The head of a transformers causal language model, proved on a few tokens.

    Raises: UnsupportedModelError if the model's own logits are others.
    """
    name = type(model).__name__
    head = head_of(model)
    if head.weight_VH.is_meta:
        raise UnsupportedModelError(
            f"{name}: its output embeddings do not fit on the devices (they are offloaded); give "
            "teacher.device_map more memory, or a smaller type by teacher.dtype"
        )
    device = model.get_input_embeddings().weight.device
    probe = torch.arange(min(8, head.weight_VH.shape[0]), device=device)[None]
    training = model.training
    model.eval()  # dropout would make two passes differ
    with torch.no_grad():
        states = hidden_states(model, probe).flatten(0, 1)
        ours = head.logits(states.to(head.weight_VH.device))
        theirs = model(input_ids=probe, use_cache=False).logits.flatten(0, 1).to(ours)
    model.train(training)
    tolerance = 1e-3 if head.weight_VH.dtype == torch.float32 else 5e-2
    same_shape = ours.shape == theirs.shape
    if not same_shape or not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise UnsupportedModelError(
            f"{name}: its logits are not a scaled (or soft-capped) product of hidden states and "
            "output embeddings, so its losses cannot be computed in chunks"
        )
    return head


def head_of(model: Any) -> LanguageHead:
    """The head that a model's configuration describes; its weights are the model's own.

    Raises: UnsupportedModelError if there are no output embeddings over a base model.
    """
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if output is None or model.base_model is model:
        name = type(model).__name__
        raise UnsupportedModelError(f"{name}: no output embeddings over a base model were found")
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    bias, softcap = getattr(output, "bias", None), getattr(config, "final_logit_softcapping", None)
    return LanguageHead(_whole(output.weight), bias, scale, softcap)


def hidden_states(model: Any, ids_BT: Tensor, **extra: Any) -> Tensor:
    """(B, T, H): the last hidden states of a causal language model, without logits.

    Args:
        extra: positions and mask of packed rows (`isolation`).
    """
    output = base_output(model.base_model, ids_BT, **extra)
    return _whole(output.last_hidden_state)


def _whole(tensor: Any) -> Tensor:
    """A tensor whose parts may lie on several processes (a DTensor), whole on each."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def chunk_rows(vocabulary_size: int) -> int:
    """How many rows of logits may exist together."""
    return max(LEAST_ROWS, CHUNK_ELEMENTS // vocabulary_size)


def chunks(num_rows: int, vocabulary_size: int) -> Iterator[slice]:
    """Rows whose logits exist together."""
    size = chunk_rows(vocabulary_size)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


@torch.no_grad()
def chunked_nll(hidden_NH: Tensor, head: LanguageHead, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, from the states that predict it.

    Logits exist a chunk at a time, so memory does not grow with N times V.
    """
    head = head.for_chunks()
    nll_N = hidden_NH.new_empty(hidden_NH.shape[0], dtype=torch.float32)
    room = head.room_for(hidden_NH.shape[0])
    for place in chunks(hidden_NH.shape[0], head.weight_VH.shape[0]):
        logits_CV = head.logits(hidden_NH[place].to(head.weight_VH.device), room)
        nll_N[place] = losses_(logits_CV, labels_N[place, None].to(logits_CV.device))[0]
    return nll_N


@torch.no_grad()
def chunked_entropy(hidden_NH: Tensor, head: LanguageHead) -> Tensor:
    """(N,) float32: the entropy of what follows each state, in nats."""
    head = head.for_chunks()
    entropy_N = hidden_NH.new_empty(hidden_NH.shape[0], dtype=torch.float32)
    room = head.room_for(hidden_NH.shape[0])
    for place in chunks(hidden_NH.shape[0], head.weight_VH.shape[0]):
        logits_CV = head.logits(hidden_NH[place].to(head.weight_VH.device), room)
        log_p_CV = logits_CV.sub_(logits_CV.logsumexp(1, keepdim=True))
        entropy_N[place] = -(log_p_CV.exp() * log_p_CV).sum(1)
    return entropy_N


def losses_(logits_CV: Tensor, labels_C1: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) the loss of each label, and (C, 1) the sums of what the logits become: their
    exponentials, after the largest of each row was taken off; so no other matrix is needed."""
    picked_C1 = logits_CV.gather(1, labels_C1)
    top_C1 = logits_CV.amax(1, keepdim=True)
    sum_C1 = logits_CV.sub_(top_C1).exp_().sum(1, keepdim=True)
    return (sum_C1.log() + top_C1 - picked_C1).squeeze(1), sum_C1
