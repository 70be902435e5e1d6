"""Programs of several commands: `vocagno`, and `python -m research.paper`.

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
        is_asked = rest in (["--help"], ["-h"])
        typed = f"{self.name} {name}".strip()
        if rest and not is_asked:
            near = did_you_mean(f"{name} {rest[0]}".strip(), self.commands)
            raise InputError(f"{rest[0]}: no such command of `{typed}`{near}; see `{typed} --help`")
        print(self._help(name, typed), file=sys.stdout if is_asked else sys.stderr)
        return DONE if is_asked else USER_ERROR

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """The name of the command or group, or "", and the words after it."""
        names = (" ".join(arguments[:words]) for words in (2, 1))
        name = next((one for one in names if one in {*self.commands, *self.groups}), "")
        return name, arguments[len(name.split()) :]

    def _help(self, group: str, typed: str) -> str:
        """The commands of a group, or all commands and groups outside them."""
        about = {name: command.about for name, command in self.commands.items()}
        inside = {name: text for name, text in about.items() if name.rpartition(" ")[0] == group}
        known = inside if group else {**inside, **self.groups}
        listed = in_columns({f"  {name.rpartition(' ')[2]}": text for name, text in known.items()})
        return (
            f"usage: {typed} COMMAND ...\n\n{self.groups.get(group, self.about)}\n\n"
            f"commands:\n{listed}\n\n`{typed} COMMAND --help` shows the options of a command."
        )
