"""The command `vocagno`: words go to stderr, results to stdout."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import Any

from vocagno._vocagno import SpanError
from vocagno.cli import (
    alignment,
    all_figures,
    evaluation,
    figures,
    granularity,
    guidance,
    result_figures,
    results,
    scores,
    stores,
    study,
)
from vocagno.config.arguments import did_you_mean, new_parser, read_arguments
from vocagno.errors import InputError
from vocagno.system.signals import UNFINISHED, Terminated
from vocagno.system.text_tables import in_columns

Command = tuple[Callable[[Any], None], Callable[[Any], dict[str, Any] | None]]
"""What adds a command's arguments, and what runs it: a result, or None if it printed."""

_COMMANDS: dict[str, Command] = {
    "align": (alignment.add_align, alignment.align),
    "overlap": (alignment.add_overlap, alignment.overlap),
    "granularity": (granularity.add_granularity, granularity.granularity),
    "describe": (alignment.add_describe, alignment.describe),
    "guidance": (guidance.add_guidance, guidance.guidance),
    "score": (stores.add_score, stores.score),
    "prepare": (stores.add_prepare, stores.prepare),
    "scores info": (scores.add_info, scores.info),
    "scores verify": (scores.add_verify, scores.verify),
    "scores export": (scores.add_export, scores.export),
    "scores import": (scores.add_import, scores.import_),
    "eval": (evaluation.add_eval, evaluation.eval_),
    "study": (study.add_study, study.study),
    "figures run": (figures.add_run, figures.run),
    "figures overlap": (figures.add_overlap, figures.overlap),
    "figures tokens": (figures.add_tokens, figures.tokens),
    "figures table": (results.add_table, results.table),
    "figures teachers": (result_figures.add_teachers, result_figures.teachers),
    "figures gains": (result_figures.add_gains, result_figures.gains),
    "figures granularity-scores": (
        result_figures.add_granularity_scores,
        result_figures.granularity_scores,
    ),
    "figures sweep": (result_figures.add_sweep, result_figures.sweep),
    "figures all": (all_figures.add_all, all_figures.all_),
}
_GROUPS = {"scores": scores.__doc__, "figures": figures.__doc__}
"""First words that stand for several commands."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0, 75 if it was told to stop and can go on, 2 for an error of the user's."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # escapes what it lacks, as stderr does
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments == ["--version"]:  # needs no extra
            from vocagno import __version__

            print(f"vocagno {__version__}")
            return 0
        return _run(arguments)
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name == "vocagno":
            raise
        print(f"error: needs {name}: pip install 'vocagno[{_extra(name)}]'", file=sys.stderr)
    except BrokenPipeError:  # `vocagno ... | head`: whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Terminated:
        print("SIGTERM: stopped; what is made stays, run again to go on", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        print("interrupted; what is made stays, run again to go on", file=sys.stderr)
        return 130
    except (InputError, SpanError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 2


def _extra(module: str) -> str:
    """The extra that brings a module."""
    if module in ("jsonargparse", "rich", "filelock", "tokenizers", "yaml"):
        return "cli"
    if module in ("pyarrow", "tqdm"):
        return "data"
    if module in ("lm_eval", "math_verify", "sympy", "word2number"):
        return "eval"
    return "viz" if module == "matplotlib" else "train"


def _run(arguments: list[str]) -> int:
    name = named(arguments)
    if name not in _COMMANDS and name.split() == arguments:
        _parsers()[name].print_help(sys.stderr)
        return 2
    chosen = read_options(name, arguments)
    result = _COMMANDS[name][1](chosen)
    if result is not None and chosen.json:
        print(json.dumps(result))
    elif result is not None:
        print(in_columns(result))
    sys.stdout.flush()
    return 0


def read_options(name: str, arguments: Sequence[str]) -> Any:
    """The options of a command, read and not yet carried out; `name` is what `named` gives.

    Raises: ConfigError for an unknown option or a value of the wrong kind.
    """
    parsers = _parsers()
    _, options = read_arguments(parsers[""], arguments, command=name, of_command=parsers[name])
    return options[name.replace(" ", ".")]


def named(arguments: Sequence[str]) -> str:
    """The command that is named; without one, the group, or "".

    Raises: InputError for a word that is no command.
    """
    name = ""
    for word in arguments:
        if name in _COMMANDS or word.startswith("-"):
            break
        begun = name.split()
        behind = [full.split()[len(begun) :] for full in _COMMANDS if full.startswith(name)]
        known = list(dict.fromkeys(words[0] for words in behind))
        if word not in known:
            near = did_you_mean(word, known) or did_you_mean(word, _COMMANDS)
            where = " ".join(["vocagno", *begun])
            raise InputError(
                f"{word}: no such command of `{where}`, which has {', '.join(known)}{near}"
            )
        name = " ".join([*begun, word])
    return name


def _parsers() -> dict[str, Any]:
    """The parsers of all commands and groups by name; that of `vocagno` itself by ""."""
    from vocagno import __version__

    parsers = {"": new_parser(prog="vocagno", description=__doc__, version=__version__)}
    places = {"": parsers[""].add_subcommands()}
    for name, (add, _) in _COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in places:
            parsers[group] = new_parser(description=_GROUPS[group])
            places[""].add_subcommand(group, parsers[group], help=_first_paragraph(_GROUPS[group]))
            places[group] = parsers[group].add_subcommands()
        parsers[name] = command = new_parser(description=add.__doc__)
        add(command)
        command.add_argument("--json", action="store_true", help="result as one JSON object")
        places[group].add_subcommand(last, command, help=_first_paragraph(add.__doc__))
    return parsers


def _first_paragraph(doc: str | None) -> str:
    return " ".join((doc or "").partition("\n\n")[0].split())
