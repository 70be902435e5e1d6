"""Programs of several commands: `vocagno`, and `python -m vocagno.paper`.

Messages go to stderr, results to stdout.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from vocagno.config.arguments import did_you_mean, new_parser, read_arguments
from vocagno.errors import InputError, require
from vocagno.system.exit_status import DONE, USER_ERROR, exit_status
from vocagno.system.text_tables import in_columns

CORPUS = "JSON Lines, Parquet or text files, a folder of these, also at s3://..., or datasets:NAME"
TOKENIZER = "tokenizer.json(.gz), a folder with one, or a name that transformers knows"
"""Help for arguments that several commands take."""


def add_gpu(parser: Any) -> None:
    """Adds `--gpu`, which goes with `--dry_run`."""
    parser.add_argument(
        "--gpu",
        type=str | None,
        help="with --dry_run: compute from the peak of this GPU, such as H100; default: measure",
    )


def add_cache(parser: Any) -> None:
    """Adds `--cache`, by default that of a run."""
    from vocagno.config.data import DataConfig

    cache = DataConfig.__dataclass_fields__["cache"].default
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the cache")


def add_max_refused(parser: Any) -> None:
    """Adds `--max_refused`, by default that of a run."""
    from vocagno.config.data import DataConfig

    share = DataConfig.__dataclass_fields__["max_refused"].default
    parser.add_argument(
        "--max_refused",
        type=float,
        default=share,
        help="share of the documents that may be omitted (data.max_refused)",
    )


def check_gpu(options: Any) -> None:
    """Raises: ConfigError for `--gpu` without `--dry_run`."""
    require(options.dry_run or options.gpu is None, "--gpu: goes with --dry_run")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a program."""

    add: Callable[[Any], None]
    """Adds the options to a parser. The first line of its docstring describes the command."""
    run: Callable[[Any], Mapping[str, Any] | int | None]
    """Takes the options. Gives a result to print, or the exit status (None: done)."""
    has_json: bool = True
    """Whether `--json` prints the result as JSON."""

    @property
    def about(self) -> str:
        """What the command does, in one line."""
        return (self.add.__doc__ or "").partition("\n")[0]

    def read(self, prog: str, arguments: Sequence[str]) -> Any:
        """The options in a command line, after the name of the command.

        Raises: ConfigError for an unknown or missing option, or for a wrong value.
        """
        parser = new_parser(prog=prog, description=self.add.__doc__)
        self.add(parser)
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print the result as JSON")
        return read_arguments(parser, arguments)

    def __call__(self, prog: str, arguments: Sequence[str]) -> int:
        """Runs the command and prints its result; the exit status."""
        options = self.read(prog, arguments)
        result = self.run(options)
        if isinstance(result, Mapping):
            print(json.dumps(result) if self.has_json and options.json else in_columns(result))
            return DONE
        return DONE if result is None else result


@dataclass(frozen=True)
class Program:
    """Commands under one name."""

    name: str
    """As it is typed."""
    about: str
    commands: Mapping[str, Command]
    """By name; `scores info` is a command of the group `scores`."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """What the commands of a group do, in one line."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Runs what a command line asks for, by default that of the process; the exit status."""
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr
        words = sys.argv[1:] if arguments is None else arguments
        return exit_status(lambda: self._run(list(words)))

    def _run(self, arguments: list[str]) -> int:
        if arguments == ["--version"]:
            from vocagno import __version__

            print(f"vocagno {__version__}")
            return DONE
        name, rest = self.split(arguments)
        if name in self.commands:
            return self.commands[name](f"{self.name} {name}", rest)
        if rest in (["--help"], ["-h"]):
            print(self._help(name))
            return DONE
        if rest:
            raise InputError(f"{rest[0]}: no such option; see `{self._typed(name)} --help`")
        print(self._help(name), file=sys.stderr)
        return USER_ERROR

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """The name of the command, and the words after it. Without a command: of the group, or "".

        Raises: InputError for a word that is not a command.
        """
        name = ""
        for at, word in enumerate(arguments):
            if name in self.commands or word.startswith("-"):
                return name, arguments[at:]
            known = self._known(name)
            if word not in known:
                near = did_you_mean(word, known) or did_you_mean(word, self.commands)
                raise InputError(
                    f"{word}: no such command of `{self._typed(name)}`, which has "
                    f"{', '.join(known)}{near}"
                )
            name = f"{name} {word}".strip()
        return name, []

    def _known(self, group: str) -> dict[str, str]:
        """Commands of a group or of the program, and what each does."""
        known: dict[str, str] = {}
        for full, command in self.commands.items():
            before, _, last = full.rpartition(" ")
            if before == group:
                known[last] = command.about
            elif not group:
                known[before] = self.groups[before]
        return known

    def _typed(self, group: str) -> str:
        return f"{self.name} {group}".strip()

    def _help(self, group: str) -> str:
        about = self.groups[group] if group else self.about
        listed = in_columns({f"  {name}": text for name, text in self._known(group).items()})
        typed = self._typed(group)
        return (
            f"usage: {typed} COMMAND ...\n\n{about}\n\ncommands:\n{listed}\n\n"
            f"`{typed} COMMAND --help` shows the options of a command."
        )
