"""Optimizer steps at TinyLlama's shape: time, tokens a second, MFU and peak memory of each kind.

All kinds of a group take turns over the same rows. Eager ones first; then the layers are compiled,
and eager steps are taken again between the compiled ones, to compare with.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from gpu.gauge import free, in_turn, peak_if_it_fits, ratio, seconds_of
from gpu.material import Material
from gpu.part import main
from gpu.sizes import Sizes
from guided_steps import GUIDED, MATCHING, Steps
from vocagno.models import head
from vocagno.models.loading import compile_layers, decoder_layers
from vocagno.models.throughput import model_flops, peak_flops

Loss = Callable[[], Tensor]


class Kinds(Steps):
    """Steps under switches: checkpointing, isolated documents, chunks of logits."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        self.made = Material(folder, sizes.text)
        options = self.made.options(rows=sizes.rows, seq_len=sizes.seq_len, precision="bf16")
        super().__init__(options, folder, sizes.student)
        self.add("isolated", GUIDED, isolate=True)
        self.add_matching()

    def eager(self) -> dict[str, Callable[[], None]]:
        """The usual kinds; the guided one also under each switch."""
        ways = {name: partial(self.update, loss) for name, loss in self.kinds().items()}
        ways["guided, isolated documents"] = partial(self.update, lambda: self._ours("isolated"))
        ways["guided, checkpointing"] = self._checkpointed
        return ways

    def _checkpointed(self) -> None:
        self.model.gradient_checkpointing_enable()
        try:
            self.update(lambda: self._ours("guided"))
        finally:
            self.model.gradient_checkpointing_disable()

    def chunks(self, elements: tuple[int, ...]) -> dict[str, Callable[[], None]]:
        """The guided kind, by how many logits exist at a time."""
        return {f"guided, {count:,} logits": partial(self._chunked, count) for count in elements}

    def _chunked(self, count: int) -> None:
        with patch.multiple(head, CHUNK_ELEMENTS=count, CUDA_CHUNK_ELEMENTS=count):
            self.update(lambda: self._ours("guided"))

    def compiled(self) -> dict[str, Callable[[], None]]:
        """Kinds with compiled layers, and eager ones between them."""
        usual = ("guided", "cpt", "dense")
        losses = {name: loss for name, loss in self.kinds().items() if name in usual}
        ways = {f"{name}, compiled": partial(self.update, loss) for name, loss in losses.items()}
        return ways | {"guided": partial(self._uncompiled, losses["guided"])}

    def _uncompiled(self, loss: Loss) -> None:
        with torch.compiler.set_stance("force_eager"):
            self.update(loss)

    def optimizers(self) -> dict[str, Callable[[], None]]:
        """Only the update, over gradients that stay; each way has moments of its own."""
        self._ours("guided").backward()
        parameters = list(self.model.parameters())
        ways: dict[str, Callable[[], None]] = {}
        for name in ("fused", "foreach"):
            optimizer = torch.optim.AdamW(parameters, lr=1e-6, **{name: True})
            ways[f"AdamW, {name}"] = optimizer.step
        return ways


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    steps = Kinds(sizes, folder)
    for kind in ("guided", *MATCHING):
        yield {"what": "gradient", "kind": kind, "difference": steps.check(kind)}
    yield from _group(steps, sizes, "eager", steps.eager(), "dense")
    yield from _group(steps, sizes, "logits at a time", steps.chunks(sizes.chunk_elements))
    yield _profile(steps)
    with _compiled(steps):
        yield from _group(steps, sizes, "compiled", steps.compiled(), "guided")
    steps.optimizer.state.clear()  # room for two others
    free()
    yield from _group(steps, sizes, "optimizer", steps.optimizers())


@contextmanager
def _compiled(steps: Kinds) -> Iterator[None]:
    """With compiled layers; in a rehearsal without the compiler's back end, which takes minutes."""
    with ExitStack() as stack:
        if steps.device.type == "cpu":
            layer = type(decoder_layers(steps.model, "train.compile")[0])
            traced = partial(layer.compile, backend="aot_eager")
            stack.enter_context(patch.object(layer, "compile", lambda self: traced(self)))
        compile_layers(steps.model)
        yield


def _group(
    steps: Kinds,
    sizes: Sizes,
    group: str,
    ways: dict[str, Callable[[], None]],
    rival: str | None = None,
) -> Iterator[dict[str, Any]]:
    """A line for each way: seconds, and their ratio to those of `rival` (default: the first)."""
    memory = {name: peak_if_it_fits(partial(tidy, steps, way)) for name, way in ways.items()}
    for name in [name for name, peak in memory.items() if peak is None]:
        del ways[name]
        yield {"what": "step", "group": group, "kind": name, "outcome": "out of memory"}
    seconds = in_turn(ways, sizes.repeats)
    rival = rival if rival in ways else next(iter(ways))
    for name, found in seconds.items():
        line = {
            "what": "step",
            "group": group,
            "kind": name,
            "seconds": round(median(found), 4),
            "fastest": round(min(found), 4),
            "slowest": round(max(found), 4),
            "ratio": ratio(found, seconds[rival]),
            "ratio_to": rival,
            "peak_mb": memory[name],
            "rows": sizes.rows,
            "seq_len": sizes.seq_len,
        }
        yield line | ({} if group == "optimizer" else _speed(steps, sizes, median(found)))


def tidy(steps: Kinds, way: Callable[[], None]) -> None:
    """One step; gradients that it leaves when it fails are dropped."""
    try:
        way()
    except torch.OutOfMemoryError:
        steps.optimizer.zero_grad()
        raise


def _speed(steps: Kinds, sizes: Sizes, seconds: float) -> dict[str, Any]:
    """Tokens a second, and the MFU of naive training at that speed, if the peak is known."""
    speed = sizes.rows * sizes.seq_len / seconds
    peak = peak_flops(steps.device, "bf16")
    mfu = None if peak is None else speed * model_flops(steps.model, sizes.seq_len) / peak
    return {"tokens_per_second": round(speed), "mfu": mfu and round(mfu, 4)}


def _profile(steps: Kinds) -> dict[str, Any]:
    """Where the time of two guided steps goes: how long the device works, and at what."""
    from torch.profiler import ProfilerActivity, profile

    on_device = steps.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_device

    def two_steps() -> None:
        for _ in range(2):
            steps.update(lambda: steps._ours("guided"))

    with profile(activities=activities) as profiler:
        seconds = seconds_of(two_steps)
    events = profiler.key_averages()

    def own(event: Any) -> float:
        time = event.self_device_time_total if on_device else event.self_cpu_time_total
        return time / 1e6

    of_device = [event for event in events if not on_device or event.device_type.name == "CUDA"]
    longest = sorted(of_device, key=own, reverse=True)[:15]
    copies = [event for event in events if "Memcpy HtoD" in event.key]
    return {
        "what": "profile",
        "steps": 2,
        "seconds": round(seconds, 4),
        "busy": round(sum(map(own, of_device)) / seconds, 4),
        "launches": sum(event.count for event in of_device),
        "pageable_copies": sum(event.count for event in copies if "Pageable" in event.key),
        "pinned_copies": sum(event.count for event in copies if "Pinned" in event.key),
        "longest": {event.key[:80]: round(own(event), 4) for event in longest},
    }


if __name__ == "__main__":
    main(measure)
