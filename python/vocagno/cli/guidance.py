"""`vocagno guidance`: the teacher's choice in one text."""

import sys
from pathlib import Path
from typing import Any

from vocagno.cli.drawing import draw_in_terminal
from vocagno.cli.texts import add_text, given_text
from vocagno.errors import InputError

_RULE = (
    *("unit", "top_fraction", "max_threshold", "window", "window_max_loss", "window_threshold"),
    *("weight", "weight_scale", "min_weight", "aggregation", "unmapped"),
)
"""Options of `GuidanceConfig` for the choice. A text is a row of its own, so `scope` and
`normalize` have no effect."""

_TEACHER = ("bos", "context", "min_context", "dtype")
"""Options of `TeacherConfig` under their own names."""

_MODEL = "folder or hub name of a causal language model"


def add_guidance(parser: Any) -> None:
    """Shows which tokens of a text the teacher chooses for the student to learn, and why.

    As a table, a page, a figure or numbers. The text is ranked by itself, as a row of its own.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.run import TeacherConfig

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
    _add_fields(parser, TeacherConfig, _TEACHER)


def _add_fields(parser: Any, config: Any, wanted: tuple[str, ...]) -> None:
    """Adds fields of a configuration as options, with their types, defaults and help."""
    others = set(config.__dataclass_fields__) - set(wanted)
    parser.add_class_arguments(config, skip=others)


def guidance(options: Any) -> dict[str, Any] | None:
    """Writes page, figure and numbers, and returns the guidance as data or prints it as a table."""
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.run import StudentConfig, TeacherConfig

    if options.out is not None and options.out.suffix != ".csv":
        raise InputError(f"--out: the numbers are written as .csv, got {options.out}")
    student = StudentConfig(
        model=options.student, tokenizer=options.student_tokenizer, eos=options.eos
    )
    teacher = TeacherConfig(
        model=options.teacher,
        gguf_file=options.gguf,
        tokenizer=options.teacher_tokenizer,
        **{name: getattr(options, name) for name in _TEACHER},
    )
    rule = GuidanceConfig(**{name: getattr(options, name) for name in _RULE})
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
