"""`vocagno guidance`: what a student learns of one text."""

import sys
from pathlib import Path
from typing import Any

from vocagno.cli.texts import add_text, given_text
from vocagno.errors import InputError
from vocagno.system.terminal import draw_in_terminal

_RULE = (
    *("unit", "top_fraction", "max_threshold", "window", "window_max_loss", "window_threshold"),
    *("weight", "weight_scale", "min_weight", "aggregation", "unmapped"),
)
"""Fields of `GuidanceConfig` that are options here. A text is a row of its own, so `scope` and
`normalize` say nothing about it."""
_OF_TEACHER = ("bos", "context", "min_context", "dtype")
"""Fields of `TeacherConfig` that are options here."""

_MODEL = "folder or hub name of a causal language model"


def add_guidance(parser: Any) -> None:
    """Show which tokens of a text the student learns from the teacher, and why.

    As a table, a page, a figure or numbers. The text is ranked as a row of its own.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.teacher import TeacherConfig

    parser.add_argument("student", type=str, help=_MODEL)
    parser.add_argument("teacher", type=str, help=_MODEL)
    add_text(parser, "show")
    parser.add_argument("--html", type=Path, help="draw it as a page, into this file")
    parser.add_argument("--figure", type=Path, help="draw a short text into this .svg or .png file")
    parser.add_argument("--out", type=Path, help="write the numbers into this .csv file")
    _add_fields(parser, GuidanceConfig, _RULE)
    parser.add_argument("--student_tokenizer", type=str, help="default: that of the student")
    parser.add_argument("--eos", type=str, help="token after the text; default: the tokenizer's")
    parser.add_argument("--gguf", type=str, help="name of a GGUF file in the teacher's folder")
    parser.add_argument("--teacher_tokenizer", type=str, help="default: that of the teacher")
    _add_fields(parser, TeacherConfig, _OF_TEACHER)


def _add_fields(parser: Any, config: Any, wanted: tuple[str, ...]) -> None:
    """Adds fields of a configuration, with their types, defaults and descriptions."""
    parser.add_class_arguments(config, skip=set(config.__dataclass_fields__) - set(wanted))


def guidance(options: Any) -> dict[str, Any] | None:
    """Writes page, figure and numbers; the guidance as data, or as a table."""
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.student import StudentConfig
    from vocagno.config.teacher import TeacherConfig

    if options.out is not None and options.out.suffix != ".csv":
        raise InputError(f"--out: the numbers are written as .csv, got {options.out}")
    student = StudentConfig(
        model=options.student, tokenizer=options.student_tokenizer, eos=options.eos
    )
    teacher = TeacherConfig(
        model=options.teacher,
        gguf_file=options.gguf,
        tokenizer=options.teacher_tokenizer,
        **{name: options[name] for name in _OF_TEACHER},
    )
    rule = GuidanceConfig(**{name: options[name] for name in _RULE})
    text = given_text(options, "`guidance` shows one text; give a part of it")
    if options.figure is not None:
        from vocagno.paper.figures.style import check_format
        from vocagno.paper.figures.tokens import check_text

        check_format(options.figure, "--figure")
        check_text(text)

    from vocagno.training.guide_text import guide_text

    return _shown(guide_text(student, teacher, text, rule), options)


def _shown(guided: Any, options: Any) -> dict[str, Any] | None:
    from vocagno.system.files import appearing

    files = []
    for path, made in ((options.html, guided.html), (options.out, guided.csv)):
        if path is not None:
            with appearing(path) as file:
                file.write(made().encode())
            files.append(path)
    if options.figure is not None:
        from vocagno.paper.figures.style import save
        from vocagno.paper.figures.tokens import draw_guidance

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
