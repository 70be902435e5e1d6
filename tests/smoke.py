"""Installs a wheel into an empty environment of every Python that can be had, and uses it there.

    python tests/smoke.py dist/vocagno-*.whl

Pythons are `python3.10` and later in PATH, pyenv's, and the one that runs this; of sources
(.tar.gz, which take a Rust toolchain) that one alone. Fails if the wheel is as large as a megabyte,
or if one of them does not do what the README says of NumPy alone.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LARGEST = 1_000_000
MINORS = range(10, 16)
USE = """
import sys
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
print(sys.version.split()[0], "numpy", np.__version__, "vocagno", vocagno.__version__)
"""


def pythons() -> list[str]:
    """One for each minor version."""
    found = []
    for minor in MINORS:
        named = shutil.which(f"python3.{minor}")
        others = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for candidate in [*([named] if named else []), *map(str, others), sys.executable]:
            asked = [candidate, "-c", "import sys, venv; print(sys.version_info[1])"]
            answer = subprocess.run(asked, capture_output=True, text=True, check=False)
            if answer.returncode == 0 and answer.stdout.strip() == str(minor):
                found.append(candidate)
                break
    return found


def main() -> None:
    """Prints a line for each Python."""
    (package,) = map(Path, sys.argv[1:])
    is_wheel, size = package.suffix == ".whl", package.stat().st_size
    print(f"{package.name}: {size:,} bytes", flush=True)
    if is_wheel and size >= LARGEST:
        sys.exit(f"expected fewer than {LARGEST:,}")
    for python in pythons() if is_wheel else [sys.executable]:
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
            subprocess.run([python, "-m", "venv", folder], check=True)
            install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, package], check=True)
            subprocess.run([own, "-I", "-c", USE], check=True, cwd=folder)


if __name__ == "__main__":
    main()
