"""Checks that every copy of the version is that of `[workspace.package]` in Cargo.toml.

    python3 .ci/version.py [TAG]

With a tag, it also checks that the sources are those of this release: the tag, the date in
CHANGELOG.md, the README. Prints what is wrong, and exits with 1 if anything is.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MANIFESTS = "rust/core/Cargo.toml", "rust/py/Cargo.toml"
LOCKS = "Cargo.lock", "rust/fuzz/Cargo.lock", "rust/no_std/Cargo.lock", "examples/rust/Cargo.lock"
LOCKED = re.compile(r'^name = "(vocagno|vocagno-py)"\nversion = "(.+)"$', re.MULTILINE)
SECTION = re.compile(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def version(root: Path) -> str:
    package = read(root, "Cargo.toml").split("[workspace.package]\n")[1].split("\n[")[0]
    (number,) = re.findall(r'^version = "(.+)"$', package, re.MULTILINE)
    return number


def differences(root: Path) -> Iterator[str]:
    """The files that have, or may get, another version."""
    expected = version(root)
    for name in MANIFESTS:
        if "\nversion.workspace = true\n" not in read(root, name):
            yield f"{name}: needs `version.workspace = true`"
    if '\ndynamic = ["version"]' not in read(root, "pyproject.toml"):
        yield 'pyproject.toml: needs `dynamic = ["version"]`'
    for name in LOCKS:
        locked = LOCKED.findall(read(root, name))
        if not locked:
            yield f"{name}: does not name vocagno"
        for crate, number in locked:
            if number != expected:
                yield f"{name}: {crate} {number}, not {expected}"
    for number in re.findall(r'^version: *"?([^"\n]+)', read(root, "CITATION.cff"), re.MULTILINE):
        if number != expected:
            yield f"CITATION.cff: {number}, not {expected}"
    sections = [name for name, _ in SECTION.findall(read(root, "CHANGELOG.md"))]
    if sections[:2] != ["Unreleased", expected]:
        yield f"CHANGELOG.md: needs `## Unreleased`, then `## {expected}`"


def unready(root: Path, tag: str) -> Iterator[str]:
    """Why the sources are not those of a release with this tag."""
    expected = version(root)
    if tag != f"v{expected}":
        yield f"tag {tag}: Cargo.toml has {expected}, so the tag must be v{expected}"
    changelog = read(root, "CHANGELOG.md")
    if not dict(SECTION.findall(changelog)).get(expected):
        yield f"CHANGELOG.md: {expected} has no date, `## {expected} - YYYY-MM-DD`"
    if changelog.partition("## Unreleased\n")[2].partition("\n## ")[0].strip():
        yield f'CHANGELOG.md: "Unreleased" must be empty; move it to {expected}'
    if "not on pypi" in read(root, "README.md").lower():
        yield "README.md: says that the package is not on PyPI"


def main(root: Path, tags: list[str]) -> int:
    wrong = list(differences(root))
    for tag in tags:
        wrong += unready(root, tag)
    print(*wrong or [version(root)], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(ROOT, sys.argv[1:]))
