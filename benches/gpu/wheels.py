"""Collects the wheels that a machine with a GPU and without a network needs: `make gpu-wheels`.

    PYTHONPATH=benches python -m gpu.wheels FOLDER --python-version 3.12

Raises an error if a requirement is neither among them nor expected there, and if they, or they and
the checkout, are larger than what is carried.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from gpu.packages import CARRIED, SOURCES, installed, missing, sources_digest

LARGEST = 60 * 1000**2
"""Bytes of all wheels."""
LARGEST_WITH_CHECKOUT = 64 * 2**20


def collect(folder: Path, python_version: str) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    maturin = [sys.executable, "-m", "maturin", "build", "--quiet", "--release"]
    subprocess.run([*maturin, "--out", str(folder)], check=True)
    (folder / SOURCES).write_text(sources_digest(Path.cwd()))
    versions = {name: installed(name) for name in CARRIED}
    wanted = [
        name if version is None else f"{name}=={version}" for name, version in versions.items()
    ]
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run(
        [
            *download,
            "--only-binary",
            ":all:",
            "--python-version",
            python_version,
            "--platform",
            "manylinux_2_28_x86_64",
            "--platform",
            "any",
            "--dest",
            str(folder),
            *wanted,
        ],
        check=True,
    )
    return sorted(folder.glob("*.whl"))


def checkout_bytes() -> int:
    """Of the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout
    paths = map(Path, listed.decode().rstrip("\0").split("\0"))
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-version", default="3.12")
    options = parser.parse_args()
    wheels = collect(options.folder, options.python_version)
    if lacking := missing(wheels):
        raise SystemExit(f"no wheel of: {', '.join(lacking)}; name it in benches/gpu/packages.py")
    carried = sum(path.stat().st_size for path in wheels)
    together = carried + checkout_bytes()
    if carried > LARGEST or together > LARGEST_WITH_CHECKOUT:
        raise SystemExit(
            f"the wheels are {carried / 1e6:.1f} MB (limit {LARGEST / 1e6:.0f}), with the checkout "
            f"{together / 2**20:.1f} MiB (limit {LARGEST_WITH_CHECKOUT / 2**20:.0f})"
        )
    print(
        f"{len(wheels)} wheels, {carried / 1e6:.1f} MB; with the checkout {together / 2**20:.1f} "
        f"MiB: {options.folder}"
    )


if __name__ == "__main__":
    main()
