"""Sizes of the project and directions of its imports, each with its bound: `python .ci/house.py`.

A bound is what the project has reached, not what it may grow to: a change that needs more of one
takes it away elsewhere, and one that needs less lowers it. `make lint` runs this. Distributions
across vocabularies took 1,660 lines of the package, 4 modules, and 1,820 lines of tests; stores on
S3 394, 2 and 438; candidates in other trainers 191 and 154, and what reviewers found in them 46 and
74; checks of what is loaded, graded and read, own rules and the gate by entropy 1,070, 2 and 1,590,
which a change that makes room has to earn again.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).parents[1]
BOUNDS = {
    "lines of python/vocagno": 29_140,
    "modules of python/vocagno": 131,
    "lines of research": 2_165,
    "lines of tests": 32_330,
    "modules of the largest folder": 13,
    "modules in circles of imports": 0,
    "project files of a training step": 25,
}


def files(folder: str) -> list[str]:
    """Those that git knows, or would add."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"{folder}/**.py"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def lines(folder: str) -> int:
    return sum((ROOT / name).read_bytes().count(b"\n") for name in files(folder))


def circles(graph: grimp.ImportGraph) -> Iterator[str]:
    """The modules from which a chain of imports leads back, imports for types included.

    `from vocagno import _vocagno` takes what is compiled, and counts as no import of the package.
    """
    for importer in graph.find_modules_that_directly_import("vocagno"):
        arrow = {"importer": importer, "imported": "vocagno"}
        if all("_vocagno" in one["line_contents"] for one in graph.get_import_details(**arrow)):
            graph.remove_import(**arrow)
    for module in graph.modules:
        others = graph.find_modules_directly_imported_by(module)
        if any(graph.chain_exists(importer=one, imported=module) for one in others):
            yield module


def step_files() -> list[str]:
    command = [sys.executable, str(ROOT / ".ci" / "step_files.py")]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()


def measured() -> dict[str, int]:
    """Each figure that has a bound."""
    modules = files("python/vocagno")
    folders = Counter(
        str(PurePosixPath(name).parent) for name in modules if not name.endswith("/__init__.py")
    )
    graph = grimp.build_graph("vocagno", exclude_type_checking_imports=False, cache_dir=None)
    return {
        "lines of python/vocagno": lines("python/vocagno"),
        "modules of python/vocagno": len(modules),
        "lines of research": lines("research"),
        "lines of tests": lines("tests"),
        "modules of the largest folder": max(folders.values()),
        "modules in circles of imports": len(list(circles(graph))),
        "project files of a training step": len(step_files()),
    }


def main() -> int:
    found = measured()
    for name, value in found.items():
        over = " over its bound" if value > BOUNDS[name] else ""
        print(f"{name:40}{value:>8,} of {BOUNDS[name]:,}{over}")
    return int(any(value > BOUNDS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
