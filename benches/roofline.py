"""What one micro-batch of a Llama takes on a GPU, from only its operations: bytes that the
backward pass keeps, and a lower bound of the time without compilation. Fake tensors: nothing is
computed.

B: rows, T: tokens of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from plan import BANDWIDTH, OF_BANDWIDTH, OF_PEAK, PEAK

_FREE = (
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "split",
    "unbind",
    "detach",
    "alias",
    "as_strided",
    "empty",
    "empty_like",
    "device",
)
"""Operations that move no data."""

AttentionInterface.register("causal_without_mask", sdpa_attention_forward)


class _Count(TorchDispatchMode):
    """Adds up the time that each operation takes at least: by its products, or by its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.rest = self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if func._schema.name.split("::")[-1] in _FREE:
            return out
        tensors = [one for one in tree_leaves((args, kwargs, out)) if isinstance(one, torch.Tensor)]
        seconds = sum(one.nbytes for one in tensors) / (BANDWIDTH * OF_BANDWIDTH)
        if packet in flop_registry:
            flops = float(flop_registry[packet](*args, **kwargs, out_val=out))
            self.flops += flops
            self.products += max(seconds, flops / (PEAK * OF_PEAK))
        else:
            self.rest += seconds
        return out


@contextmanager
def _keeping(kept: dict[int, Any], weights: set[int]) -> Iterator[None]:
    """Notes the storages that the graph keeps, but for those of weights."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other gets its address
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


def layers_of(
    shape: dict[str, int], layers: int, rows: int, length: int, *, autocast: bool, train: bool
) -> dict[str, float]:
    """Of a Llama with so many layers and no head: bytes kept, seconds of products and of the rest,
    and operations.

    Args:
        autocast: float32 weights and residual stream, products in bfloat16 (one GPU, DDP); else
            all in bfloat16 (FSDP2, a teacher).
        train: with the backward pass.
    """
    config = LlamaConfig(
        num_hidden_layers=layers,
        max_position_embeddings=length,
        attn_implementation="causal_without_mask",
        **shape,
    )
    kept: dict[int, Any] = {}
    with FakeTensorMode():
        dtype = torch.float32 if autocast else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).model
        weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
        ids = torch.zeros(rows, length, dtype=torch.int64)
        with _Count() as count:
            with (
                torch.set_grad_enabled(train),
                torch.autocast("cpu", torch.bfloat16, enabled=autocast),
                _keeping(kept, weights),
            ):
                states = model(input_ids=ids, use_cache=False).last_hidden_state
            if train:
                states.sum().backward()
        held = sum(storage.nbytes() for storage in kept.values())
    return {
        "bytes_kept": held,
        "products": count.products,
        "rest": count.rest,
        "flops": count.flops,
    }


def micro_batch(
    shape: dict[str, int],
    layers: int,
    rows: int,
    length: int,
    *,
    autocast: bool,
    train: bool = True,
) -> dict[str, float]:
    """As `layers_of`, from models of one and of three layers: all layers are alike."""
    options = {"autocast": autocast, "train": train}
    one, three = (layers_of(shape, count, rows, length, **options) for count in (1, 3))
    each = {name: (three[name] - one[name]) / 2 for name in one}
    whole = {name: one[name] + (layers - 1) * each[name] for name in one}
    return whole | {"bytes_of_a_layer": each["bytes_kept"]}
