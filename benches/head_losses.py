"""Rivals of our loop over chunks of logits: torch's chunked op, and liger-kernel on CUDA."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from unittest.mock import patch

import torch
from torch import Tensor

from vocagno.guidance import loss
from vocagno.models.head import Head, LanguageHead
from vocagno.models.losses import IGNORED


def installed(device: torch.device) -> list[str]:
    """The rivals that are installed and run on the device."""
    names = ["torch"] if hasattr(torch.nn, "LinearCrossEntropyOptions") else []
    if device.type == "cuda" and find_spec("liger_kernel"):
        names.append("liger")
    return names


@contextmanager
def in_place_of_ours(how: str) -> Iterator[None]:
    """Steps whose head and loss a rival computes. It gives the sum; single losses are zeros."""
    rival = {"torch": _torch, "liger": _liger}[how]
    with patch.object(loss, "head_loss", partial(_head_loss, rival)):
        yield


def _head_loss(
    rival: Callable[[Tensor, Tensor, Tensor], Tensor],
    hidden_KH: Tensor,
    head: Head,
    labels_K: Tensor,
    _: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The weights are 1 where a label takes part: no rule of the benches has others."""
    assert isinstance(head, LanguageHead)
    assert head.bias_V is None
    assert head.softcap is None
    dtype = loss.product_dtype(hidden_KH, head)
    with torch.autocast(hidden_KH.device.type, enabled=False):
        states_KH, weight_VH = (hidden_KH * head.scale).to(dtype), head.weight_VH.to(dtype)
        return rival(states_KH, weight_VH, labels_K).float(), torch.zeros_like(labels_K).float()


def _torch(states_KH: Tensor, weight_VH: Tensor, labels_K: Tensor) -> Tensor:
    """On CUDA the gradient of the weights is summed up over chunks in their type (its policy
    `compact`), so in bfloat16 it is rounded after each."""
    return torch.nn.functional.linear_cross_entropy(
        states_KH,
        weight_VH,
        labels_K,
        reduction="sum",
        ignore_index=IGNORED,
        options=torch.nn.LinearCrossEntropyOptions(),
    )


def _liger(states_KH: Tensor, weight_VH: Tensor, labels_K: Tensor) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    return liger_fused_linear_cross_entropy(
        states_KH,
        weight_VH,
        labels_K,
        ignore_index=IGNORED,
        reduction="sum",
        accum_dtype=torch.float32,
    )
