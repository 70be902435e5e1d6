"""How results are put into words for people."""

from collections.abc import Mapping


def in_columns(rows: Mapping[str, object]) -> str:
    """Names and values below one another, the values in one column."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
