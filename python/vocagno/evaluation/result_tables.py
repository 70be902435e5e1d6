"""Tables of results as Markdown, the best of each column bold, and as CSV."""

from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from vocagno.evaluation.results import Result, ResultTable
from vocagno.system.files import appearing, write_table


def as_markdown(table: ResultTable, *, title: str | None = None) -> str:
    """A table with one decimal, as in the paper; `-` for a missing result."""
    best = {column: _best(table, column) for column in _columns(table)}
    lines = [
        [*table.labels, *_headings(table)],
        ["---"] * len(table.labels) + ["---:"] * len(best),
    ]
    for result in table.results:
        cells = [cell.replace("|", r"\|") for cell in _labels(table, result)]
        for column, largest in best.items():
            value = table.value(result, column)
            shown = "-" if value is None else one_decimal(value)
            cells.append(f"**{shown}**" if shown == largest else shown)
        lines.append(cells)
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return f"{title}\n\n{text}" if title else text


def write_markdown(path: Path, table: ResultTable, *, title: str | None = None) -> None:
    """Writes the table of `as_markdown`."""
    with appearing(path) as file:
        file.write(as_markdown(table, title=title).encode())


def write_csv(path: Path, table: ResultTable) -> None:
    """Writes labels, unrounded results, and averages to three decimals; `read_results` reads it."""
    lines: list[list[object]] = [[*table.labels, *_headings(table)]]
    for result in table.results:
        cells: list[object] = [*_labels(table, result)]
        for column in _columns(table):
            value = table.value(result, column)
            digits = 3 if column in table.averages else 12
            cells.append("-" if value is None else round(value, digits))
        lines.append(cells)
    write_table(path, lines)


def _columns(table: ResultTable) -> tuple[str, ...]:
    return (*table.benchmarks, *table.averages)


def _headings(table: ResultTable) -> list[str]:
    return [f"{name}*" if name in table.starred else name for name in _columns(table)]


def _labels(table: ResultTable, result: Result) -> list[str]:
    return [result.labels.get(label, "") for label in table.labels]


def _best(table: ResultTable, column: str) -> str | None:
    """The largest value as shown, so that values that look equal are equally good."""
    values = [table.value(result, column) for result in table.results]
    largest = max((value for value in values if value is not None), default=None)
    return None if largest is None else one_decimal(largest)


def one_decimal(value: float) -> str:
    """Rounds as the paper does: half up (20.55 to 20.6), in decimal, not in binary."""
    return str(Decimal(f"{value:.6f}").quantize(Decimal("0.1"), ROUND_HALF_UP))
