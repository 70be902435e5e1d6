"""Compiles and shards the decoder layers of a transformers model one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vocagno.errors import ConfigError
from vocagno.models.head import base_of


def decoder_layers(model: Any, option: str) -> list[nn.Module]:
    """The layers in a model's `_no_split_modules`.

    Raises: ConfigError naming the option that needs them, for a model that declares none.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(f"{option}: {type(model).__name__} declares no layers; use false")
    return layers


def compile_layers(model: Any) -> None:
    """Compiles each decoder layer; equal layers are compiled once."""
    for layer in decoder_layers(model, "train.compile"):
        layer.compile()


@contextmanager
def graphs_stay_whole() -> Iterator[None]:
    """Stops DDP from splitting the graphs of compiled layers at its bucket boundaries.

    torch splits a model that is compiled as a whole, to overlap communication of gradients with
    their computation. Single layers are small enough for that; splitting them loses fusion.
    """
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield


def shard_over_processes(model: Any, device: torch.device) -> None:
    """Shards every layer over the processes; a layer is gathered while in use (FSDP2).

    Layers move to the device one at a time, so the device never holds all of them. The language
    head is not sharded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for layer in decoder_layers(model, "teacher.shard"):
        fully_shard(layer, mesh=mesh)
    base = base_of(model)
    fully_shard(base, mesh=mesh, reshard_after_forward=True)
    for child in model.children():
        if child is not base:
            child.to(device)  # weights shared with the base are already there


def checkpoint_activations(model: Any) -> None:
    """Has the decoder layers compute their activations again in the backward pass.

    Args:
        model: of transformers; releases before 5.23 call it gradient checkpointing only.
    """
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
