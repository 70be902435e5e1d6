"""Installs a wheel into an empty environment of every Python that is found, and uses it there.

    python tests/smoke.py dist/vocagno-*.whl

Pythons are those in PATH, pyenv's, and the one that runs this. Each installation is tried once.
Sources (.tar.gz, which take a Rust toolchain) are tried with the Python that runs this only. Fails
if the wheel is as large as a megabyte, if no Python fits, or if one of them does not do what the
README says of NumPy.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

LARGEST = 1_050_000
OLDEST = 10
PROGRAM = re.compile(r"python(3(\.\d+t?)?)?(\.exe)?")
USE = """
import sys
from importlib.resources import files
from importlib.util import find_spec
import numpy as np
import vocagno
student = np.array([[0, 5], [5, 9]], np.int32)
teacher = np.array([[0, 2], [2, 7], [7, 9]], np.int32)
mapping = vocagno.align(student, teacher)
assert mapping.tolist() == [[0, 2], [1, 3]]
assert vocagno.reduce(np.array([1.5, 0.25, 0.75]), mapping, how="max").tolist() == [1.5, 0.75]
assert vocagno.groups(student, teacher).teacher.tolist() == [[0, 3]]
assert vocagno.unmapped_reasons(student, teacher, mapping).tolist() == [0, 0]
try:
    vocagno.align(student, teacher[::-1].copy())
except vocagno.SpanError as error:
    assert "teacher_spans: row 0, token 1" in str(error)
else:
    raise SystemExit("spans out of order were taken")
assert not {"torch", "tokenizers", "transformers"} & set(sys.modules)
assert (files("vocagno.quickstart") / "guided.yaml").is_file()
assert find_spec("research") is None
print(sys.version.split()[0], "numpy", np.__version__, "vocagno", vocagno.__version__)
"""
ASK = """
import json, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([sys.base_prefix, sys.version_info[0], sys.version_info[1], free]))
"""


@dataclass(frozen=True)
class Python:
    """An installation of Python 3."""

    prefix: str
    minor: int
    free_threaded: bool

    def takes(self, package: str) -> bool:
        """Whether a wheel of this name, or sources, can be installed."""
        if not package.endswith(".whl"):
            return self.minor >= OLDEST
        python, abi = package.split("-")[-3:-1]
        built_for = int(python.removeprefix("cp3"))
        if abi == "abi3":
            return self.minor >= built_for and not self.free_threaded
        return self.minor == built_for and self.free_threaded == abi.endswith("t")


def programs() -> list[str]:
    """Everything that looks like a Python."""
    folders = [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    folders += sorted(Path.home().glob(".pyenv/versions/*/bin"))
    paths = (path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("python*")))
    return [str(path) for path in paths if PROGRAM.fullmatch(path.name)]


def pythons(candidates: list[str]) -> dict[Python, str]:
    """A program of each installation; those that do not run, and Python 2, are skipped."""
    installed: dict[Python, str] = {}
    for program in candidates:
        try:
            asked = [program, "-I", "-c", ASK]
            answer = subprocess.run(asked, capture_output=True, check=True, timeout=60)
            prefix, major, minor, free_threaded = json.loads(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):  # a shim, Windows' alias
            continue
        if major == 3:
            prefix = str(Path(prefix).resolve())
            installed.setdefault(Python(prefix, minor, free_threaded), program)
    return installed


def use(package: Path, program: str) -> None:
    """Installs with the pip of this Python: those of Debian bring none."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        subprocess.run([program, "-m", "venv", "--without-pip", folder], check=True)
        pip = [sys.executable, "-m", "pip", "--python", folder, "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", package], check=True)
        subprocess.run([python, "-I", "-c", USE], check=True, cwd=folder)


def main() -> None:
    """Prints a line for each Python."""
    (package,) = map(Path, sys.argv[1:])
    is_wheel, size = package.suffix == ".whl", package.stat().st_size
    print(f"{package.name}: {size:,} bytes", flush=True)
    if is_wheel and size >= LARGEST:
        sys.exit(f"expected fewer than {LARGEST:,}")
    installed = pythons(programs() if is_wheel else [sys.executable])
    fitting = {py: program for py, program in installed.items() if py.takes(package.name)}
    if not fitting:
        sys.exit(f"no Python for it among {list(installed)}")
    for py, program in sorted(fitting.items(), key=lambda item: item[0].minor):
        print(f"3.{py.minor}{'t' * py.free_threaded} in {py.prefix}:", end=" ", flush=True)
        use(package, program)


if __name__ == "__main__":
    main()
