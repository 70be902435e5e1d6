"""Time and memory on a device: CUDA or, in a rehearsal, the CPU."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any

import torch

from machine import machine
from vocagno.models.loading import local_device
from vocagno.system.progress import peak_megabytes


def where() -> dict[str, Any]:
    """The device, and the versions that its figures depend on."""
    found = machine("torch", "transformers", "accelerate") | {"device": device_name()}
    if torch.cuda.is_available():
        found |= {"cuda": torch.version.cuda, "device_gb": round(_total_memory() / 1e9, 1)}
    return found


def device_name() -> str:
    device = local_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _total_memory() -> int:
    return torch.cuda.get_device_properties(local_device()).total_memory


def wait() -> None:
    """Until the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], Any]) -> float:
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def in_turn(ways: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, taken in turn, so that a change of the clock meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(seconds_of(way))
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the ratios of runs that followed each other."""
    return round(median(a / b for a, b in zip(ours, theirs, strict=True)), 4)


def peak_of(work: Callable[[], Any]) -> float:
    """Peak memory in MB: of CUDA's allocator during `work`; on a CPU, of the process so far."""
    if not torch.cuda.is_available():
        work()
        return round(peak_megabytes())
    free()
    torch.cuda.reset_peak_memory_stats()
    work()
    wait()
    return round(torch.cuda.max_memory_allocated() / 1e6)


def peak_if_it_fits(work: Callable[[], Any], *, warm: bool = True) -> float | None:
    """As `peak_of`; None if memory runs out. `warm`: after one run that sets up what is set up
    once."""
    with suppress(torch.OutOfMemoryError):
        if warm:
            work()
        return peak_of(work)
    free()  # what the error held is released by now
    return None


def free() -> None:
    """Returns what the allocator keeps for later, so that one way does not find another's."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def autocast(precision: str, device: torch.device | None = None) -> Iterator[None]:
    """As a training run of this `train.precision`; default: on this process's device."""
    kind = (device or local_device()).type
    with torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
        yield


def drawn_model(fields: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """A causal language model with random weights, made on the device; `fields` of its config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    fields = dict(fields)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with local_device():
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
