"""A line for a trainer that the package registry does not have.

PYTHONPATH=benches python -m bridges.unmet NAME==VERSION ...
"""

import subprocess
import sys

from bridges.comparison import print_line


def releases(name: str) -> list[str]:
    """What the registry has under this name, of whomever."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--pre", name]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (line,) = (one for one in said.splitlines() if one.startswith("Available versions: "))
    return line.partition(": ")[2].split(", ")


def main() -> None:
    for package in sys.argv[1:]:
        name, _, release = package.partition("==")
        found = releases(name)
        if release in found:
            raise SystemExit(f"{package}: the registry has it; run it")
        why = f"not run: the registry has no such release, only {', '.join(found)}"
        print_line(name, release, outcome=why)


if __name__ == "__main__":
    main()
