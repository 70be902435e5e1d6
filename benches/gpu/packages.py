"""What the machine with the GPU is expected to have, and what is carried to it as wheels."""

import hashlib
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("train", "viz")
"""Of vocagno: what the parts need."""

EXPECTED = frozenset(
    {
        # What brings CUDA, and what these two need themselves.
        "torch",
        "accelerate",
        "filelock",
        "fsspec",
        "huggingface-hub",
        "jinja2",
        "networkx",
        "numpy",
        "packaging",
        "psutil",
        "pyyaml",
        "safetensors",
        "setuptools",
        "sympy",
        "typing-extensions",
        # Large, or compiled for one version of Python.
        "matplotlib",
        "pyarrow",
        "regex",
        "tokenizers",
        # Of the tests.
        "hypothesis",
        "pytest",
        # Small, and found with the others.
        "markdown-it-py",
        "pygments",
        "requests",
        "rich",
        "tqdm",
        "triton",
        "typer",
    }
)

CARRIED = (
    "transformers",
    "jsonargparse",
    "typeshed-client",
    "docstring-parser",
    "importlib-resources",
    "liger-kernel",
)
"""Wheels next to our own; all but ours are pure Python."""

SOURCES = "sources"
"""File next to the wheels: a hash of what ours was built from."""

OF_THE_TESTS = ("pytest>=8", "hypothesis>=6.120")

NOT_NEEDED = frozenset({"datasets"})
"""Requirements of vocagno that no part touches: corpora named by `datasets:`."""


def wheel_metadata(path: Path) -> Message:
    """Name, version and requirements of a wheel."""
    with ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def requirements(wheel: Message) -> Iterator[Requirement]:
    """Of a wheel, as they hold on the machine with the GPU; of ours with `EXTRAS`."""
    extras = EXTRAS if canonicalize_name(wheel["Name"]) == "vocagno" else ("",)
    pending = [Requirement(text) for text in wheel.get_all("Requires-Dist") or []]
    wanted, seen = list(extras), set()
    while wanted:
        extra = wanted.pop()
        seen.add(extra)
        environment = dict(default_environment()) | {"sys_platform": "linux", "extra": extra}
        for one in pending:
            if one.marker is not None and not one.marker.evaluate(environment):
                continue
            if canonicalize_name(one.name) == canonicalize_name(wheel["Name"]):
                wanted += [more for more in one.extras if more not in seen]
            elif canonicalize_name(one.name) not in NOT_NEEDED:
                yield one


def missing(wheels: Iterable[Path]) -> list[str]:
    """Requirements that neither a wheel nor the expected packages meet."""
    found = [wheel_metadata(path) for path in wheels]
    versions = {canonicalize_name(wheel["Name"]): wheel["Version"] for wheel in found}
    lacking = set()
    for wheel in found:
        for one in requirements(wheel):
            name = canonicalize_name(one.name)
            if name in versions and not one.specifier.contains(versions[name], prereleases=True):
                lacking.add(f"{one} (the wheel is {versions[name]})")
            elif name not in versions and name not in EXPECTED:
                lacking.add(f"{one} (of {wheel['Name']})")
    return sorted(lacking)


def unmet(wheels: Iterable[Path]) -> list[str]:
    """Requirements that this very environment does not meet."""
    lacking = set()
    needed = chain.from_iterable(map(requirements, map(wheel_metadata, wheels)))
    for one in chain(map(Requirement, OF_THE_TESTS), needed):
        version = installed(one.name)
        if version is None:
            lacking.add(f"{one}: missing")
        elif not one.specifier.contains(version, prereleases=True):
            lacking.add(f"{one}: found {version}")
    return sorted(lacking)


def installed(name: str) -> str | None:
    """The version of an installed package; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def sources_digest(root: Path) -> str:
    """What the wheel of vocagno is built from, as a hash."""
    found = hashlib.blake2b(digest_size=16)
    patterns = "Cargo.lock", "Cargo.toml", "rust/core/**/*", "rust/py/**/*", "python/vocagno/**/*"
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path.suffix in (".rs", ".toml", ".lock", ".py"):
                found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()
