"""The decoder layers of a transformers model, which are compiled and sharded one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vocagno.errors import ConfigError
from vocagno.models.head import base_of


def decoder_layers(model: Any, option: str) -> list[nn.Module]:
    """The layers that a model says are not to be split.

    Raises: ConfigError naming the option that needs them, for a model that names none.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(f"{option}: {type(model).__name__} names no layers; use false")
    return layers


def compile_layers(model: Any) -> None:
    """Compiles each decoder layer; layers that are alike are compiled once."""
    for layer in decoder_layers(model, "train.compile"):
        layer.compile()


@contextmanager
def graphs_stay_whole() -> Iterator[None]:
    """Inside, DDP does not cut the graphs of compiled layers at the borders of its buckets.

    torch cuts a model that is compiled as one, so that gradients travel while others are computed.
    Layers are small enough for that; cut in three they lose the fusion across the cuts.
    """
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield


def shard_over_processes(model: Any, device: torch.device) -> None:
    """Leaves each process a part of every layer, gathered while the layer is in use (FSDP2).

    A layer at a time goes to the device, so there is never room needed for all of them. The
    language head stays whole.
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
            child.to(device)  # weights that it shares with the base are there already
