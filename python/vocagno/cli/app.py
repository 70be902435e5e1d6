"""The command line `vocagno`: all commands by name, and those that have no module of their own."""

import sys
from pathlib import Path
from typing import Any

from vocagno.cli import alignment, evaluation, filtering, guidance, models, scores, stores
from vocagno.config.arguments import Command, Program
from vocagno.quickstart import students


def add_train(parser: Any) -> None:
    """Train a student under a teacher, as configured.

    The configuration comes from YAML files and options; later ones override earlier ones. For
    several processes: accelerate launch -m vocagno train ...
    """
    from vocagno.training.configuration import add_command

    add_command(parser)


def train(options: Any) -> dict[str, Any] | int:
    """Trains until the run is complete or stopped. Returns the exit status, or an estimate."""
    from vocagno.training.main import carry_out

    return carry_out(options)


def add_report(parser: Any) -> None:
    """Write one page of training runs: curves, a table, coverage, examples, configuration."""
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="The `output` of a training run."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="Write the page into this file."
    )


def report(options: Any) -> None:
    """Writes the page. All other runs are compared with the first one."""
    from vocagno.training.report import write_report

    write_report(options.folders, options.out)
    print(options.out, file=sys.stderr)


main: Program = Program(
    "vocagno",
    "Train a language model under a teacher whose vocabulary is another one.",
    {
        "align": Command(alignment.add_align, alignment.align),
        "overlap": Command(alignment.add_overlap, alignment.overlap),
        "describe": Command(alignment.add_describe, alignment.describe),
        "guidance": Command(guidance.add_guidance, guidance.guidance),
        "limit": Command(guidance.add_limit, guidance.limit),
        "prepare": Command(stores.add_prepare, stores.prepare),
        "score": Command(stores.add_score, stores.score),
        "bake": Command(stores.add_bake, stores.bake),
        "filter": Command(filtering.add_filter, filtering.filter_),
        "scores info": Command(scores.add_info, scores.info),
        "scores show": Command(scores.add_show, scores.show),
        "scores compare": Command(scores.add_compare, scores.compare),
        "scores finish": Command(scores.add_finish, scores.finish),
        "scores verify": Command(scores.add_verify, scores.verify),
        "scores export": Command(scores.add_export, scores.export),
        "scores import": Command(scores.add_import, scores.import_),
        "transfer": Command(models.add_transfer, models.transfer),
        "unpack": Command(models.add_unpack, models.unpack),
        "eval": Command(evaluation.add_eval, evaluation.eval_),
        "report": Command(add_report, report, has_json=False),
        "train": Command(add_train, train),
        "quickstart": Command(students.add_quickstart, students.quickstart, has_json=False),
    },
    groups={"scores": "Show, check, describe, compare and share stores of teacher scores."},
)
"""Runs the command line of the process, or the arguments passed. Returns the exit status."""
