"""A line for a trainer that cannot be installed next to the project's torch, with the reason.

PYTHONPATH=benches python -m bridges.unmet NAME==VERSION

Only the wheel is fetched, for what it requires.
"""

import email
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from bridges.comparison import print_line
from bridges.environment import BORROWED


def requirements(package: str) -> list[Requirement]:
    with tempfile.TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*fetch, package], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            (name,) = (one for one in file.namelist() if one.endswith(".dist-info/METADATA"))
            fields = email.message_from_bytes(file.read(name))
    return list(map(Requirement, fields.get_all("Requires-Dist", [])))


def main() -> None:
    for package in sys.argv[1:]:
        name, _, release = package.partition("==")
        print_line(name, release, outcome=why_not(package))


def why_not(package: str) -> str:
    for one in requirements(package):
        applies = one.marker is None or one.marker.evaluate({"extra": ""})
        if one.name in BORROWED and applies and version(one.name) not in one.specifier:
            return f"not run: it requires {one.name}{one.specifier}, here is {version(one.name)}"
    raise SystemExit(f"{package}: all that it requires of {', '.join(BORROWED)} is there; run it")


if __name__ == "__main__":
    main()
