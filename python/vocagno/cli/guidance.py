"""`vocagno guidance`: what a student learns of one text."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from vocagno.cli.texts import add_text, given_text
from vocagno.errors import InputError
from vocagno.system.terminal import draw_in_terminal

_RULE = (
    *("unit", "top_fraction", "max_threshold", "window", "window_max_loss"),
    *("aggregation", "unmapped"),
)
"""Fields of `GuidanceConfig` that are options here. A text is a row of its own, so `scope` and
`normalize` say nothing about it."""
_OF_TEACHER = ("gguf_file", "tokenizer", "bos", "dtype", "context", "min_context")
"""Fields of `TeacherConfig` that are options here."""
_OF_STUDENT = ("tokenizer", "eos")
"""Fields of `StudentConfig` that are options here."""

_MODEL = "folder or hub name of a causal language model"


def add_guidance(parser: Any) -> None:
    """Show which tokens of a text the student learns from the teacher, and why.

    As a table, a page, a figure or numbers. The text is ranked as a row of its own.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import StudentConfig
    from vocagno.config.teacher import TeacherConfig

    parser.add_argument("student.model", type=str, metavar="student", help=_MODEL)
    parser.add_argument("teacher.model", type=str, metavar="teacher", help=_MODEL)
    add_text(parser, "show")
    parser.add_argument("--html", type=Path, help="draw it as a page, into this file")
    parser.add_argument("--figure", type=Path, help="draw a short text into this .svg or .png file")
    parser.add_argument("--out", type=Path, help="write the numbers into this .csv file")
    for group, config, wanted in (
        ("guidance", GuidanceConfig, _RULE),
        ("student", StudentConfig, _OF_STUDENT),
        ("teacher", TeacherConfig, _OF_TEACHER),
    ):
        skipped = {field.name for field in fields(config)} - {*wanted}
        parser.add_class_arguments(config, group, skip=skipped)


def guidance(options: Any) -> dict[str, Any] | None:
    """Writes page, figure and numbers; the guidance as data, or as a table."""
    if options.out is not None and options.out.suffix != ".csv":
        raise InputError(f"--out: the numbers are written as .csv, got {options.out}")
    text = given_text(options, "`guidance` shows one text; give a part of it")
    if options.figure is not None:
        from vocagno.views.figure import check_format, check_text

        check_format(options.figure, "--figure")
        check_text(text)

    from vocagno.training.sample_pages import guide_text

    guided = guide_text(options.student, options.teacher, text, options.guidance)
    return _shown(guided, options)


def _shown(guided: Any, options: Any) -> dict[str, Any] | None:
    from vocagno.system.files import appearing

    files = []
    for path, made in ((options.html, guided.html), (options.out, guided.csv)):
        if path is not None:
            with appearing(path) as file:
                file.write(made().encode())
            files.append(path)
    if options.figure is not None:
        from vocagno.views.figure import draw_guidance, save

        save(draw_guidance(guided.passage), options.figure)
        files.append(options.figure)
    if options.json:
        data: dict[str, Any] = guided.as_dict()
        return data
    if files:
        print(guided.summary(), *files, sep="\n", file=sys.stderr)
        return None
    draw_in_terminal(guided)
    return None
