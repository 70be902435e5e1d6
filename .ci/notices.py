"""Collects the licences of the code that is linked into a wheel: changes a checkout before the
wheel is built.

    python3 .ci/notices.py [FOLDER]

FOLDER (this checkout) has a pyproject.toml. Writes next to it THIRD-PARTY.txt, the licence texts of
all crates in the compiled module, each text once, and Rust's own COPYRIGHT-library.html, and names
both in its `license-files`. The repository contains no text of others; the sources on PyPI need
none, since they contain no crate of others.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WRITTEN = "THIRD-PARTY.txt", "COPYRIGHT-library.html"
NAMED = 'license-files = ["LICENSE"]'
TEXTS = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?", re.IGNORECASE)


def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def linked() -> list[dict[str, Any]]:
    """The crates of others in the module, on any platform; macros and build scripts stay out."""
    metadata = json.loads(output("cargo", "metadata", "--format-version=1", "--locked"))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [name for name in nodes if packages[name]["name"] == "vocagno-py"]
    seen = set()
    while waiting:
        seen.add(crate := waiting.pop())
        for edge in nodes[crate]["deps"]:
            macro = any("proc-macro" in part["kind"] for part in packages[edge["pkg"]]["targets"])
            normal = any(kind["kind"] is None for kind in edge["dep_kinds"])
            if normal and not macro and edge["pkg"] not in seen:
                waiting.append(edge["pkg"])
    crates = [packages[name] for name in seen if packages[name]["source"]]
    return sorted(crates, key=lambda crate: (crate["name"], crate["version"]))


def notices(crates: list[dict[str, Any]]) -> str:
    """The list of crates, then each different text with the crates that have it."""
    texts: dict[str, list[str]] = {}
    for crate in crates:
        folder = Path(crate["manifest_path"]).parent
        files = [file for file in sorted(folder.iterdir()) if TEXTS.fullmatch(file.name)]
        if not files:
            raise SystemExit(f"{crate['name']} {crate['version']}: no licence text in {folder}")
        for file in files:
            texts.setdefault(file.read_text("utf-8").strip(), []).append(
                f"{crate['name']} {crate['version']}: {file.name}"
            )
    listed = [f"{crate['name']} {crate['version']}: {crate['license']}" for crate in crates]
    head = "Crates in the compiled module vocagno._vocagno, with their licences."
    parts = ["\n".join([head, *listed])]
    parts += ["\n".join([*users, "", text]) for text, users in texts.items()]
    return f"\n\n{'=' * 80}\n".join(parts) + "\n"


def main(root: Path) -> None:
    project = root / "pyproject.toml"
    before = project.read_text("utf-8")
    if NAMED not in before:
        raise SystemExit(f"{project}: expected `{NAMED}`")
    (root / WRITTEN[0]).write_text(notices(linked()), "utf-8")
    rust = Path(output("rustc", "--print", "sysroot").strip())
    shutil.copy(rust / "share" / "doc" / "rust" / WRITTEN[1], root)
    names = ", ".join(f'"{name}"' for name in ("LICENSE", *WRITTEN))
    project.write_text(before.replace(NAMED, f"license-files = [{names}]"), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    main(Path(*sys.argv[1:]) if sys.argv[1:] else ROOT)
