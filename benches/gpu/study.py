"""`configs/study/gpu.yaml`, as many of its runs as there is time for; a run is a line as soon as it
is measured, and a later start continues with the rest.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

from gpu.family import kill
from gpu.material import small_run
from gpu.part import main
from gpu.sizes import Sizes
from research.study.carrying_out import measured_so_far
from research.study.plan import read_plan

PLAN = Path("configs/study/gpu.yaml")
PROCESSES = 3
"""That share the runs of a GPU: models this small leave most of it idle."""


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    has_gpu = torch.cuda.is_available()
    plan = PLAN if has_gpu else _small_plan(sizes, folder)
    out = folder / "study"
    command = [sys.executable, "-m", "research.study", str(plan), "--out", str(out)]
    running = [
        subprocess.Popen(command, stdout=sys.stderr) for _ in range(PROCESSES if has_gpu else 1)
    ]
    try:
        yield from _as_they_end(running, plan, out)
    finally:
        for process in running:
            kill(process)


def _as_they_end(
    running: list[subprocess.Popen[bytes]], plan: Path, out: Path
) -> Iterator[dict[str, Any]]:
    """A line for each run that is measured, until the processes that share them end."""
    seen: set[tuple[str, int]] = set()
    while True:
        done = [process.poll() for process in running]
        if out.is_dir():
            for run in measured_so_far(read_plan(plan), out, {}):
                if (run.variant, run.seed) not in seen:
                    seen.add((run.variant, run.seed))
                    yield {"what": "run", "plan": PLAN.name} | asdict(run)
        if None not in done:
            break
        time.sleep(1)
    if any(done):
        raise SystemExit(f"the study ended with status {max(done)}")


def _small_plan(sizes: Sizes, folder: Path) -> Path:
    """The same plan over tiny models that are made here: three variants, one seed."""
    _, shared = small_run(folder, sizes)
    config = folder / "run.yaml"
    config.write_text(
        yaml.safe_dump(
            shared
            | {"train": {"steps": sizes.steps, "global_batch": 2, "micro_batch": 2, "log_every": 1}}
        )
    )
    plan = yaml.safe_load(PLAN.read_text())
    del plan["assets"], plan["noise"]
    plan |= {"config": str(config), "seeds": [0]}
    sizes_of_plan = [name for name in plan["common"] if name.startswith("student.")]
    for name in sizes_of_plan:
        del plan["common"][name]
    kept = list(plan["variants"])[:3]
    plan["variants"] = {name: {**plan["variants"][name]} for name in kept}
    for options in plan["variants"].values():
        del options["data.train"]
    plan["tables"] = {"all": kept}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


if __name__ == "__main__":
    main(measure)
