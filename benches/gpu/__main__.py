"""Runs the parts in order, each in a process of its own and within its own limit.

    PYTHONPATH=benches python -m gpu --out FOLDER [--rehearse] [--seconds 1500] [--parts steps live]

Every line of a part goes to FOLDER/results.jsonl at once, so that a part that fails or hangs costs
itself only. A second start in the same folder skips the parts that are done.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.family import kill
from gpu.preflight import check


@dataclass(frozen=True)
class Part:
    name: str
    """Of a module next to this one."""
    limit: int
    """Seconds on a GPU."""
    goes_on: bool = False
    """Whether a second start finds what the first one left in the part's folder."""

    @property
    def least(self) -> float:
        """Seconds below which it is not begun: it would have to be begun again."""
        return 30 if self.goes_on else self.limit / 2

    def command(self, folder: Path, *, rehearse: bool) -> list[str]:
        module = [sys.executable, "-m", f"gpu.{self.name}", str(folder)]
        return [*module, *(["--rehearse"] if rehearse else [])]


PARTS = (
    Part("tests", 120),
    Part("layouts", 300),
    Part("steps", 330),
    Part("scoring_7b", 210),
    Part("live", 120),
    Part("distances", 60),
    Part("agreement", 120),
    Part("study", 1200, goes_on=True),
)
"""In the order of what is missed most if there is no time for all; the last takes what is left."""


class Results:
    """The lines of a folder; each is on disk before the next is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        self.path.touch()

    def add(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def done(self) -> set[str]:
        """Parts that ended well."""
        lines = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        return {
            line["part"] for line in lines if line["what"] == "part" and line["outcome"] == "done"
        }


def run(part: Part, results: Results, options: argparse.Namespace, limit: float) -> str:
    """Carries a part out; what became of it: done, failed, or timed out."""
    folder = options.out / "work" / part.name
    if not part.goes_on:
        shutil.rmtree(folder, ignore_errors=True)
    log = options.out / f"{part.name}.log"
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            part.command(folder, rehearse=options.rehearse),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        reader = threading.Thread(target=_keep, args=(process, part, results))
        reader.start()
        try:
            outcome = "done" if process.wait(limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        finally:
            kill(process)
        reader.join()
    seconds = round(time.monotonic() - began, 1)
    line = {"what": "part", "part": part.name, "outcome": outcome, "seconds": seconds}
    if outcome != "done":
        line["log"] = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    results.add(line)
    print(f"{part.name}: {outcome} after {seconds:.0f} s", file=sys.stderr, flush=True)
    return outcome


def _keep(process: subprocess.Popen[str], part: Part, results: Results) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        try:
            line = json.loads(text)
        except ValueError:
            print(f"{part.name}: no result: {text}", end="", file=sys.stderr)
            continue
        results.add({"part": part.name} | line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--seconds", type=float, default=1500, help="for all parts together")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--again", action="store_true", help="parts that are done, too")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    check(rehearse=options.rehearse)
    results = Results(options.out)
    done = set() if options.again else results.done()
    wanted = [part for part in PARTS if part.name in (options.parts or {p.name for p in PARTS})]
    bad = 0
    for part in wanted:
        if part.name in done:
            print(f"{part.name}: is done", file=sys.stderr)
            continue
        limit = min(part.limit, deadline - time.monotonic())
        if limit < part.least:
            why = f"{max(0, limit):.0f} s are left, of {part.least:.0f} that it takes at least"
            print(f"{part.name}: {why}; start again to continue", file=sys.stderr)
            bad += 1
            continue
        bad += run(part, results, options, limit) != "done"
    print(results.path)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
