"""Counts the instructions of the kernels, under valgrind: times on shared machines are noise.

    python benches/instructions.py PROGRAM

PROGRAM is the example `kernels`. Fails if a kernel takes more a token than its bound, some 10 %
above what it took when the bound was set (rustc 1.95, x86-64).
"""

import platform
import re
import shutil
import subprocess
import sys

TOKENS = 65_536
BOUNDS = {"align": 60, "reduce": 44, "spans": 88}
"""Instructions a student token."""


def count(program: str, kernel: str, times: int) -> int:
    """Instructions of a whole run."""
    command = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        program,
        kernel,
        str(times),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if count is None:
        raise SystemExit(f"no instruction count in what valgrind printed:\n{done.stderr}")
    return int(count[1].replace(",", ""))


def main() -> int:
    if not shutil.which("valgrind") or platform.machine() != "x86_64":
        print("not counted: needs valgrind on x86-64")
        return 0
    failed = 0
    for kernel, bound in BOUNDS.items():
        few, many = (count(sys.argv[1], kernel, times) for times in (2, 6))
        cost = (many - few) / 4 / TOKENS  # the set-up is in both runs
        failed |= cost > bound
        print(f"{kernel}: {cost:.1f} instructions a token, at most {bound}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
