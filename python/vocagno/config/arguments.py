"""Options from the command line and from YAML files, and errors in the words that the user typed.

jsonargparse reads them. Its errors are sentences without a key or a value. So a mistake is looked
for here, in what the user gave: unknown names, wrong values, missing options.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from vocagno.config.option_types import in_words
from vocagno.errors import ConfigError

_LONGEST = 80
"""Characters of a wrong value that are shown."""
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
_NO_OPTIONS = "expected options as `name: value`, or a YAML file of them"


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
    return _read(parser, lambda: parser.parse_args(list(arguments)), _Given(parser, arguments))


def read_file(parser: Any, path: Path) -> Any:
    """The options in a YAML file, with dataclasses made.

    Raises: as `read_arguments`.
    """
    values = _load(path)
    return _read(parser, lambda: parser.parse_object(values), _Given(parser, file=path))


def _read(parser: Any, parse: Callable[[], Any], given: "_Given") -> Any:
    from jsonargparse import ArgumentError, Namespace

    try:
        found = parse()
    except (ArgumentError, UnicodeDecodeError) as error:
        inside = f"{given.file}: " if given.file else ""
        raise ConfigError(next(given.mistakes(), f"{inside}{_one_line(error)}")) from error
    for group in given.groups:
        if not isinstance(found.get(group), Namespace):  # `guidance: null`
            raise ConfigError(next(given.mistakes(), f"{group}: {_NO_OPTIONS}"))
    return parser.instantiate(found)


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


@dataclass(frozen=True)
class _Given:
    """What the user gave to a parser: a command line, or one file."""

    parser: Any
    words: Sequence[str] = ()
    file: Path | None = None

    def mistakes(self) -> Iterator[str]:
        """The mistakes that are found, in one line each."""
        options, others = self._split()
        if unknown := [name for name, dest, _ in options if not dest]:
            yield "; ".join(f"{name}: no such option{self._instead(name)}" for name in unknown)
        files = [] if self.file is None else [self.file]
        settings: list[tuple[str, str, Any]] = []
        for name, dest, words in options:
            nargs = self._actions[dest].nargs
            if words and nargs == 0:
                yield f"{name}: takes no value, got {words[0]!r}"
            if not words and nargs in (None, "+"):
                yield f"{name}: expected {'one argument' if nargs is None else 'arguments'}"
            if dest == "config":
                files += map(Path, words)
            elif name in self._options:
                settings += [place for word in words for place in self._typed(dest, word)]
        for file in files:
            values = _load(file, "--config: " if self.words else "")
            settings += [(f"{key} in {file}", key, value) for key, value in self._flat(values)]
        yield from filter(None, (self._wrong(*setting) for setting in settings))
        if extra := others[len(self._positional) :]:
            yield self._unexpected(extra)
        given = {key for _, key, value in settings if value is not None}
        given |= {action.dest for action, _ in zip(self._positional, others, strict=False)}
        given |= {dest for _, dest, _ in options}
        required = [name for name, action in self._actions.items() if action.required]
        if missing := [name for name in required if name not in given]:
            yield self._missing(missing, files)
        if others:  # argparse skips an optional word if an option comes first
            yield self._unexpected(others[-1:])

    @cached_property
    def groups(self) -> list[str]:
        """Names that stand for several options: `teacher`."""
        return [name for name in self.parser.groups if name in self._actions]

    @cached_property
    def _actions(self) -> dict[str, Any]:
        return {action.dest: action for action in self.parser._actions}

    @cached_property
    def _options(self) -> dict[str, Any]:
        named = self.parser._actions
        return {name: action for action in named for name in action.option_strings}

    @cached_property
    def _positional(self) -> list[Any]:
        return [action for action in self.parser._actions if not action.option_strings]

    @property
    def _help(self) -> str:
        return f"see `{self.parser.prog} --help`"

    def _split(self) -> tuple[list[tuple[str, str, list[str]]], list[str]]:
        """The options of the command line: as typed, full name, values. And all other words."""
        options: list[tuple[str, str, list[str]]] = []
        others: list[str] = []
        room = 0  # for values of the last option
        for word in self.words:
            if _OPTION.match(word):
                name, equals, value = word.partition("=")
                dest = self._dest(name)
                options.append((name, dest, [value] if equals else []))
                nargs = self._actions[dest].nargs if dest and not equals else 0
                room = {0: 0, "+": len(self.words)}.get(nargs, 1)
            elif room:
                options[-1][2].append(word)
                room -= 1
            else:
                others.append(word)
        return options, others

    def _dest(self, option: str) -> str:
        """Full name of what an option sets; "" if there is no such option.

        `--name+` appends to a list, `--name.key` sets one key of a mapping.
        """
        if option in self._options:  # -h, too
            return str(self._options[option].dest)
        parts = option.removesuffix("+").split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        found = next((name for name in names if name in self._options), "").removeprefix("--")
        return "" if found in self.groups else found

    def _typed(self, dest: str, word: str) -> list[tuple[str, str, Any]]:
        """Settings in one value of an option: several, if the option is a group."""
        if dest not in self.groups:
            return [(f"--{dest}", dest, word)]
        try:
            values = _load(Path(word)) if Path(word).is_file() else _yaml(word)
        except ValueError as error:
            raise ConfigError(f"--{dest}: {_NO_OPTIONS}, got {_short(word)} ({error})") from error
        if not isinstance(values, dict):
            return [(f"--{dest}", dest, word)]
        return [(f"--{key}", key, value) for key, value in self._flat(values, f"{dest}.")]

    def _flat(self, values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Options by their full names, and groups that are not mappings."""
        for key, value in values.items():
            name = f"{prefix}{key}"
            is_option = name in self._actions and name not in self.groups
            if isinstance(value, Mapping) and value and not is_option:
                yield from self._flat(value, f"{name}.")
            else:
                yield name, value

    def _wrong(self, shown: str, name: str, value: Any) -> str | None:
        """What is wrong with a setting; `shown` is its name for the user."""
        if name not in self._actions:
            instead = did_you_mean(name, self._actions)
            return f"{shown}: no such option{instead or (self.words and f'; {self._help}') or ''}"
        if name in self.groups:
            return None if value == {} else f"{shown}: {_NO_OPTIONS}, got {_short(value)}"
        hint = getattr(self._actions[name], "_typehint", None)
        expected = in_words(hint)
        is_inside = isinstance(value, Mapping) and _accepts(hint, {})  # jsonargparse says where
        if value is None or not expected or is_inside or _accepts(hint, value):
            return None
        return f"{shown}: expected {expected}, got {_short(value)}"

    def _missing(self, names: Sequence[str], files: Sequence[Path]) -> str:
        inside = f" (or in {' or '.join(map(str, files))})" if files else ""
        if not self.words and files:
            return f"missing in {files[0]}: {', '.join(names)}"
        known = {action.dest: action.metavar or action.dest for action in self._positional}
        shown = ", ".join(str(known.get(name, f"--{name}")) for name in names)
        return f"missing: {shown}{inside}; {self._help}"

    def _unexpected(self, words: Sequence[str]) -> str:
        remedy = "put quotes round what holds spaces"
        for action in self._positional:
            if action.nargs == "?" and any(map(_OPTION.match, self.words)):
                remedy += f", and {action.dest} before the options"
        return f"unexpected: {_short(' '.join(words))}; {remedy}; {self._help}"

    def _instead(self, option: str) -> str:
        if option.removeprefix("--") in [action.dest for action in self._positional]:
            return f"; {option.removeprefix('--')} is given without its name, {self._help}"
        return did_you_mean(option, self._options) or f"; {self._help}"


def _load(path: Path, option: str = "") -> dict[str, Any]:
    """The options in a YAML file, not yet checked.

    Raises: ConfigError for a file that is missing, not YAML in UTF-8, or without options.
    """
    if not path.is_file():
        raise ConfigError(f"{option}{path}: no such file")
    try:
        values = _yaml(text := _without_removed(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; convert it") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected options as `name: value`, in YAML, got {_short(text)}")
    return values


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


def _yaml(text: str) -> Any:
    """What jsonargparse reads in a text. Raises: ValueError, of one line, if it is not YAML."""
    from jsonargparse import get_loader
    from yaml import YAMLError

    try:
        return get_loader("yaml")(text)
    except YAMLError as error:
        where = str(error).replace('in "<unicode string>",', "at")
        raise ValueError(_one_line(where)) from error


def _accepts(hint: Any, value: Any) -> bool:
    """Whether jsonargparse takes a value for a type."""
    from jsonargparse import ArgumentError

    parser = new_parser()
    parser.add_argument("--value", type=hint)
    try:
        parser.parse_object({"value": value})
    except ArgumentError:
        return False
    return True


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _short(value: object) -> str:
    text = "null" if value is None else _one_line(value) or "nothing"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
