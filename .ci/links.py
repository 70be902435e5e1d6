"""Every link of the built site: does it lead somewhere, and is nothing fetched from another host?

Zensical looks at links to pages alone; this looks at pictures, sources and the reference, too.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values[name] or "" for name in ("id", "name") if name in values}
        links = [values[name] or "" for name in ("href", "src") if name in values]
        self.links += links
        if tag not in ("a", "base") and values.get("rel") != "canonical":
            self.fetched += [link for link in links if urlsplit(link).netloc]


def main(site: Path) -> int:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        where = path.relative_to(site)
        wrong += [f"{where}: fetches {link}" for link in page.fetched]
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(site) or not target.is_file():
                wrong.append(f"{where}: {link} leads nowhere")
            elif parts.fragment and target in pages and parts.fragment not in pages[target].ids:
                wrong.append(f"{where}: {link} has no such place")
    links = sum(len(page.links) for page in pages.values())
    print(*wrong, f"{len(pages)} pages, {links} links, {len(wrong)} wrong", sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
