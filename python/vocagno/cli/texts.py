"""The text of a command: an argument, a file, or standard input."""

import sys
from pathlib import Path
from typing import Any

from vocagno.errors import InputError

MOST_BYTES = 20_000_000
"""Longest text that a command takes: all of its tokens are in memory, and are shown."""


def add_text(parser: Any, doing: str) -> None:
    """Adds the argument and the option. `doing`: what the command does to the text."""
    parser.add_argument("text", type=str, nargs="?", help="default: --file, else standard input")
    parser.add_argument("--file", type=Path, help=f"UTF-8 text to {doing}; - is standard input")


def given_text(options: Any, instead: str) -> str:
    """The text.

    Args:
        instead: what to use for a text that is too long.
    Raises: InputError for two texts, none, one that is too long, a file that cannot be read, and
        bytes that are not UTF-8.
    """
    if options.text is not None:
        if options.file is not None:
            raise InputError("--file: there is a text on the command line already")
        where = "text"
        data: bytes = options.text.encode("utf-8", "surrogateescape")
    elif options.file is not None and str(options.file) != "-":
        data, where = _read(options.file), str(options.file)
    else:
        if sys.stdin is None:
            raise InputError("standard input is closed; give the text, or --file FILE")
        if sys.stdin.isatty():
            print("reading the text from here; end it with Ctrl-D", file=sys.stderr)
        data, where = _limited(sys.stdin.buffer), "standard input"
    if not data:
        raise InputError(
            f"{where}: no text; give it as an argument, or the file of one: --file FILE"
        )
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: more than {MOST_BYTES:,} bytes; {instead}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 at byte {error.start} (0x{data[error.start]:02X}); convert it, "
            "for example with iconv"
        ) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _limited(file)
    except OSError as error:
        no_file = isinstance(error, FileNotFoundError)
        why = "no such file" if no_file else str(error.strerror).lower()
        raise InputError(f"--file: {path}: {why}; expected a file of UTF-8 text") from error


def _limited(file: Any) -> bytes:
    data: bytes = file.read(MOST_BYTES + 1)
    return data
