"""The command `python -m research.study`, which carries out training runs and compares them."""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from research.study.comparison import compare_variants, markdown
from research.study.measured import Measured, write_runs
from research.study.plan import Plan, read_plan, slug
from vocagno.config.arguments import Command
from vocagno.errors import InputError
from vocagno.system.files import atomic_file
from vocagno.system.signals import exit_status


def add_study(parser: Any) -> None:
    """Carry out the runs of a plan and compare them: tables, figures, and every run as CSV.

    A killed study resumes. Several processes that see the folder share it, on one machine or many.
    A finished one measures only what is missing of what the plan asks for; answers at steps of the
    training (`questions_every`) only where the run kept its checkpoints.
    """
    parser.add_argument(
        "plan", type=Path, help="The YAML file of the plan, such as those in configs/study."
    )
    parser.add_argument("--out", type=Path, required=True, help="The folder of the study.")
    parser.add_argument(
        "--set", type=str, nargs="+", default=[], metavar="NAME=VALUE", help="Options of all runs."
    )
    parser.add_argument(
        "--only",
        type=str,
        nargs="+",
        metavar="NAME",
        help="Carry out these variants, those that they are compared with, and the runs before "
        "that these need. Default: all.",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        help="Train with these seeds. Default: those of the plan.",
    )
    parser.add_argument(
        "--to", type=Path, help="The folder for tables and figures. Default: --out."
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="Compare what is measured so far, and carry out nothing.",
    )


def study(options: Any) -> dict[str, Any] | None:
    """Carries out and compares the runs. Returns every run as data, or prints the tables."""
    from research.study.carrying_out import carry_out, measured_so_far
    from vocagno.system.signals import terminable

    plan, extra = read_plan(options.plan), _parse_options(options.set)
    if options.only:
        plan = plan.only(options.only, extra)
    if options.seeds:
        plan = replace(plan, seeds=options.seeds)
    if options.report:
        measured = measured_so_far(plan, options.out, extra)
        if not measured:
            raise InputError(f"--out: {options.out}: no run of {options.plan} is measured there")
    else:
        with terminable():
            measured = carry_out(plan, options.out, extra, show=True)
    files = _write(plan, measured, options.to or options.out)
    if options.json:
        return {"files": [*map(str, files)], "runs": [_finite(asdict(run)) for run in measured]}
    print(files[0].read_text(encoding="utf-8"), end="")
    print(*files, sep="\n", file=sys.stderr)
    return None


def _finite(value: Any) -> Any:
    """Replaces NaN and infinite numbers, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse_options(words: Sequence[str]) -> dict[str, str]:
    """Splits each NAME=VALUE of --set. Raises: InputError for a word without `=`."""
    extra = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--set: expected NAME=VALUE, as train.steps=100, got {word!r}")
        extra[name] = value
    return extra


def _write(plan: Plan, measured: Sequence[Measured], folder: Path) -> list[Path]:
    """Writes the tables in Markdown, every run as CSV, and a figure for each table."""
    from research.study.figure import draw_study
    from vocagno.views.figure import save

    text, figures = [], []
    for title, names in plan.tables.items():
        rows = compare_variants(plan, measured, names)
        if not rows:
            continue
        figures.append(folder / f"{slug(title)}.svg")
        text.append(markdown(title, rows))
        save(draw_study(rows), figures[-1])
    with atomic_file(folder / "tables.md") as file:
        file.write("\n".join(text).encode())
    write_runs(folder / "runs.csv", measured)
    return [folder / "tables.md", folder / "runs.csv", *figures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line of the process, or the arguments passed. Returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return exit_status(lambda: Command(add_study, study)("python -m research.study", words))


if __name__ == "__main__":
    sys.exit(main())
