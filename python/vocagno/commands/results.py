"""Tables of scores on benchmarks; and all tables and figures of scores in one command."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.commands.result_figures import draw_and_write, join_granularities
from vocagno.errors import InputError

if TYPE_CHECKING:
    from vocagno.results import ResultTable

_PAPER = "of arXiv 2503.19123 (Shin et al., ICML 2025); averages computed from the scores."
_MISTRAL = "mistral-v0.1"
"""The tokenizer of Table 2's teacher, Mistral-ProXMath, as granularity files name it."""


def add_table(parser: Any) -> None:
    """Puts scores together in a table like the paper's, with averages, the best ones bold."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="CSV, JSON")
    parser.add_argument(
        "--out", type=Path,
        help="writes .md and .csv: either file, or a folder (named as the first FILE)",
    )  # fmt: skip
    parser.add_argument("--title", type=str, help="line above the table in the .md")


def table(options: Any) -> dict[str, Any] | None:
    """Writes Markdown and CSV where told to; gives the table as data, or prints it."""
    from vocagno.result_tables import as_markdown
    from vocagno.results import read_results

    found = read_results(options.files)
    for line in found.disagreements():
        print(line, file=sys.stderr)
    files: list[Path] = []
    if options.out is not None:
        stem = _stem(options.out, options.files[0])
        read = {path.resolve() for path in options.files}
        if stem.with_name(f"{stem.name}.csv").resolve() in read:
            raise InputError(f"--out: {stem}.csv is read, and would be overwritten; name another")
        files = _write_table(stem, found, options.title)
    if options.json:
        return {"files": [str(file) for file in files], **_table_data(found)}
    print(as_markdown(found), end="")
    print(*files, sep="\n", end="\n" if files else "", file=sys.stderr)
    return None


def _stem(out: Path, first: Path) -> Path:
    """The path of both files without their suffixes."""
    if out.suffix in (".md", ".csv"):
        return out.with_suffix("")
    if out.suffix and not out.is_dir():
        raise InputError(f"--out: expected a file ending in .md or .csv, or a folder, got {out}")
    return out / first.stem


def _write_table(stem: Path, found: "ResultTable", title: str | None) -> list[Path]:
    from vocagno.result_tables import write_csv, write_markdown

    markdown, data = (stem.with_name(stem.name + suffix) for suffix in (".md", ".csv"))
    write_markdown(markdown, found, title=title)
    write_csv(data, found)
    return [markdown, data]


def _table_data(found: "ResultTable") -> dict[str, Any]:
    rows = [
        {
            **result.labels,
            "scores": dict(result.scores),
            "averages": {name: found.average(result, name) for name in found.averages},
        }
        for result in found.results
    ]
    return {"disagreements": found.disagreements(), "rows": rows}


def add_all(parser: Any) -> None:
    """Makes all tables and figures of scores anew, from what is at hand.

    Of the paper's tables (table1.csv to table4.csv, or paper-table1.csv and so on); Fig. 6 takes
    OUT/granularity.csv too, which `vocagno granularity --out OUT/granularity.svg` writes.
    """
    parser.add_argument("--paper", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--teacher", type=str, default=_MISTRAL,
        help="who Table 2's teacher, Mistral-ProXMath, is in granularity.csv",
    )  # fmt: skip


def all_(options: Any) -> dict[str, Any] | None:
    """Writes the files; names them, and on stderr what was left out and why."""
    made: list[Path] = []
    for step in _STEPS:
        made += step(options)
    if options.json:
        return {"files": [str(path) for path in made]}
    print(*made, sep="\n")
    return None


def _all_tables(options: Any) -> list[Path]:
    from vocagno.results import read_results

    made = []
    for number in range(1, 5):
        found = read_results([_paper_table(options.paper, number)])
        for line in found.disagreements():
            print(line, file=sys.stderr)
        stem = options.out / f"paper-table{number}"
        made += _write_table(stem, found, f"Table {number} {_PAPER}")
    return made


def _all_teachers(options: Any) -> list[Path]:
    from vocagno.comparisons import compare_teachers
    from vocagno.figures.students import draw_gains, draw_scores
    from vocagno.results import read_results

    students, own = (read_results([_paper_table(options.paper, number)]) for number in (1, 4))
    found = compare_teachers(students, own)
    return [
        path
        for draw, name in ((draw_scores, "teachers"), (draw_gains, "gains"))
        for path in draw_and_write(draw(found), found.students, options.out / f"paper-{name}.svg")
    ]


def _all_granularity_scores(options: Any) -> list[Path]:
    overlaps = options.out / "granularity.csv"
    if not overlaps.is_file():
        print(f"left out: granularity scores, without {overlaps}", file=sys.stderr)
        return []
    table2 = _paper_table(options.paper, 2)
    found, figure = join_granularities(table2, overlaps, options.teacher, "AVG")
    return draw_and_write(figure, found, options.out / "paper-granularity-scores.svg")


_STEPS: tuple[Callable[[Any], list[Path]], ...] = (
    _all_tables, _all_teachers, _all_granularity_scores,
)  # fmt: skip
"""What `figures all` makes: each step gives the files that it wrote."""


def _paper_table(folder: Path, number: int) -> Path:
    paths = [folder / f"{prefix}table{number}.csv" for prefix in ("", "paper-")]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise InputError(f"--paper: neither {paths[0]} nor {paths[1].name} is there")
    return found[0]
