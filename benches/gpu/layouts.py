"""`train.py` and `vocagno score` as users start them, small: one process, DDP and FSDP2 under NCCL
(world size 1), each whole, and killed and resumed; live, sharded and tensor-parallel teachers;
compared with the same run on the CPU in float32.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import yaml

from gpu.family import kill
from gpu.material import small_run
from gpu.part import main
from gpu.sizes import Sizes

ROOT = Path(__file__).parents[2]
LAUNCHERS = {
    "single": ["accelerate.commands.launch", "--config_file", "configs/accelerate/single_gpu.yaml"],
    "ddp": ["torch.distributed.run", "--nproc_per_node", "1"],
    "fsdp2": [
        "accelerate.commands.launch",
        "--config_file",
        "configs/accelerate/fsdp2.yaml",
        "--num_processes",
        "1",
    ],
}
ON_CPU = ["accelerate.commands.launch", "--config_file", "configs/accelerate/cpu.yaml"]
THREADS = str(max(1, (os.cpu_count() or 1) // 4))
"""Of a run on the CPU, next to others."""
LIMIT = 150
"""Seconds of one run."""
LARGEST_DIFFERENCE = 0.01
"""Of a step's loss, relative: what bfloat16 makes of other kernels."""
STEPS, CHECKPOINT_EVERY, KILL_AFTER = 24, 6, 8
RESUMED = "resuming from step"
"""What `train.py` prints when it resumes."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    launcher: str
    options: tuple[str, ...] = ()
    is_killed: bool = False
    on_cpu: bool = False
    like: str | None = None
    """The run whose losses it must have, but for rounding."""
    needs_gpu: bool = False
    """Skipped in a rehearsal, in which another one takes the same way."""


LIVE = ("--teacher.mode", "live")
FULL_PRECISION = ("--train.precision", "fp32")
CELLS = [
    Cell("cpu, fp32", "single", FULL_PRECISION, on_cpu=True),
    Cell("single, fp32", "single", FULL_PRECISION, like="cpu, fp32", needs_gpu=True),
    Cell("single", "single"),
    Cell("ddp", "ddp", like="single"),
    Cell("fsdp2", "fsdp2", like="single", needs_gpu=True),
    Cell("single, killed", "single", is_killed=True, like="single", needs_gpu=True),
    Cell("ddp, killed", "ddp", is_killed=True, like="ddp"),
    Cell("fsdp2, killed", "fsdp2", is_killed=True, like="fsdp2", needs_gpu=True),
    Cell(
        "single, compiled",
        "single",
        ("--train.compile", "true"),
        needs_gpu=True,
        like="single",
    ),
    Cell("single, live", "single", LIVE),
    Cell(
        "fsdp2, live, sharded",
        "fsdp2",
        (*LIVE, "--teacher.shard", "true"),
        needs_gpu=True,
        like="single, live",
    ),
    Cell("single, uld", "single", (*LIVE, "--guidance.method", "uld"), needs_gpu=True),
    Cell("single, chunk", "single", ("--guidance.method", "chunk"), needs_gpu=True),
]


SCORING = (
    ("scores", "single"),
    ("scores, tensor parallel", "ddp", "--teacher.tensor_parallel", "true"),
)
"""Name, launcher and options of `vocagno score`."""


class Runs:
    """Runs that share texts, tokenizers, a teacher and a cache of rows and scores."""

    def __init__(self, sizes: Sizes, folder: Path, *, has_gpu: bool) -> None:
        self.folder, self.has_gpu = folder, has_gpu
        made, shared = small_run(folder, sizes)
        self.corpus, self.teacher = made.corpus, made.teacher.parent
        self.config = folder / "run.yaml"
        self.config.write_text(
            yaml.safe_dump(
                shared
                | {
                    "optimizer": {"lr": 1e-3, "min_lr": 1e-4},
                    "train": {
                        "steps": STEPS,
                        "global_batch": 2 * sizes.small_rows,
                        "micro_batch": sizes.small_rows,
                        "precision": "bf16",
                        "log_every": 1,
                        "eval_every": STEPS,
                        "checkpoint_every": CHECKPOINT_EVERY,
                    },
                }
            )
        )

    def carried_out(self, cell: Cell) -> dict[str, Any]:
        """Runs a cell, twice if the first one is to be killed, and reads what it logged."""
        began = time.monotonic()
        output = self.folder / _slug(cell.name)
        line: dict[str, Any] = {"what": "layout", "layout": cell.name}
        if cell.is_killed:
            killed, step = self._kill(cell, output)
            line["killed_after_step"] = step
            if not killed or not KILL_AFTER <= step < STEPS:
                return line | {"outcome": "ended before it could be killed"}
        status, words = self._finished(self._start(cell, output))
        if status != 0:
            return line | {"outcome": f"status {status}", "words": _told(words)}
        if cell.is_killed and RESUMED not in words:
            return line | {"outcome": "did not resume", "words": _told(words)}
        entries = _entries(output)
        losses = {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}
        held_out = [entry["validation_loss"] for entry in entries if "validation_loss" in entry]
        if sorted(losses) != list(range(1, STEPS + 1)):
            return line | {"outcome": f"logged steps {sorted(losses)}"}
        return line | {
            "outcome": "done",
            "losses": list(losses.values()),
            "validation_loss": held_out[-1],
            "seconds": round(time.monotonic() - began, 1),
        }

    def scored(self, name: str, launcher: str, *options: str) -> dict[str, Any]:
        """`vocagno score` through a launcher."""
        began = time.monotonic()
        module = [*self._launched(launcher, on_cpu=not self.has_gpu), "-m", "vocagno"]
        command = [
            *module,
            "score",
            str(self.corpus),
            "--teacher.model",
            str(self.teacher),
            "--teacher.context",
            "64",
            "--out",
            str(self.folder / _slug(name)),
            *options,
        ]
        status, words = self._finished(self._popen(command, on_cpu=not self.has_gpu))
        line = {"what": "layout", "layout": name, "seconds": round(time.monotonic() - began, 1)}
        if status != 0:
            return line | {"outcome": f"status {status}", "words": _told(words)}
        return line | {"outcome": "done"}

    def _launched(self, launcher: str, *, on_cpu: bool) -> list[str]:
        modules = ON_CPU if on_cpu and launcher == "single" else LAUNCHERS[launcher]
        port = "--master_port" if launcher == "ddp" else "--main_process_port"
        return [sys.executable, "-m", *modules, port, str(_free_port())]

    def _start(self, cell: Cell, output: Path) -> subprocess.Popen[str]:
        on_cpu = cell.on_cpu or not self.has_gpu
        command = [
            *self._launched(cell.launcher, on_cpu=on_cpu),
            "train.py",
            "--config",
            str(self.config),
            "--output",
            str(output),
            *cell.options,
        ]
        return self._popen(command, on_cpu=on_cpu)

    def _popen(self, command: list[str], *, on_cpu: bool) -> subprocess.Popen[str]:
        environment = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": THREADS}
        if on_cpu:
            environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        if not self.has_gpu:  # a rehearsal does without the compiler, which takes a minute
            environment |= {"TORCH_COMPILE_DISABLE": "1"}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _finished(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            words, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            kill(process)
            words, _ = process.communicate()
            return 124, f"{words}\nkilled after {LIMIT} s"
        return process.returncode, words

    def _kill(self, cell: Cell, output: Path) -> tuple[bool, int]:
        """SIGKILL for the launcher and all its processes once a step was logged; whether it was
        still running, and which step."""
        process = self._start(cell, output)
        deadline = time.monotonic() + LIMIT
        step = 0
        while process.poll() is None and time.monotonic() < deadline and step < KILL_AFTER:
            time.sleep(0.02)
            if (output / "metrics.jsonl").is_file():
                step = max((entry["step"] for entry in _entries(output)), default=0)
        killed = kill(process)
        process.communicate()
        return killed, step


def _slug(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "-")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _told(words: str) -> str:
    """The error that a run ended with, else the end of what it printed."""
    errors = [line for line in words.splitlines() if line.startswith("error: ")]
    return errors[0] if errors else words[-1000:]


def _entries(output: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last one may be half written."""
    whole = (output / "metrics.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    runs = Runs(sizes, folder, has_gpu=torch.cuda.is_available())
    cells = [cell for cell in CELLS if runs.has_gpu or not cell.needs_gpu]
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 1) // 4)) as pool:
        first = runs.carried_out(cells[0])  # makes rows and scores, which the others find
        for cell, line in zip(
            cells, chain([first], pool.map(runs.carried_out, cells[1:])), strict=True
        ):
            found[cell.name] = line | _compared(line, found.get(cell.like or ""))
            yield found[cell.name]
    for name, launcher, *options in SCORING:
        found[name] = runs.scored(name, launcher, *options)
        yield found[name]
    wrong = [name for name, line in found.items() if line["outcome"] != "done"]
    if wrong:
        raise SystemExit(f"went wrong: {'; '.join(wrong)}")


def _compared(line: dict[str, Any], expected: dict[str, Any] | None) -> dict[str, Any]:
    """The largest relative difference of a step's loss from that of the run it must be like."""
    if expected is None or "losses" not in line or "losses" not in expected:
        return {}
    pairs = zip(line["losses"], expected["losses"], strict=True)
    largest = max(abs(mine - theirs) / theirs for mine, theirs in pairs)
    found = {"compared_with": expected["layout"], "largest_difference": largest}
    return found | ({"outcome": "other losses"} if largest > LARGEST_DIFFERENCE else {})


if __name__ == "__main__":
    main(measure)
