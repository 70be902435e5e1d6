"""Makes a virtual environment for a bridge, which borrows torch from the one that runs this.

PYTHONPATH=benches python -m bridges.environment FOLDER REQUIREMENT ... [--no-deps REQUIREMENT ...]

torch, NumPy and what these need are linked; everything else is installed as the trainer wants it.
What comes after `--no-deps` is installed without what it requires.
"""

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

BORROWED = "torch", "numpy"


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """These distributions and all that they require."""
    distributions: dict[str, Distribution] = {}
    waiting = list(map(Requirement, names))
    while waiting:
        requirement = waiting.pop()
        if (key := str(requirement)) not in distributions:
            distributions[key] = distribution(requirement.name)
            extras = [{"extra": extra} for extra in ("", *requirement.extras)]
            further = map(Requirement, distributions[key].requires or [])
            waiting += [r for r in further if not r.marker or any(map(r.marker.evaluate, extras))]
    return distributions


def link(folder: Path) -> None:
    """Links to the packages, and to the metadata that says that they are installed."""
    folder.mkdir()
    for package in closure(BORROWED).values():
        tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(package.locate_file(top))


def main() -> None:
    folder, requirements = Path(sys.argv[1]).absolute(), sys.argv[2:]
    venv.create(folder, with_pip=True, clear=True)
    (site,) = folder.glob("lib/python*/site-packages")
    link(folder / "borrowed")
    (site / "borrowed.pth").write_text(f"{folder / 'borrowed'}\n")
    at = requirements.index("--no-deps") if "--no-deps" in requirements else len(requirements)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for part in (requirements[:at], requirements[at:]):
        if part:
            subprocess.run([*install, *part], check=True)


if __name__ == "__main__":
    main()
