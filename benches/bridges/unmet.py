"""A line for a trainer that the package registry does not have.

PYTHONPATH=benches python -m bridges.unmet NAME==VERSION ...
"""

import subprocess
import sys

from bridges.comparison import print_line


def releases(name: str) -> list[str]:
    """The releases that the registry has under this name, whoever published them."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--pre", name]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (line,) = (row for row in output.splitlines() if row.startswith("Available versions: "))
    return line.partition(": ")[2].split(", ")


def main() -> None:
    for package in sys.argv[1:]:
        name, _, release = package.partition("==")
        published = releases(name)
        if release in published:
            raise SystemExit(f"{package}: the registry has it; run it")
        outcome = f"not run: the registry has no such release, only {', '.join(published)}"
        print_line(name, release, outcome=outcome)


if __name__ == "__main__":
    main()
