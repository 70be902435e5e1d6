"""Measures what a guided step costs compared with a naive one.

Each command prints JSON, one object a line.

    python benches/training.py step CORPUS --shape 576x49k --student gpt2.json.gz \\
        --eos "<|endoftext|>" --teacher qwen2.5.json.gz
    python benches/training.py all CORPUS --tokenizers FOLDER

A step is: rows collated (guided: aligned with the teacher's scores), forward, backward, clipping,
AdamW. The rows are real text under real tokenizers; weights and the teacher's losses are drawn at
random. Naive are: the model's own logits with torch's cross-entropy; torch's chunked op; liger on
CUDA; and our own `method: cpt`. All take turns in one run, after a check that the guided gradient
is that of all logits. `matching` compares `alm` and `distill` (16 candidates a token, drawn from
the text's tokens, and the buckets of both tokenizers) with `method: cpt` in the same way. Memory is
the peak of a process (on CUDA: of the allocator) that takes two steps of one kind, for each kind
again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gauge import device_name, ratio
from guided_steps import MATCHING, PAIRS, SHAPES, Steps
from machine import machine, print_lines
from vocagno.system.progress import peak_megabytes

CASES = [*((shape, "fp32") for shape in PAIRS), ("576x49k", "bf16")]
"""Shapes and precisions of `all`."""

LARGEST_DIFFERENCE = 1e-4
"""The largest difference of a gradient from that of all logits, relative to its norm, of steps that
are timed."""


def step(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(options, Path(folder))
        difference = require_small("guided", steps.check("guided"))
        seconds = steps.seconds(steps.kinds(), options.repeats)
        rival = steps.rival(seconds)
        collating = _collating(steps, options.repeats, "naive", "guided")
    memory = {kind: peak_of_a_process(__file__, options, kind) for kind in ("guided", rival, "cpt")}
    tokens = options.rows * options.seq_len
    return {
        "what": "step",
        **measured_case(options),
        "gradient_difference": difference,
        "rival": rival,
        "ratio": ratio(seconds["guided"], seconds[rival]),
        "ratio_to_cpt": ratio(seconds["guided"], seconds["cpt"]),
        "tokens_per_second": {k: round(tokens / median(v), 1) for k, v in seconds.items()},
        "seconds": {k: round(median(v), 3) for k, v in seconds.items()},
        "collating_seconds": collating,
        "peak_mb": memory,
        "memory_ratio": round(memory["guided"] / memory[rival], 3),
        **machine("torch", "transformers"),
    }


def matching(options: argparse.Namespace) -> dict:
    """`alm` and `distill` next to `cpt`, on as many threads as torch has."""
    kinds = ("cpt", *MATCHING)
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(options, Path(folder))
        steps.add_matching()
        difference = {kind: require_small(kind, steps.check(kind)) for kind in MATCHING}
        losses = {kind: steps.kinds()[kind] for kind in kinds}
        seconds = steps.seconds(losses, options.repeats)
        collating = _collating(steps, options.repeats, "naive", *MATCHING)
    memory = {kind: peak_of_a_process(__file__, options, kind) for kind in kinds}
    return {
        "what": "matching",
        **measured_case(options),
        "threads": torch.get_num_threads(),
        "gradient_difference": difference,
        "ratio_to_cpt": {kind: ratio(seconds[kind], seconds["cpt"]) for kind in MATCHING},
        "seconds": {kind: round(median(of_kind), 3) for kind, of_kind in seconds.items()},
        "collating_seconds": collating,
        "peak_mb": memory,
        "memory_ratio": {kind: round(memory[kind] / memory["cpt"], 3) for kind in MATCHING},
        **machine("torch", "transformers"),
    }


def require_small(kind: str, difference: float) -> float:
    """Returns a gradient's difference. Raises: SystemExit if it is so large that the steps compute
    something else, whose time would say nothing."""
    if not difference <= LARGEST_DIFFERENCE:
        raise SystemExit(f"{kind}: the gradient differs from that of all logits by {difference}")
    return difference


def measured_case(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the part of a line of results that describes the shape."""
    return {
        "shape": options.shape,
        "layers": SHAPES[options.shape]["num_hidden_layers"],
        "precision": options.precision,
        "device": device_name(),
        "rows": options.rows,
        "seq_len": options.seq_len,
    }


def _collating(steps: Steps, repeats: int, *kinds: str) -> dict[str, float]:
    seconds = {}
    for kind in kinds:
        began = time.perf_counter()
        for _ in range(repeats):
            steps.batch(kind)
        seconds[kind] = round((time.perf_counter() - began) / repeats, 4)
    return seconds


def peak_of_a_process(script: str, options: argparse.Namespace, kind: str, *extra: object) -> float:
    """The peak in MB of a process that runs `script memory`, with `extra` options.

    A process of its own for each kind: the peak of a process never falls.
    """
    arguments = [
        "memory",
        options.corpus,
        "--shape",
        options.shape,
        "--student",
        options.student,
        "--eos",
        options.eos,
        "--teacher",
        options.teacher,
        "--rows",
        options.rows,
        "--seq-len",
        options.seq_len,
        "--precision",
        options.precision,
        "--kind",
        kind,
        *extra,
    ]
    command = [sys.executable, script, *map(str, arguments)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout.splitlines()[-1])["peak_mb"]


def memory(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(options, Path(folder))
        if options.kind in MATCHING:
            steps.add_matching()
        return peak(steps, options.kind, steps.kinds()[options.kind])


def peak(steps: Steps, kind: str, loss: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Measures the peak memory of this process over two steps: the second one has the optimizer's
    state, which the first one makes."""
    for _ in range(2):
        steps.step(loss)
    if steps.device.type == "cuda":
        return {"kind": kind, "peak_mb": round(torch.cuda.max_memory_allocated() / 1e6)}
    return {"kind": kind, "peak_mb": round(peak_megabytes())}


def everything(options: argparse.Namespace) -> Iterator[dict]:
    yield from map(step, cases(options))
    yield from map(matching, cases(options))


def cases(options: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Options of `step` for each case."""
    for shape, precision in CASES:
        student, eos, teacher = PAIRS[shape]
        files = [str(options.tokenizers / f"{name}.json.gz") for name in (student, teacher)]
        chosen = {"student": files[0], "eos": eos, "teacher": files[1]}
        yield argparse.Namespace(
            **{**vars(options), **chosen, "shape": shape, "precision": precision}
        )


def commands(
    description: str, *functions: Callable[[argparse.Namespace], Any]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """A parser with a command for each function, `all` for `everything`; and those commands."""
    parser = argparse.ArgumentParser(description=description)
    parsers, group = {}, parser.add_subparsers(required=True)
    for function in functions:
        name = "all" if function.__name__ == "everything" else function.__name__
        command = parsers[name] = group.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("corpus", type=Path)
        command.add_argument("--rows", type=int, default=2)
        command.add_argument("--seq-len", type=int, default=1024)
        command.add_argument("--repeats", type=int, default=7)
        if name == "all":
            command.add_argument("--tokenizers", type=Path, required=True)
            continue
        command.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
        command.add_argument("--shape", choices=SHAPES, required=True)
        command.add_argument("--student", required=True)
        command.add_argument("--eos", required=True)
        command.add_argument("--teacher", required=True)
    return parser, parsers


def main() -> None:
    parser, parsers = commands(__doc__.splitlines()[0], step, matching, memory, everything)
    parsers["memory"].add_argument("--kind", default="guided")
    options = parser.parse_args()
    print_lines(options.function(options))


if __name__ == "__main__":
    main()
