"""Time and memory of work on the device of this process: a CUDA device if there is one, else the
CPU."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from vocagno.models.loading import local_device
from vocagno.system.progress import peak_megabytes


def device_name() -> str:
    """The name of the GPU, or `cpu`."""
    device = local_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def wait() -> None:
    """Waits until the device has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], Any]) -> float:
    """The seconds that `work` takes, until the device is done."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def in_turn(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """The seconds of each way. They take turns, so that a change of the clock meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(seconds_of(way))
    return seconds


def ratio(seconds: list[float], rival_seconds: list[float]) -> float:
    """The median of the ratios of runs that followed each other."""
    return round(median(a / b for a, b in zip(seconds, rival_seconds, strict=True)), 4)


def peak_of(work: Callable[[], Any]) -> int:
    """Peak memory in MB: on CUDA of the allocator during `work`; on a CPU of the process so far."""
    if not torch.cuda.is_available():
        work()
        return round(peak_megabytes() or 0)
    free()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait()
    return round(torch.cuda.max_memory_allocated() / 1e6)


def free() -> None:
    """Returns what the allocator keeps for later, so that one way does not find another's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def autocast(precision: str, device: torch.device | None = None) -> Iterator[None]:
    """Casts as a training run of this `train.precision` does; default: on this process's device."""
    kind = (device or local_device()).type
    with torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
        yield


def random_model(fields: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """A causal language model with random weights, made on the device; `fields` of its config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with local_device():
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
