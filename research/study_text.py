"""Texts for a study of guidance: parts of a corpus that share no document, clean and with noise.

    python -m research.study_text TRAIN.jsonl VALID.jsonl OUT

Into OUT go `pretrain` and `reference` (what a student and small teachers have read before), the
held-out `valid-dev` and `valid-test`, and for each of the parts `dev` and `test` the same documents
four times: `clean`; `junk`, with lines that no model can predict among the lines; `swap`, with one
word in seven replaced by another of the corpus; `pages`, inside the mark-up, menus and notices of a
web page. A document of the noisy ones names its noise: `noise`, half-open ranges of bytes. All
follows from the hash of a document, so that the same corpus gives the same texts.
"""

import argparse
import html
import json
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vocagno.data.corpus import read_batches
from vocagno.errors import InputError
from vocagno.quickstart.problems import noise_line

SWAPPED = 0.15
"""Of the words, in `swap`."""
Piece = tuple[str, bool]
"""Some text, and whether it is noise."""


def main() -> None:
    """Writes all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dev", type=float, default=0.7, help="megabytes of clean text")
    parser.add_argument("--test", type=float, default=1.4, help="megabytes of clean text")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = sorted(_read(options.train), key=_seed)
    sizes = {"dev": options.dev, "test": options.test}
    parts = {name: _taken(texts, int(size * 1e6)) for name, size in sizes.items()}
    half = sum(len(text.encode()) for text in texts) // 2
    parts |= {"pretrain": _taken(texts, half), "reference": texts}
    held_out = sorted(_read(options.valid), key=_seed)
    parts |= {"valid-dev": held_out[::2], "valid-test": held_out[1::2]}
    words = _words(parts["pretrain"])
    noises: dict[str, Callable[[str, random.Random], Iterator[Piece]]] = {
        "junk": with_junk,
        "swap": lambda text, rng: with_swaps(text, rng, words),
        "pages": as_page,
    }
    for part, documents in parts.items():
        if part not in ("dev", "test"):
            _write(options.out / f"{part}.jsonl", [[(text, False)] for text in documents])
            continue
        _write(options.out / f"{part}-clean.jsonl", [[(text, False)] for text in documents])
        for kind, make in noises.items():
            pieces = [list(make(text, random.Random(_seed(text)))) for text in documents]
            _write(options.out / f"{part}-{kind}.jsonl", pieces)


class NoisyText(NamedTuple):
    """A document, and which of its bytes are noise."""

    text: str
    noise_N2: NDArray[np.int64]
    """Half-open ranges of bytes, in order."""


def read_noise(path: Path) -> list[NoisyText]:
    """The documents of a file in the order of a corpus; one without `noise` has none.

    Raises: InputError for ranges that are empty, out of order, overlap or leave the document.
    """
    texts = []
    with path.open(encoding="utf-8") as file:
        for line in filter(str.strip, file):
            row = json.loads(line)
            noise = np.array(row.get("noise", []), np.int64).reshape(-1, 2)
            if (np.diff(noise.ravel(), prepend=0) < 0).any() or (noise[:, 0] == noise[:, 1]).any():
                raise InputError(f"{path}: `noise` has ranges that are empty or out of order")
            beginning, size = row["text"][:40], len(row["text"].encode())
            if noise.max(initial=0) > size:
                raise InputError(f"{path}: `noise` of {beginning!r} ends behind its {size:,} bytes")
            texts.append(NoisyText(row["text"], noise))
    return texts


def with_junk(text: str, rng: random.Random) -> Iterator[Piece]:
    """After each line, with a chance of one in two each time, one more line of junk."""
    for line in text.splitlines(keepends=True):
        yield line, False
        while line.endswith("\n") and rng.random() < 0.5:
            yield noise_line(rng) + "\n", True


def with_swaps(text: str, rng: random.Random, words: Sequence[str]) -> Iterator[Piece]:
    """Each word of letters is replaced by one of `words` with a chance of `SWAPPED`."""
    for part in re.split(r"([^\W\d_]{2,})", text):
        is_word = len(part) > 1 and part.isalpha()
        if is_word and rng.random() < SWAPPED:
            yield rng.choice(words), True
        elif part:
            yield part, False


def as_page(text: str, rng: random.Random) -> Iterator[Piece]:
    """Between a menu and a footer, a tag around each paragraph, notices between some of them."""
    name, year = rng.choice(_SITES), rng.randint(2009, 2024)
    menu = rng.sample(_MENU, rng.randint(4, 7))
    yield f'<!DOCTYPE html><html lang="en"><head><title>{name}</title></head><body>\n', True
    for entry in menu:
        yield f'<li class="menu-item"><a href="/{entry.lower()}/">{entry}</a></li>\n', True
    for paragraph in re.split(r"(\n\s*\n)", text):
        if not paragraph.strip():
            yield paragraph, False
            continue
        yield rng.choice(_OPENING), True
        yield html.escape(paragraph, quote=False), False
        yield rng.choice(_CLOSING), True
        if rng.random() < 0.4:
            yield "\n" + rng.choice(_NOTICES).format(year=year, number=rng.randint(2, 480)), True
    yield f"\n<footer>© {year} {name}. All rights reserved. {' | '.join(menu[:3])}</footer>\n", True


_SITES = ("Mathematics Forum", "Lecture Notes", "Study Group", "Open Textbooks", "The Proof Page")
_MENU = (
    "Home",
    "About",
    "Contact",
    "Blog",
    "Courses",
    "Forum",
    "Login",
    "Register",
    "Search",
    "Archive",
    "Privacy",
    "Help",
)
_OPENING = ("<p>", '<p class="text">', '<div class="entry-content"><p>', '<p style="margin:0">')
_CLOSING = ("</p>", "</p></div>", "</p><br/>")
_NOTICES = (
    '<div class="share">Share this: <a href="#">Facebook</a> <a href="#">Twitter</a> '
    '<a href="#">Email</a></div>',
    '<div class="cookie-notice">We use cookies to improve your experience. By continuing you '
    "accept our privacy policy. <button>Accept</button></div>",
    '<div class="comments"><span>{number} comments</span> <a href="#reply">Leave a reply</a></div>',
    '<span class="date">Posted on {number} days ago by admin, last edited {year}</span>',
    '<div class="advert" data-slot="{number}"><script async src="/ads.js?id={number}"></script>'
    "</div>",
    '<a class="pdf" href="/download/{number}.pdf">Download as PDF</a> '
    '<a href="/print/{number}">Print</a>',
    '<div class="related">Related posts: <a href="/?p={number}">Previous</a> | '
    '<a href="#">Next</a></div>',
)


def _read(path: Path) -> list[str]:
    return [text for batch in read_batches(path) for text in batch]


def _seed(text: str) -> int:
    return zlib.crc32(text.encode())


def _taken(texts: list[str], size: int) -> list[str]:
    """Removes documents of at least `size` bytes in all from the end of the list, and returns them.

    It returns all of them if the list has fewer bytes.
    """
    taken, total = [], 0
    while total < size and texts:
        taken.append(texts.pop())
        total += len(taken[-1].encode())
    return taken


def _words(texts: Sequence[str]) -> list[str]:
    """Words as often as they occur, every fiftieth."""
    return [word for text in texts for word in re.findall(r"[^\W\d_]{2,}", text)][::50]


def _write(path: Path, documents: Sequence[Sequence[Piece]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for pieces in documents:
            place = 0
            noise: list[list[int]] = []
            for text, is_noise in pieces:
                size = len(text.encode())
                if is_noise and noise and noise[-1][1] == place:
                    noise[-1][1] += size
                elif is_noise:
                    noise.append([place, place + size])
                place += size
            row = {"text": "".join(text for text, _ in pieces), "noise": noise}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
