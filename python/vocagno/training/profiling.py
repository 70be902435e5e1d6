"""Traces of some training steps by torch.profiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

_BEFORE = 1
"""Steps before the profiler warms up, which takes another one."""


@contextmanager
def profiling(
    steps: int, folder: Path, process: int, device: torch.device
) -> Iterator[Callable[[], None]]:
    """Yields what is to be called after each step.

    Args:
        steps: how many are traced, after two others; 0: none.
        folder: for `process-N.json.gz`, which https://ui.perfetto.dev and chrome://tracing show.
    """
    if steps == 0:
        yield lambda: None
        return

    def save(traced: profile) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        traced.export_chrome_trace(str(folder / f"process-{process}.json.gz"))

    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    phases = schedule(wait=_BEFORE, warmup=1, active=steps, repeat=1)
    with profile(activities=kinds, schedule=phases, on_trace_ready=save) as profiler:
        yield profiler.step
