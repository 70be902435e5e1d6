"""How results are put into words for people."""

from collections.abc import Mapping, Sequence


def in_columns(rows: Mapping[str, object]) -> str:
    """Names and values below one another, the values in one column."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def in_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of as many cells each; the first column starts on the left, the others on the right."""
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([name.ljust(first), *map(str.rjust, cells, others)]) for name, *cells in lines
    )
