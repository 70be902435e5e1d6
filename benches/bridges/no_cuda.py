"""For trainers that name the device "cuda" in their source: the name means the CPU here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class CudaIsCpu(TorchFunctionMode):
    """Puts on the CPU what a function of torch is to put on CUDA."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


@contextmanager
def one_process() -> Iterator[None]:
    """A group of one process over gloo, in which CUDA is the CPU."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    on_cpu = mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu"))
    try:
        with on_cpu, CudaIsCpu():
            yield
    finally:
        dist.destroy_process_group()
