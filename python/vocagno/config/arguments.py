"""Options from the command line and from YAML files, read by jsonargparse; errors of one line."""

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
_UNREAD = re.compile(r"unrecognized arguments: (.*)")
_OPTION = re.compile("--?[a-zA-Z_]")
REMOVED: dict[str, tuple[Sequence[Any], str]] = {
    "guidance.weight": (["hard"], "a token is trained on or not"),
    "guidance.weight_scale": ([1.0], "a token is trained on or not"),
    "guidance.min_weight": ([0.0], "a token is trained on or not"),
    "guidance.window_threshold": ([None], "guidance.window_max_loss says what is noise"),
    "train.head_loss": (["auto", "loop"], "one loop computes every head and its loss"),
    "train.profile_steps": ([0], "torch.profiler traces a script's own steps"),
    "train.spike_ratio": ([1.5], "a loss of 1.5 times the last window's is a spike"),
    "optimizer.name": (["adamw"], "GuidedTrainer takes other optimizers, by `optim`"),
    "optimizer.decay_steps": ([None], "the decay of wsd takes a fifth of all steps"),
    "optimizer.skip_nonfinite": ([False], "a NaN or infinite gradient stops the run"),
}
"""Options that are gone: the values that say what holds without them, and what replaced them. Files
may have these values: every run of an older version kept all its options."""


def new_parser(*, with_help: bool = False, **words: Any) -> Any:
    """A parser for `read_arguments` and `read_file`.

    An option needs its whole name: as an abbreviation, `--teacher.mode` would be `--teacher.model`.
    Only one made `with_help` describes the options of dataclasses: it reads their source for that.
    """
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings
    from jsonargparse.typing import register_type

    class Parser(ArgumentParser):  # type: ignore[misc]  # jsonargparse is not typed
        def parse_string(self, *given: Any, **named: Any) -> Any:
            for name in named.keys() & {"content", "cfg_str"}:  # the text of a file, by release
                named[name] = without_removed(named[name])
            return super().parse_string(*given, **named)

    class Help(DefaultHelpFormatter):  # type: ignore[misc]  # jsonargparse is not typed
        def _get_type_str(self, action: Any) -> str | None:
            text = super()._get_type_str(action)
            return "Path" if text == "<class 'Path'>" else text

    register_type(Path, str, path_of, type_check=isinstance)
    set_parsing_settings(docstring_parse_attribute_docstrings=with_help)
    return Parser(exit_on_error=False, allow_abbrev=False, formatter_class=Help, **words)


def read_arguments(parser: Any, arguments: Sequence[str]) -> Any:
    """The options of a command line, with dataclasses made. Raises: ConfigError, of one line."""
    files = [
        word.removeprefix("--config=") if "=" in word else following
        for word, following in zip(arguments, [*arguments, ""][1:], strict=True)
        if word == "--config" or word.startswith("--config=")
    ]
    return _read(parser, partial(parser.parse_args, list(arguments)), "", " or ".join(files))


def read_file(parser: Any, path: Path) -> Any:
    """The options in a YAML file, with dataclasses made. Raises: as `read_arguments`."""
    return _read(parser, partial(parser.parse_path, path), f"{path}: ", str(path))


def _read(parser: Any, parse: partial[Any], where: str, file: str) -> Any:
    from jsonargparse import ArgumentError, Namespace

    try:
        found = parse()
    except (ArgumentError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}{_in_one_line(parser, error, file)}") from error
    for name in parser.groups:
        if name in found and not isinstance(found[name], Namespace):  # `guidance: null`
            raise ConfigError(
                f"{where}{name}: expected options as `name: value`, got {found[name]}"
            )
    return parser.instantiate(found)


def _in_one_line(parser: Any, error: Exception, file: str) -> str:
    """The words of jsonargparse; for an unknown option, its name and the nearest known one."""
    text = " ".join(str(error).split()).replace('"<unicode string>"', file)
    if "that cannot start any token" in text:
        text += " (YAML is indented by spaces, not by tabs)"
    see_help = f"; see `{parser.prog} --help`"
    if (value := _NO_FILE.search(text)) and not value[2].startswith(("{", "'{")):
        group, named = value.groups()
        hint = f"; did you mean --{group}.model {named}?" * (f"{group}.model" in _names(parser))
        return f"{group}: expected a YAML file with its options, got {named}{hint}"
    if unknown := _UNKNOWN.search(text):
        name, known = ".".join(filter(None, unknown.groups())), _names(parser)
        return f"{name}: no such option{did_you_mean(name, known) or see_help}"
    if unread := _UNREAD.search(text):
        known = [name for action in parser._actions for name in action.option_strings]
        options = [word.partition("=")[0] for word in unread[1].split() if _OPTION.match(word)]
        unknown_ones = (f"{name}: no such option{did_you_mean(name, known)}" for name in options)
        return ("; ".join(unknown_ones) or text) + see_help
    return text


def _names(parser: Any) -> list[str]:
    """The options of a parser, as a YAML file names them."""
    return [action.dest for action in parser._actions]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?`, with the nearest of the known names, or "" if none is near.

    Names that end in the same word count as near: `steps`, and `train.steps`.
    """
    if gone := REMOVED.get(name.removeprefix("--")):
        return f"; it is gone: {gone[1]}"
    last = {other: re.split(r"[ .]|--", other)[-1] for other in (name, *known)}
    others = [other for other in last if other != name]
    near = get_close_matches(name, others, 1, cutoff=0.7)
    near = near or [other for other in others if last[other] == last[name]]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def without_removed(text: str) -> str:
    """YAML of any version without `REMOVED` options that say what holds; other text as it is."""
    from jsonargparse import get_loader
    from yaml import YAMLError, safe_dump

    try:
        values = get_loader("yaml")(text)
    except YAMLError:
        return text
    found = False
    for name, (harmless, _) in REMOVED.items():
        section, _, option = name.partition(".")
        group = values.get(section) if isinstance(values, dict) else None
        if isinstance(group, dict) and option in group and group[option] in harmless:
            del group[option]
            found = True
    group = values.get("guidance") if isinstance(values, dict) else None
    rule = group if isinstance(group, dict) else {}
    if rule.get("distill_where") == "ahead" and rule.get("method") not in (None, "distill"):
        del rule["distill_where"]  # a value that is gone; other methods kept it, too
        found = True
    return str(safe_dump(values, sort_keys=False)) if found else text


CORPUS = "JSON Lines, Parquet or text files, a folder of these, also at s3://..., or datasets:NAME"
TOKENIZER = "tokenizer.json(.gz), a folder with one, or a name that transformers knows"
"""Help for arguments that several commands take."""


def add_cache_and_max_refused(parser: Any) -> None:
    """Adds `--cache` and `--max_refused`, by default those of a run."""
    from vocagno.config.options import DataConfig

    words = {"cache": "folder of the cache"}
    words["max_refused"] = "share of the documents that may be omitted (data.max_refused)"
    for name, text in words.items():
        field = DataConfig.__dataclass_fields__[name]
        parser.add_argument(f"--{name}", type=field.type, default=field.default, help=text)


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
        """The options in the words after the name. Raises: as `read_arguments`."""
        with_help = not {"-h", "--help"}.isdisjoint(arguments)  # perhaps as a value
        parser = new_parser(prog=prog, description=self.add.__doc__, with_help=with_help)
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
