"""The loss of every token without the logits of every token.

N: tokens, H: hidden size, V: vocabulary, C: tokens of a chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vocagno.errors import InputError

CHUNK_ELEMENTS = 1 << 25
"""Logits that exist at a time: 128 MiB in float32, whatever the vocabulary and the length.

With 151,936 entries of 896 on two CPU cores: 361, 397, 498 and 509 tokens/s at 1 << 23 to 1 << 26.
"""


class UnsupportedModelError(InputError):
    """A model whose loss cannot be computed from its hidden states by a known head."""


@dataclass(frozen=True, slots=True)
class LanguageHead:
    """How a causal language model turns hidden states into logits."""

    weight_VH: Tensor
    bias_V: Tensor | None
    scale: float
    """Factor on the logits (Cohere multiplies, Granite divides)."""
    softcap: float | None
    """Logits are squeezed to (-softcap, softcap) by tanh (Gemma 2)."""

    def logits(self, hidden_CH: Tensor) -> Tensor:
        """(C, V) in float32: operands in the model's type, accumulated in float32."""
        hidden_CH = hidden_CH.to(self.weight_VH.device)
        if hidden_CH.dtype == torch.float32:
            logits_CV = hidden_CH @ self.weight_VH.T
        elif hidden_CH.is_cuda:
            logits_CV = torch.mm(hidden_CH, self.weight_VH.T, out_dtype=torch.float32)
        else:  # no such product on CPU; the operands are exact in float32
            logits_CV = hidden_CH.float() @ self.weight_VH.float().T
        if self.bias_V is not None:
            logits_CV = logits_CV + self.bias_V.float()
        logits_CV = logits_CV * self.scale
        if self.softcap is not None:
            logits_CV = self.softcap * torch.tanh(logits_CV / self.softcap)
        return logits_CV


def language_head(model: Any) -> LanguageHead:
    """The head of a transformers causal language model, proved on a few tokens.

    Raises: UnsupportedModelError if the model's own logits are others.
    """
    name = type(model).__name__
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if output is not None and output.weight.is_meta:
        raise UnsupportedModelError(
            f"{name}: its output embeddings do not fit on the devices (they are offloaded); give "
            "teacher.device_map more memory, or a smaller type by teacher.dtype"
        )
    if output is None or model.base_model is model:
        raise UnsupportedModelError(f"{name}: no output embeddings over a base model were found")
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    bias, softcap = getattr(output, "bias", None), getattr(config, "final_logit_softcapping", None)
    head = LanguageHead(_whole(output.weight.detach()), bias, scale, softcap)
    device = model.get_input_embeddings().weight.device
    probe = torch.arange(min(8, config.vocab_size), device=device)[None]
    with torch.inference_mode():
        ours = head.logits(hidden_states(model, probe).flatten(0, 1))
        theirs = model(input_ids=probe, use_cache=False).logits.flatten(0, 1).to(ours)
    tolerance = 1e-3 if output.weight.dtype == torch.float32 else 5e-2
    same_shape = ours.shape == theirs.shape
    if not same_shape or not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
        raise UnsupportedModelError(
            f"{name}: its logits are not a scaled (or soft-capped) product of hidden states and "
            "output embeddings, so its losses cannot be computed in chunks"
        )
    return head


def hidden_states(model: Any, ids_BT: Tensor, **extra: Any) -> Tensor:
    """(B, T, H): the last hidden states of a causal language model, without logits.

    Args:
        extra: positions and mask of packed rows (`isolation`).
    """
    output = model.base_model(input_ids=ids_BT, use_cache=False, **extra)
    return _whole(output.last_hidden_state)


def _whole(tensor: Any) -> Tensor:
    """A tensor whose parts may lie on several processes (a DTensor), whole on each."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


@torch.inference_mode()
def chunked_nll(hidden_NH: Tensor, head: LanguageHead, labels_N: Tensor) -> Tensor:
    """(N,) float32: the loss of each label in nats, from the states that predict it.

    At most `CHUNK_ELEMENTS` logits exist at a time, so memory does not grow with N times V.
    """
    chunk = max(1, CHUNK_ELEMENTS // head.weight_VH.shape[0])
    nll_N = hidden_NH.new_empty(hidden_NH.shape[0], dtype=torch.float32)
    for start in range(0, hidden_NH.shape[0], chunk):
        place = slice(start, start + chunk)
        logits_CV = head.logits(hidden_NH[place])
        labels_C1 = labels_N[place, None].to(logits_CV.device)
        picked_C = logits_CV.gather(1, labels_C1).squeeze(1)
        nll_N[place] = logits_CV.logsumexp(1) - picked_C
    return nll_N
