"""Reads options from the command line and from YAML files with jsonargparse, and runs commands.

Every error of jsonargparse becomes a ConfigError of one line that names the option and, for a
misspelt one, the nearest valid name.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from vocagno.errors import ConfigError, InputError
from vocagno.system.addresses import path_of
from vocagno.system.progress import in_columns
from vocagno.system.signals import DONE, USER_ERROR, exit_status

_UNKNOWN = re.compile(r"Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted")
_NO_FILE = re.compile(r"Parser key \"(\w+)\": Unable to load config '(.*?)' -")
_MISSING_CONFIG = re.compile(r"Parser key \"config\": File does not exist: (.*)")
_REQUIRED = re.compile(r"the following arguments are required: (.*)")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (.*)")
_OPTION = re.compile("--?[a-zA-Z_]")


def new_parser(*, with_help: bool = False, **settings: Any) -> Any:
    """Makes a parser for `read_arguments` and `read_file`.

    Args:
        with_help: describes the options of dataclasses. It reads their source for that, so only a
            command line that asks for help pays for it.
        settings: what `jsonargparse.ArgumentParser` takes, such as `prog`.
    """
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings
    from jsonargparse.typing import register_type

    class Help(DefaultHelpFormatter):  # type: ignore[misc]  # jsonargparse is not typed
        def _get_type_str(self, action: Any) -> str | None:
            text = super()._get_type_str(action)
            return "Path" if text == "<class 'Path'>" else text

    register_type(Path, str, path_of, type_check=isinstance)
    set_parsing_settings(docstring_parse_attribute_docstrings=with_help)
    # Abbreviations are refused, because `--teacher.mode` would be one of `--teacher.model`.
    return ArgumentParser(exit_on_error=False, allow_abbrev=False, formatter_class=Help, **settings)


def read_arguments(parser: Any, arguments: Sequence[str]) -> Any:
    """Reads the options of a command line and makes their dataclasses.
    Raises: ConfigError, of one line."""
    # jsonargparse does not say which file an error of YAML is in, so all of them are named.
    files = [
        word.removeprefix("--config=") if "=" in word else following
        for word, following in zip(arguments, [*arguments, ""][1:], strict=True)
        if word == "--config" or word.startswith("--config=")
    ]
    return _parse(parser, partial(parser.parse_args, list(arguments)), "", " or ".join(files))


def read_file(parser: Any, path: Path) -> Any:
    """Reads the options in a YAML file and makes their dataclasses.
    Raises: ConfigError, of one line that begins with the path."""
    return _parse(parser, partial(parser.parse_path, path), f"{path}: ", str(path))


def _parse(parser: Any, parse: partial[Any], prefix: str, file: str) -> Any:
    """Calls `parse` and makes the dataclasses of its options.

    Args:
        prefix: the start of every error message.
        file: the YAML file in which an error of syntax is.
    """
    from jsonargparse import ArgumentError, Namespace

    try:
        options = parse()
    except (ArgumentError, UnicodeDecodeError) as error:
        if needed := _REQUIRED.fullmatch(" ".join(str(error).split())):
            names = needed[1].split(", ")
            words = ", ".join(names) if prefix else _as_typed(parser, names)
            raise ConfigError(f"{prefix}needed: {words}") from error
        raise ConfigError(f"{prefix}{_in_one_line(parser, error, file)}") from error
    for name in parser.groups:
        # `guidance: null` would replace a whole dataclass, and fail far from here.
        if name in options and not isinstance(options[name], Namespace):
            raise ConfigError(
                f"{prefix}{name}: expected options as `name: value`, got {options[name]}"
            )
    return parser.instantiate(options)


def _as_typed(parser: Any, names: Sequence[str]) -> str:
    """Lists arguments as a command line has them: options with their dashes, which jsonargparse
    omits, as if they were positional arguments."""
    flags_of = {action.dest: action.option_strings for action in parser._actions}
    words = [(flags_of.get(name) or [name])[0] for name in names]
    return f"{', '.join(words)}; see `{parser.prog} --help`"


def _in_one_line(parser: Any, error: Exception, file: str) -> str:
    """Joins the lines of an error of jsonargparse; replaces those that mislead by a hint.

    An unknown option is named with the nearest valid one, and a word in place of a group of options
    with the option that probably takes it.
    """
    text = " ".join(str(error).split()).replace('"<unicode string>"', file)
    if "that cannot start any token" in text:
        text += " (YAML is indented by spaces, not by tabs)"
    if missing := _MISSING_CONFIG.fullmatch(text):
        return f"--config: no such file: {missing[1]}"
    see_help = f"; see `{parser.prog} --help`"
    valid_names = [action.dest for action in parser._actions]  # as a YAML file names them
    # A value that begins with a brace is a mapping that was read, with an invalid option in it.
    if (value := _NO_FILE.search(text)) and not value[2].startswith(("{", "'{")):
        group, word = value.groups()
        hint = f"; did you mean --{group}.model {word}?" * (f"{group}.model" in valid_names)
        return f"{group}: expected a YAML file with its options, got {word}{hint}"
    if unknown := _UNKNOWN.search(text):
        name = ".".join(filter(None, unknown.groups()))
        return f"{name}: no such option{did_you_mean(name, valid_names) or see_help}"
    if unrecognized := _UNRECOGNIZED.search(text):
        flags = [flag for action in parser._actions for flag in action.option_strings]
        words = unrecognized[1].split()
        options = [word.partition("=")[0] for word in words if _OPTION.match(word)]
        errors = (f"{name}: no such option{did_you_mean(name, flags)}" for name in options)
        return ("; ".join(errors) or text) + see_help
    return text


def did_you_mean(name: str, valid_names: Iterable[str]) -> str:
    """Returns `; did you mean NAME?` with the nearest of the valid names, or "" if none is near.

    Names that end in the same word count as near: `steps` and `train.steps`.
    """
    last_word = {choice: re.split(r"[ .]|--", choice)[-1] for choice in (name, *valid_names)}
    choices = [choice for choice in last_word if choice != name]
    near = get_close_matches(name, choices, 1, cutoff=0.7)
    near = near or [choice for choice in choices if last_word[choice] == last_word[name]]
    return f"; did you mean {' or '.join(near)}?" if near else ""


CORPUS = "JSON Lines, Parquet or text files, a folder of these, also at s3://..., or datasets:NAME"
TOKENIZER = "tokenizer.json(.gz), a folder with one, or a name that transformers knows"
"""Help for arguments that several commands take."""


def add_cache_and_max_refused(parser: Any) -> None:
    """Adds `--cache` and `--max_refused`, by default those of a run."""
    _add_data_option(parser, "cache", "folder of the cache")
    add_max_refused(parser)


def add_max_refused(parser: Any) -> None:
    """Adds `--max_refused`, by default that of a run."""
    words = "share of the documents that may be omitted (data.max_refused)"
    _add_data_option(parser, "max_refused", words)


def _add_data_option(parser: Any, name: str, words: str) -> None:
    """Adds an option of `data`, with the default of a run. Args: words: its help."""
    from vocagno.config.options import DataConfig

    field = DataConfig.__dataclass_fields__[name]
    parser.add_argument(f"--{name}", type=field.type, default=field.default, help=words)


def add_scoring_teacher(parser: Any) -> None:
    """Adds the options of a teacher that scores texts, without those of training with one."""
    from vocagno.config.teacher import TeacherConfig

    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores", "mode", "shard", "also"})


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a program."""

    add: Callable[[Any], None]
    """Adds the options to a parser. The first line of its docstring describes the command."""
    run: Callable[[Any], Mapping[str, Any] | int | None]
    """Takes the options. Returns a result to print, or the exit status (None: done)."""
    has_json: bool = True
    """True: the command takes `--json`, which prints the result as JSON."""

    @property
    def about(self) -> str:
        """One line that says what the command does."""
        return (self.add.__doc__ or "").partition("\n")[0]

    def read_options(self, prog: str, arguments: Sequence[str]) -> Any:
        """Reads the options in the words after the command's name.
        Raises: ConfigError, of one line."""
        # `--help` may also be the value of another option; then the help is made for nothing.
        with_help = not {"-h", "--help"}.isdisjoint(arguments)
        parser = new_parser(prog=prog, description=self.add.__doc__, with_help=with_help)
        self.add(parser)
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print the result as JSON")
        return read_arguments(parser, arguments)

    def __call__(self, prog: str, arguments: Sequence[str]) -> int:
        """Runs the command, prints its result and returns the exit status."""
        options = self.read_options(prog, arguments)
        result = self.run(options)
        if isinstance(result, Mapping):
            print(json.dumps(result) if self.has_json and options.json else in_columns(result))
            return DONE
        return DONE if result is None else result


@dataclass(frozen=True)
class Program:
    """Commands under one name."""

    name: str
    """The word that a user types first."""
    about: str
    """One line that says what the program does."""
    commands: Mapping[str, Command]
    """The commands by name; `scores info` is a command of the group `scores`."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """One line for each group that says what its commands do."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Runs the command of a command line, by default the process's; returns the exit status."""
        # A terminal without UTF-8 must not stop a command at a character that it cannot show.
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # stderr does the same
        words = sys.argv[1:] if arguments is None else arguments
        return exit_status(lambda: self._run(list(words)))

    def _run(self, arguments: list[str]) -> int:
        if arguments == ["--version"]:
            from vocagno import __version__

            print(f"vocagno {__version__}")
            return DONE
        name, words = self.split(arguments)
        if name in self.commands:
            return self.commands[name](f"{self.name} {name}", words)
        asks_for_help = words in (["--help"], ["-h"])
        typed = f"{self.name} {name}".strip()
        if words and not asks_for_help:
            near = did_you_mean(f"{name} {words[0]}".strip(), self.commands)
            raise InputError(
                f"{words[0]}: no such command of `{typed}`{near}; see `{typed} --help`"
            )
        print(self._help(name, typed), file=sys.stdout if asks_for_help else sys.stderr)
        return DONE if asks_for_help else USER_ERROR

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Splits a command line into the name of the command or group, or "", and the words after
        it."""
        names = (" ".join(arguments[:count]) for count in (2, 1))
        name = next((name for name in names if name in {*self.commands, *self.groups}), "")
        return name, arguments[len(name.split()) :]

    def _help(self, group: str, typed: str) -> str:
        """Lists the commands of a group; for group "", the other commands and the groups."""
        about = {name: command.about for name, command in self.commands.items()}
        about = {name: text for name, text in about.items() if name.rpartition(" ")[0] == group}
        if not group:
            about |= self.groups
        listed = in_columns({f"  {name.rpartition(' ')[2]}": text for name, text in about.items()})
        return (
            f"usage: {typed} COMMAND ...\n\n{self.groups.get(group, self.about)}\n\n"
            f"commands:\n{listed}\n\n`{typed} COMMAND --help` shows the options of a command."
        )
