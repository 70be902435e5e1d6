"""Makes the pages of PyPI and crates.io: changes files of a checkout before they are built.

    python3 .ci/registry_pages.py ADDRESS REF

ADDRESS is that of the repository (https://HOST/OWNER/NAME), REF a tag or branch. PyPI does not
resolve relative links, so those of README.md become absolute: pages lead to `blob/REF`, pictures
to `raw/REF`, anchors within the page stay. `PLACEHOLDER` there becomes ADDRESS. pyproject.toml gets
`project.urls`, and the crate's Cargo.toml its `repository`, with which crates.io resolves links
itself.
"""

import re
import sys
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "https://github.com/OWNER/vocagno"
"""Stands in the README for the address of the repository, which is known when it is published."""
PICTURES = ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp"
FENCE = re.compile(r" {0,3}(```+|~~~+)")
CODE_OR_TARGET = re.compile(r"`[^`]*`|(?<=\]\()[^()\s]+(?=\))")
OTHER_LINK = re.compile(r"^ {0,3}\[[^\]]+\]:\s|<(?:a|img)\b|\]\([^)]*\s")


def absolute(text: str, address: str, ref: str, root: Path) -> str:
    """A page of Markdown with absolute links."""

    def link(match: re.Match[str]) -> str:
        target = match[0]
        if target.startswith(("`", "#")) or re.match(r"[a-z]+:", target):
            return target
        path = target.partition("#")[0]
        if not (root / path).exists():
            raise SystemExit(f"{path}: linked, but not in the sources")
        return f"{address}/{'raw' if path.endswith(PICTURES) else 'blob'}/{quote(ref)}/{target}"

    lines, fence = [], ""
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and not line.startswith("    "):
            if OTHER_LINK.search(line):
                raise SystemExit(f"expected links of the form [text](target), got: {line.strip()}")
            line = CODE_OR_TARGET.sub(link, line)
        lines.append(line)
    return "".join(lines)


def urls(address: str, ref: str) -> dict[str, str]:
    """What PyPI shows next to the page."""
    pages = f"{address}/blob/{quote(ref)}"
    return {
        "Homepage": address,
        "Documentation": f"{pages}/docs/start.md",
        "Repository": address,
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def insert(path: Path, after: str, added: list[str]) -> None:
    """Puts lines after one that must be there exactly once."""
    text = path.read_text(encoding="utf-8")
    before, line, rest = text.partition(f"\n{after}\n")
    if not line or line in rest:
        raise SystemExit(f"{path}: expected one line `{after}`")
    if added[0] in text:
        raise SystemExit(f"{path}: has the address already")
    path.write_text(before + line + "".join(f"{new}\n" for new in added) + rest, "utf-8")


def main(root: Path, address: str, ref: str) -> None:
    if not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+", address):
        raise SystemExit(f"expected https://HOST/OWNER/NAME, got {address!r}")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = absolute(text.replace(PLACEHOLDER, address), address, ref, root)
    named = [f'{name} = "{url}"' for name, url in urls(address, ref).items()]
    insert(root / "pyproject.toml", "[project.urls]", named)
    insert(root / "rust/core/Cargo.toml", 'readme = "README.md"', [f'repository = "{address}"'])
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(ROOT, *sys.argv[1:])
