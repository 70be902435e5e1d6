"""The one text that a command is given: as an argument, in a file, or on standard input."""

import sys
from pathlib import Path
from typing import Any

from vocagno.errors import InputError

MOST_BYTES = 20_000_000
"""Longest text that a command takes: it keeps every token of it in memory, and shows it."""


def add_text(parser: Any, doing: str) -> None:
    """The argument and the option. `doing`: what the command does to the text."""
    parser.add_argument("text", type=str, nargs="?", help="default: --file, else standard input")
    parser.add_argument("--file", type=Path, help=f"UTF-8 text to {doing}; - is standard input")


def given_text(options: Any, instead: str) -> str:
    """The text.

    Args:
        instead: what to use for a text that is too long.
    Raises: InputError for two texts, one that is too long, and bytes that are not UTF-8.
    """
    if options.text is not None:
        if options.file is not None:
            raise InputError("--file: there is a text on the command line already")
        where = "text"
        data: bytes = options.text.encode("utf-8", "surrogateescape")
    elif options.file is not None and str(options.file) != "-":
        with options.file.open("rb") as file:
            data, where = _limited(file), str(options.file)
    else:
        if sys.stdin.isatty():
            print("reading the text from here; end it with Ctrl-D", file=sys.stderr)
        data, where = _limited(sys.stdin.buffer), "standard input"
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: more than {MOST_BYTES:,} bytes; {instead}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 at byte {error.start} (0x{data[error.start]:02X}); convert it, "
            "for example with iconv"
        ) from error


def _limited(file: Any) -> bytes:
    data: bytes = file.read(MOST_BYTES + 1)
    return data
