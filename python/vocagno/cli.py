"""The command `vocagno`: words go to stderr, results to stdout."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vocagno._vocagno import SpanError
from vocagno.commands import alignment, stores
from vocagno.errors import InputError
from vocagno.stopping import UNFINISHED, Terminated
from vocagno.wording import in_columns

_COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[[Any], dict[str, Any] | None]]] = {
    "align": (alignment.add_align, alignment.align),
    "overlap": (alignment.add_overlap, alignment.overlap),
    "describe": (alignment.add_describe, alignment.describe),
    "score": (stores.add_score, stores.score),
    "prepare": (stores.add_prepare, stores.prepare),
}
"""For each command what adds its arguments, and what runs it: a result, or None if it printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0, 75 if it was told to stop and can go on, 2 for an error of the user's."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name == "vocagno":
            raise
        extra = "cli" if name in ("jsonargparse", "rich", "filelock", "tokenizers") else "train"
        print(f"error: needs {name}: pip install 'vocagno[{extra}]'", file=sys.stderr)
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


def _run(arguments: list[str]) -> int:
    from jsonargparse import ArgumentError

    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        options = parser.instantiate(options)
    except ArgumentError as error:
        raise InputError(str(error)) from error
    command = options.subcommand
    chosen = options[command]
    result = _COMMANDS[command][1](chosen)
    if result is not None and chosen.json:
        print(json.dumps(result))
    elif result is not None:
        print(in_columns(result))
    sys.stdout.flush()
    return 0


def _parser() -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="vocagno", description=__doc__, exit_on_error=False)
    commands = parser.add_subcommands()
    for name, (add, _) in _COMMANDS.items():
        command = ArgumentParser(description=add.__doc__, exit_on_error=False)
        add(command)
        command.add_argument("--json", action="store_true", help="result as one JSON object")
        commands.add_subcommand(name, command)
    return parser
