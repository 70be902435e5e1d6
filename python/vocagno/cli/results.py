"""Tables of scores on benchmarks."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError

if TYPE_CHECKING:
    from vocagno.evaluation.results import ResultTable


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
    from vocagno.evaluation.result_tables import as_markdown
    from vocagno.evaluation.results import read_results

    found = read_results(options.files)
    for line in found.disagreements():
        print(line, file=sys.stderr)
    files: list[Path] = []
    if options.out is not None:
        stem = _stem(options.out, options.files[0])
        read = {path.resolve() for path in options.files}
        if stem.with_name(f"{stem.name}.csv").resolve() in read:
            raise InputError(f"--out: {stem}.csv is read, and would be overwritten; name another")
        files = write_table_files(stem, found, options.title)
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


def write_table_files(stem: Path, found: "ResultTable", title: str | None) -> list[Path]:
    """Writes STEM.md, with the title above the table, and STEM.csv."""
    from vocagno.evaluation.result_tables import write_csv, write_markdown

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
