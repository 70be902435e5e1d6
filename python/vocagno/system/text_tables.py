"""Formats results as text."""

from collections.abc import Mapping, Sequence


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
