"""Exchanges small values between processes without using the device."""

import os
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import accelerate
import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor

from vocagno.errors import ConfigError

PATIENCE = timedelta(days=30)
"""Timeout for waits that may take hours: for the next shard from the first process, which may wait
for shards of other launches, and for benchmarks."""


class Together(AbstractContextManager["Together"]):
    """The processes of this launch. The first one decides what to read, the others follow.

    Use it as a context manager: a process that exits with open connections would crash.
    """

    def __init__(self) -> None:
        """Raises: ConfigError if the processes were not started by a launcher."""
        if "RANK" not in os.environ:
            raise ConfigError(
                "teacher.tensor_parallel: needs a launcher that starts the processes, such as "
                "`accelerate launch -m vocagno ...` or torchrun"
            )
        self._began = not torch.distributed.is_initialized()
        if self._began:
            torch.distributed.init_process_group()
        self.leads: bool = torch.distributed.get_rank() == 0
        self._words: Any = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def say(self, number: int | None) -> int | None:
        """Broadcasts the first process's number; None means that there is nothing left to do."""
        words = [number]
        torch.distributed.broadcast_object_list(words, src=0, group=self._words)
        return words[0]

    def __exit__(self, *_: object) -> None:
        if self._began:
            torch.distributed.destroy_process_group()


class HostSum:
    """Sums small host tensors over all processes (and gathers other small values) without a device
    sync."""

    def __init__(self, accelerator: accelerate.Accelerator, timeout_seconds: float) -> None:
        self._group: Any = None
        self._patient: Any = None
        if accelerator.num_processes > 1:
            limit = timedelta(seconds=timeout_seconds)
            self._group = torch.distributed.new_group(backend="gloo", timeout=limit)
            self._patient = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def __call__(self, values: Tensor) -> Tensor:
        """Returns the sums of `values`, the same on every process."""
        return self._all_reduce(values, torch.distributed.ReduceOp.SUM)

    def largest(self, values: Tensor) -> Tensor:
        """Returns the elementwise maxima, the same on every process."""
        return self._all_reduce(values, torch.distributed.ReduceOp.MAX)

    def gather(self, value: Any, *, patient: bool = False) -> list[Any]:
        """Returns the values of all processes, ordered by rank, on every process.
        Args: patient: wait for the last process without the limit `train.collective_timeout`. The
            wait still ends if a process ends."""
        group = self._patient if patient else self._group
        if group is None:
            return [value]
        values: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(values, value, group=group)
        return values

    def meet(self) -> None:
        """Waits for all processes, without the limit `train.collective_timeout`."""
        self.gather(None, patient=True)

    def _all_reduce(self, values: Tensor, how: Any) -> Tensor:
        """Reduces a copy of `values` over all processes; one process has no group."""
        total = values.clone()
        if self._group is not None:
            torch.distributed.all_reduce(total, how, group=self._group)
        return total


def broadcast(value: Any) -> Any:
    """Returns the first process's value on every process: their views of a shared folder may
    differ."""
    values = [value]
    broadcast_object_list(values)
    return values[0]
