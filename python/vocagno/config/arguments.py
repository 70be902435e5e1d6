"""Options from the command line and from YAML files, read by jsonargparse; errors of one line."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from vocagno.errors import ConfigError

_UNKNOWN = re.compile(r"Group '(.+)' does not accept option '(.+)'|Option '(.+)' is not accepted")
_UNREAD = re.compile(r"unrecognized arguments: (.*)")
_OPTION = re.compile("--?[a-zA-Z_]")
REMOVED: dict[str, tuple[Sequence[Any], str]] = {
    "guidance.weight": (["hard"], "a token is trained on or not"),
    "guidance.weight_scale": ([1.0], "a token is trained on or not"),
    "guidance.min_weight": ([0.0], "a token is trained on or not"),
    "guidance.window_threshold": ([None], "guidance.window_max_loss says what is noise"),
    "train.head_loss": (["auto", "loop"], "one loop computes every head and its loss"),
}
"""Options that are gone: the values that say what holds without them, and what replaced them. Files
may have these values: every run of an older version kept all its options."""


def new_parser(**words: Any) -> Any:
    """A parser for `read_arguments` and `read_file`.

    An option needs its whole name: as an abbreviation, `--teacher.mode` would be `--teacher.model`.
    """
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

    class Parser(ArgumentParser):  # type: ignore[misc]  # jsonargparse is not typed
        def parse_string(self, *given: Any, **named: Any) -> Any:
            for name in named.keys() & {"content", "cfg_str"}:  # the text of a file, by release
                named[name] = _without_removed(named[name])
            return super().parse_string(*given, **named)

    class Help(DefaultHelpFormatter):  # type: ignore[misc]  # jsonargparse is not typed
        def _get_type_str(self, action: Any) -> str | None:
            text = super()._get_type_str(action)
            return "Path" if text == "<class 'Path'>" else text

    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # --help has those of fields
    return Parser(exit_on_error=False, allow_abbrev=False, formatter_class=Help, **words)


def read_arguments(parser: Any, arguments: Sequence[str]) -> Any:
    """The options of a command line, with dataclasses made.

    Raises: ConfigError, of one line, for an unknown or missing option, or for a wrong value.
    """
    return _read(parser, partial(parser.parse_args, list(arguments)), "")


def read_file(parser: Any, path: Path) -> Any:
    """The options in a YAML file, with dataclasses made.

    Raises: as `read_arguments`.
    """
    return _read(parser, partial(parser.parse_path, path), f"{path}: ")


def _read(parser: Any, parse: partial[Any], where: str) -> Any:
    from jsonargparse import ArgumentError, Namespace

    try:
        found = parse()
    except (ArgumentError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}{_in_one_line(parser, error)}") from error
    for name in parser.groups:
        if name in found and not isinstance(found[name], Namespace):  # `guidance: null`
            raise ConfigError(
                f"{where}{name}: expected options as `name: value`, got {found[name]}"
            )
    return parser.instantiate(found)


def _in_one_line(parser: Any, error: Exception) -> str:
    """The words of jsonargparse; for an unknown option, its name and the nearest known one."""
    text = " ".join(str(error).split())
    see_help = f"; see `{parser.prog} --help`"
    if unknown := _UNKNOWN.search(text):
        name, known = ".".join(filter(None, unknown.groups())), [a.dest for a in parser._actions]
        return f"{name}: no such option{did_you_mean(name, known) or see_help}"
    if unread := _UNREAD.search(text):
        known = [name for action in parser._actions for name in action.option_strings]
        options = [word.partition("=")[0] for word in unread[1].split() if _OPTION.match(word)]
        unknown_ones = (f"{name}: no such option{did_you_mean(name, known)}" for name in options)
        return ("; ".join(unknown_ones) or text) + see_help
    return text


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


def _without_removed(text: str) -> str:
    """YAML without the `REMOVED` options that say what holds; what is no YAML stays as it is."""
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
    return str(safe_dump(values, sort_keys=False)) if found else text
