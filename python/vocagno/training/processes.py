"""Starting on Accelerate, and small numbers shared among processes without touching the device."""

import os
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from torch import Tensor

from vocagno.config import Config, ConfigError


def start(config: Config) -> Accelerator:
    """The accelerator of a run, after checking that the processes found each other."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=config.train.collective_timeout))
    accelerator = Accelerator(
        mixed_precision="bf16" if config.train.precision == "bf16" else "no",
        kwargs_handlers=[timeout],
    )
    if world != accelerator.num_processes:
        raise ConfigError(
            f"WORLD_SIZE is {world}, but Accelerate sees {accelerator.num_processes} process(es): "
            "each would train alone. On CPU start them with "
            f"`ACCELERATE_USE_CPU=true torchrun --nproc_per_node {world} train.py ...`"
        )
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and "FSDP" not in str(
        accelerator.distributed_type
    ):
        raise ConfigError(
            f"FSDP was asked for, but Accelerate runs as {accelerator.distributed_type.value}; "
            "it needs a GPU"
        )
    accelerator.gradient_accumulation_steps = config.train.accumulation(world)
    return accelerator


class HostSum:
    """Adds up small host tensors over all processes, so that no step waits for the device."""

    def __init__(self, accelerator: Accelerator, timeout_seconds: float) -> None:
        self._group: Any = None
        if accelerator.num_processes > 1:
            self._group = torch.distributed.new_group(
                backend="gloo", timeout=timedelta(seconds=timeout_seconds)
            )

    def __call__(self, values: Tensor) -> Tensor:
        """The sums of `values`, the same on every process."""
        total = values.clone()
        if self._group is not None:
            torch.distributed.all_reduce(total, group=self._group)
        return total


def agreed(value: Any) -> Any:
    """The first process's value on every process: what they see of a shared folder may differ."""
    values = [value]
    broadcast_object_list(values)
    return values[0]
