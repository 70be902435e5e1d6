"""Times the parts of an optimizer step of several runs, turn by turn on the same rows.

    python -m research.step_parts RUN [RUN ...] [--rounds 8]

Each RUN is the folder of a run, finished or not: its `config.yaml`, its text and its scores are
read, nothing is written to it. The first one is what the others are compared with. All students
are in memory at once, and take turns, so that whatever else the machine does meets all of them.
A timed step has one micro-batch, whatever `train.global_batch` is.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import accelerate
import torch

from vocagno.errors import InputError, require
from vocagno.models.head import hidden_states
from vocagno.training import step as step_module
from vocagno.training.configuration import kept_config
from vocagno.training.inputs import resolve
from vocagno.training.loop import Training
from vocagno.training.main import start

PARTS = ("collator", "forward", "head and loss", "backward", "optimizer")
"""The head's own gradient is made in the forward pass, and belongs to "head and loss"."""


@dataclass
class Timed:
    """A run that takes steps, and the seconds of each part of each step."""

    name: str
    training: Training
    seconds: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    losses: list[float] = field(default_factory=list)
    """The trained loss of each step in nats a kept token: a run that learns nothing shows."""

    def step(self, numbers: Sequence[int]) -> None:
        """Trains on the rows of these numbers as one micro-batch, and notes the time."""
        training, device = self.training, self.training.accelerator.device
        rows = [training.inputs.rows[number] for number in numbers]
        batch, collator = _timed(partial(training.collator, rows))
        batch = batch.to(device)
        base_seconds = []

        def timed_base(*arguments: Any, **named: Any) -> Any:
            states, seconds = _timed(partial(hidden_states, *arguments, **named))
            base_seconds.append(seconds)
            return states

        forward = partial(training.student, **batch.inputs(), num_kept=batch.counts.kept)
        with mock.patch.object(step_module, "hidden_states", timed_base):
            output, whole = _timed(forward)
        loss = output.loss / max(1, batch.counts.kept)
        _, backward = _timed(partial(training.accelerator.backward, loss))
        _, optimizer = _timed(training.stepper.update)
        base = sum(base_seconds)
        for part, seconds in zip(
            PARTS, (collator, base, whole - base, backward, optimizer), strict=True
        ):
            self.seconds[part].append(seconds)
        self.losses.append(float(loss.detach()))


def _timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a function and its seconds, with the work that it leaves to a GPU."""
    began = time.perf_counter()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - began


def load(runs: Sequence[Path]) -> Iterator[Timed]:
    """Loads the runs, with one accelerator for all.

    Raises: InputError for a teacher that answers during training: its time is not the student's;
        and for a run of other rows or another precision than the first one's.
    """
    accelerator: accelerate.Accelerator | None = None
    shared: dict[str, Any] = {}
    for run in runs:
        config = kept_config(run)
        require(config.teacher.mode != "live", f"{run}: teacher.mode: live: has no stored scores")
        # One accelerator has one precision, and rows of another text or length take other times.
        for name in "train.precision", "train.micro_batch", "data.seq_len", "data.train":
            value = attrgetter(name)(config)
            first = shared.setdefault(name, value)
            require(first == value, f"{run}: {name}: is {value}, and {first} in the first run")
        train = replace(config.train, sample_every=None, log_with=[])
        data = replace(config.data, validation=None)
        config = replace(config, train=train, data=data)
        accelerator = accelerator or start(config)
        inputs = resolve(config, accelerator.device, show_progress=False)
        yield Timed(run.name, Training(inputs, accelerator, run=""))


def table(timed: Sequence[Timed]) -> str:
    """The medians in milliseconds as a table in Markdown; `of the first` compares whole steps."""
    columns = ["run", *PARTS, "step", f"of {timed[0].name}"]
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " --: |" * (len(columns) - 1)]
    steps = {
        run.name: [sum(parts) for parts in zip(*run.seconds.values(), strict=True)] for run in timed
    }
    for run in timed:
        cells = [f"{1000 * median(seconds):,.0f}" for seconds in run.seconds.values()]
        seconds, first_seconds = steps[run.name], steps[timed[0].name]
        # The ratio of each round, as a round meets the same load of the machine.
        ratio = median(a / b for a, b in zip(seconds, first_seconds, strict=True))
        cells += [f"{1000 * median(seconds):,.0f}", f"{ratio:.3f}"]
        lines.append(f"| {run.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table, and a line of JSON with the seconds and losses of each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folder of a run: its `output`")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each run, after one more")
    options = parser.parse_args()
    try:
        timed = list(load(options.runs))
        for round_number in range(options.rounds + 1):
            for run in timed:
                size = run.training.train.micro_batch
                first = round_number * size % max(1, len(run.training.inputs.rows) - size)
                run.step(range(first, first + size))
        for run in timed:  # in the first round the memory is allocated
            run.seconds = {part: seconds[1:] for part, seconds in run.seconds.items()}
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    print(table(timed))
    for run in timed:
        threads = torch.get_num_threads()
        print(json.dumps({"run": run.name, "threads": threads, "losses": run.losses}))


if __name__ == "__main__":
    main()
