"""The tests that need a CUDA device; in a rehearsal they run on the CPU."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu.part import main
from gpu.sizes import Sizes

TESTS = ("tests/end_to_end/test_gpu.py", "tests/end_to_end/test_gpu_training.py")


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    """One line: how many passed, and which did not."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    environment = dict(os.environ) | {"VOCAGNO_REHEARSE_GPU": "1"}  # nothing to a machine with CUDA
    done = subprocess.run(
        [*command, f"--junitxml={report}"], stdout=sys.stderr, env=environment, check=False
    )
    if not report.is_file():
        raise SystemExit(f"pytest ended with status {done.returncode} and without a report")
    cases = list(ElementTree.parse(report).iter("testcase"))
    wrong = {
        case.get("name"): (found.get("message") or "").splitlines()[:1]
        for case in cases
        for found in case
        if found.tag in ("failure", "error")
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield {
        "what": "tests",
        "passed": len(cases) - len(wrong) - skipped,
        "failed": len(wrong),
        "skipped": skipped,
        "failures": {name: "".join(why)[:300] for name, why in wrong.items()},
    }
    if done.returncode != 0:
        raise SystemExit(f"pytest ended with status {done.returncode}")


if __name__ == "__main__":
    main(measure)
