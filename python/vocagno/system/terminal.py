"""Tables, pictures and progress in the terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vocagno.errors import InputError


def draw_in_terminal(picture: Any) -> None:
    """Prints a picture that rich can draw.

    Raises: InputError if the encoding of the output lacks a sign.
    """
    from rich.console import Console

    console = Console(highlight=False)
    if console.options.ascii_only:  # not UTF-8: other encodings may have the signs
        with console.capture() as drawn:
            console.print(picture)
        try:
            drawn.get().encode(console.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f"the terminal's encoding, {console.encoding}, cannot show the picture; set "
                "PYTHONIOENCODING=utf-8 if the terminal can, or draw a page: --html FILE"
            ) from error
    console.print(picture)


def tracked(batches: Iterable[list[str]], doing: str) -> Iterator[list[str]]:
    """Yields the batches, and counts their documents on a terminal."""
    from rich.console import Console
    from rich.text import Text

    documents = 0
    with Console(stderr=True).status(Text(doing)) as status:
        for texts in batches:
            yield texts
            documents += len(texts)
            status.update(Text(f"{doing} {documents:,} documents"))


def in_columns(rows: Mapping[str, object]) -> str:
    """One name and value per line, with the values in one column."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def in_table(lines: Sequence[Sequence[str]]) -> str:
    """A table of lines with equally many cells; the first column is left-aligned, others right."""
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([name.ljust(first), *map(str.rjust, cells, others)]) for name, *cells in lines
    )
