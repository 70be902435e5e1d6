"""What jsonargparse finds wrong with options, in the words that a user typed or wrote.

Its errors are sentences alone, so they are told apart by their beginnings; one that is not known
here (a release with other words) is passed on in one line.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vocagno.errors import ConfigError

_LONGEST = 80
"""Characters of a wrong value that are shown."""

_REJECTED_KEY = re.compile(
    r"(?:(?:Group '(?P<group>.+)'|Subcommand '.+') does not accept option|Option)"
    r" '(?P<key>.+?)'(?: is not accepted.*)?"
)
_WRONG_VALUE = re.compile(r'.*Parser key "(?P<key>[^"]+)"(?: element \d+)?:(?P<why>.*)', re.DOTALL)
_NO_GROUP = re.compile(
    r"""Unable to load config ['"](?P<value>.*?)['"]\s*(?:- (?P<why>.+))?$""", re.DOTALL
)
_GIVEN = re.compile(r"(?:Got|Given) value: ?(.*)|, not (\w+)$", re.DOTALL)
_OPTION = re.compile("--?[a-zA-Z_]")
_KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path",
}  # fmt: skip


def new_parser(**words: Any) -> Any:
    """A parser whose errors `read_arguments` can explain.

    It takes no option by a part of its name: `--teacher.mode`, where there is none, would be
    `--teacher.model`.
    """
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)  # what --help says of fields
    return ArgumentParser(exit_on_error=False, allow_abbrev=False, **words)


def read_arguments(
    parser: Any, arguments: Sequence[str], *, command: str = "", of_command: Any = None
) -> tuple[Any, Any]:
    """What was given, as jsonargparse keeps it, and the same with dataclasses made.

    Args:
        command: which of the parser's commands is named; its words have one space between them.
        of_command: the parser of that command.
    Raises: ConfigError, of one line, for an unknown option or a value of the wrong kind.
    """
    from jsonargparse import ArgumentError, Namespace

    prefix = "".join(f"{word}." for word in command.split())
    speaker = _Speaker(of_command or parser, arguments, prefix)
    try:
        found = parser.parse_args(list(arguments))
        for group in speaker.groups():
            if not isinstance(value := found.get(prefix + group), Namespace):
                raise ConfigError(speaker.not_a_group(group, "null" if value is None else value))
        return found, parser.instantiate(found)
    except ArgumentError as error:
        raise ConfigError(speaker.explain(str(error))) from error


def explain(error: Exception, parser: Any) -> str:
    """An error about a file that was read as a whole, in one line."""
    return _Speaker(parser).explain(str(error))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?`, with the nearest of the known names, or "" if none is near.

    Names that end in the same word count as near: `steps`, and `train.steps`.
    """
    known = list(known)
    end = _last_word(name)
    near = get_close_matches(name, known, 1, cutoff=0.7)
    near = near or [other for other in known if _last_word(other) == end]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _last_word(name: str) -> str:
    return re.split(r"[ .]|--", name)[-1]


@dataclass(frozen=True)
class _Speaker:
    """Puts errors of one parser into words."""

    parser: Any
    arguments: Sequence[str] = ()
    """As they were typed; none if a file was read."""
    prefix: str = ""
    """What jsonargparse puts before the names of options: the command."""

    def groups(self) -> list[str]:
        """Names that stand for several options: `teacher`."""
        return [name for name in self.parser.groups if self._action(name) is not None]

    def explain(self, message: str) -> str:
        """The error, in one line."""
        for start, explained in (
            ("unrecognized arguments: ", self._unknown_words),
            ("the following arguments are required: ", self._missing),
            ("Problems parsing config: ", self._not_yaml),
            ("Unexpected config: ", self._no_options),
            ("Key must be a string, got: ", self._no_options),
        ):
            if message.startswith(start):
                return explained(message.removeprefix(start))
        if found := _REJECTED_KEY.fullmatch(message):
            group = f"{found['group']}." if found["group"] else ""
            return self._unknown_key(group + found["key"])
        if found := _WRONG_VALUE.fullmatch(message):
            return self._wrong_value(found["key"], found["why"])
        message = message.replace("ignored explicit argument", "takes no value, got")
        return _one_line(message.removeprefix("argument "))

    def not_a_group(self, name: str, value: Any) -> str:
        """For a value where options of a group belong."""
        return (
            f"{self._named(name)}: expected options as `name: value`, or a YAML file of them, got "
            f"{_short(str(value))}"
        )

    def _unknown_words(self, words: str) -> str:
        names = [word.partition("=")[0] for word in words.split() if _OPTION.match(word)]
        if not _OPTION.match(words):
            remedy = "put quotes round what holds spaces"
            optional = [action.dest for action in self.parser._actions if action.nargs == "?"]
            if optional and any(map(_OPTION.match, self.arguments)):
                # argparse takes one that may be left out for left out when an option comes first
                remedy += f", and {optional[-1]} before the options"
            return f"unexpected: {_short(words)}; {remedy}; see {self._help}"
        return "; ".join(f"{name}: no such option{self._instead(name)}" for name in names)

    def _instead(self, option: str) -> str:
        for action in self.parser._actions:
            if not action.option_strings and option == f"--{action.dest}":
                return f"; {self._named(action.dest)} is given without its name, see {self._help}"
        options = [name for action in self.parser._actions for name in action.option_strings]
        return did_you_mean(option, options) or f"; see {self._help}"

    def _unknown_key(self, key: str) -> str:
        known = [action.dest for action in self.parser._actions]
        instead = did_you_mean(key, known) or (f"; see {self._help}" if self.arguments else "")
        return f"{self._named(key)}: no such option{instead}"

    def _missing(self, keys: str) -> str:
        names = [key.removeprefix(self.prefix) for key in keys.split(", ")]
        named = ", ".join(self._named(name, in_files=False) for name in names)
        files = f" (or in {self._files})" if self._files else ""
        return f"missing: {named}{files}" + (f"; see {self._help}" if self.arguments else "")

    def _not_yaml(self, why: str) -> str:
        return ": ".join(filter(None, [self._files, "not YAML", _yaml_error(why)]))

    def _no_options(self, content: str) -> str:
        files = f"{self._files}: " if self._files else ""
        what = _short(content) or "nothing"
        return f"{files}expected options as `name: value`, in YAML, got {what}"

    def _wrong_value(self, key: str, why: str) -> str:
        if key == "config":
            path = why.partition(": ")[2].strip("'")
            missing = f"--config: {path}: no such file"
            return missing if "does not exist" in why else f"--config: {_one_line(why)}"
        if found := _NO_GROUP.search(why):
            reason = f" ({_yaml_error(found['why'])})" if found["why"] else ""
            return self.not_a_group(key, found["value"]) + reason
        action = self._action(key)
        expected = _expected(getattr(action, "_typehint", None))
        given = _GIVEN.search(why)
        if not expected or not given:
            return f"{self._named(key)}: {_one_line(why)}"
        what = f"one of type {given[2]}" if given[2] else _short(given[1]) or "nothing"
        return f"{self._named(key)}: expected {expected}, got {what}"

    def _named(self, key: str, *, in_files: bool = True) -> str:
        """As it was given: `corpus`, `--seq_len`, `train.steps in FILE`."""
        action = self._action(key)
        if action is not None and not action.option_strings:
            return str(action.metavar or key)
        if not self.arguments:
            return key
        typed = {word.partition("=")[0] for word in self.arguments}
        parts = key.split(".")
        here = any(f"--{'.'.join(parts[:end])}" in typed for end in range(1, len(parts) + 1))
        return f"--{key}" if here or not in_files or not self._files else f"{key} in {self._files}"

    def _action(self, key: str) -> Any:
        return next((action for action in self.parser._actions if action.dest == key), None)

    @property
    def _files(self) -> str:
        """The configuration files, as they were named."""
        found: list[str] = []
        for at, word in enumerate(self.arguments):
            name, equals, value = word.partition("=")
            if name == "--config":
                found += [value] if equals else self.arguments[at + 1 : at + 2]
        return " or ".join(found)

    @property
    def _help(self) -> str:
        return f"`{self.parser.prog.replace(' [options]', '')} --help`"


def _expected(hint: Any) -> str:
    """A type in words; "" if there are none for it."""
    inner = get_args(hint)
    words = [_expected(one) for one in inner if one is not NoneType]
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (Union, UnionType):
        return " or ".join(words) + (", or null" if NoneType in inner else "")
    if origin is list:
        return f"a list, each {words[0]}"
    if origin is tuple:
        return f"a list of {len(inner)}, each {words[0]}"
    return "a mapping of `name: value`" if origin is dict else _KINDS.get(hint, "")


def _yaml_error(text: str) -> str:
    return _one_line(text.replace('in "<unicode string>",', "at"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
