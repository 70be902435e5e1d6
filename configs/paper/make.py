"""Writes the paper's runs, a file each, and the index README.md, from facts.yaml.

    python configs/paper/make.py            # writes them all
    python configs/paper/make.py --check    # 1 if a file is not what the facts say

Needs PyYAML, which jsonargparse brings.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

HERE = Path(__file__).parent
WIDTH = 100
SECTIONS = ("student", "teacher", "data", "guidance", "optimizer", "train")
FIRST = ("model", "method", "steps")
"""Options that stand first in their sections."""
TEACHER = "teacher.model"
FIRST_WORDS = ("Table 1", "Table 2", "Table 3", "Fig. 7a", "Fig. 7b")
"""What rows and points begin with, in the order of the index."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What an option is, and why; see the head of facts.yaml."""

    value: Any = None
    tokens: int | None = None
    where: str | None = None
    words: str | None = None
    silent: str | bool = False
    source: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.tokens is None):
            raise ValueError("needs either `value` or `tokens`")
        if (self.where is None) != (self.words is None):
            raise ValueError("needs `where` and `words` together")
        if bool(self.silent) != (self.source is not None):
            raise ValueError("needs `silent` and `source` together")
        if not (self.where or self.silent):
            raise ValueError("needs `where` and `words`, or `silent` and `source`, or all four")

    def reason(self) -> str:
        """The comment beside the value."""
        parts = [f'{self.where} "{self.words}"'] if self.where else []
        if self.silent is True:
            parts.append(f"silent [{self.source}]")
        elif self.silent:
            parts.append(f"silent on {self.silent} [{self.source}]")
        return "; ".join(parts) + (f": {self.note}" if self.note else "")


@dataclass(frozen=True)
class Run:
    """A file: its options, in the order of the sections, and the rows that it stands for."""

    name: str
    rows: list[str]
    options: dict[str, Fact]

    @property
    def row_tokens(self) -> int:
        """Predicted tokens of an optimizer step."""
        return int(self.options["train.global_batch"].value * self.options["data.seq_len"].value)

    @property
    def steps(self) -> int:
        """As many as reach the tokens of the run."""
        return -(-int(self.options["train.steps"].tokens or 0) // self.row_tokens)


def read_facts(path: Path = HERE / "facts.yaml") -> dict[str, Any]:
    """Sources, layers and files."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def runs(facts: Mapping[str, Any]) -> list[Run]:
    """Every run, its layers joined.

    Raises: ValueError for a fact or layer that is not as it should be, naming it.
    """
    layers = {
        name: {option: _fact(name, option, fields) for option, fields in layer.items()}
        for name, layer in facts["layers"].items()
    }
    found = []
    for name, file in facts["files"].items():
        options: dict[str, Fact] = {}
        for layer in ("common", *file["of"]):
            if layer not in layers:
                raise ValueError(f"facts.yaml, files, {name}: no layer {layer!r}")
            options |= layers[layer]
        found.append(Run(name, file["rows"], options))
    return found


def _fact(layer: str, option: str, fields: Mapping[str, Any]) -> Fact:
    try:
        return Fact(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"facts.yaml, layers, {layer}, {option}: {error}") from error


def as_yaml(run: Run, sources: Mapping[str, str]) -> str:
    """A whole configuration file, with its reasons."""
    lines = [*_head(run, sources)]
    for section in SECTIONS:
        options = {
            option.removeprefix(f"{section}."): fact
            for option, fact in run.options.items()
            if option.startswith(f"{section}.")
        }
        if options:
            names = sorted(options, key=lambda name: name not in FIRST)
            lines += [f"{section}:", *_options(run, {name: options[name] for name in names})]
    lines.append(f"output: runs/paper/{run.name}")
    return "\n".join(lines) + "\n"


def _head(run: Run, sources: Mapping[str, str]) -> Iterator[str]:
    used = {
        source for fact in run.options.values() if fact.source for source in fact.source.split(", ")
    }
    for row in run.rows:
        yield f"# {_said(row)}"
    yield "#"
    yield "#   accelerate launch --config_file configs/accelerate/multi_node.yaml train.py \\"
    yield f"#     --config configs/paper/{run.name}.yaml"
    yield "#"
    yield from _comment(
        "Beside each value stand the place in arXiv 2503.19123 that states it and its words there, "
        "or what the paper is silent on and whose value it is then (in brackets). Written by "
        "make.py from facts.yaml."
    )
    for source in sources:
        if source in used:
            yield from _comment(f"[{source}] {sources[source]}", hanging="  ")


def _options(run: Run, options: Mapping[str, Fact]) -> Iterator[str]:
    """Lines of a section: a reason that is too long for the line stands above it."""
    for name, fact in options.items():
        value = run.steps if fact.tokens is not None else fact.value
        reason = fact.reason()
        if fact.tokens is not None:
            reason += f": x {run.row_tokens:,} = {value * run.row_tokens:,} tokens"
        line = f"  {name}: {_scalar(value)}"
        if len(line) + len(reason) + 4 <= WIDTH:
            yield f"{line}  # {reason}"
        else:
            yield from _comment(reason, indent="  ")
            yield line


def _said(row: str) -> str:
    """A row's name for people: `Table 1: S + Llemma, Ours`."""
    return row.replace(" | ", ": ", 1).replace(" | ", ", ").removesuffix(", -")


def _comment(text: str, *, indent: str = "", hanging: str = "") -> list[str]:
    return wrap(
        text,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# {hanging}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _scalar(value: Any) -> str:
    """As people write it: 8.0e-5, [0.9, 0.95]; read back as the same value."""
    if isinstance(value, float) and value < 1e-3:
        text = f"{value:.1e}".replace("e-0", "e-")
    else:
        text = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
    if yaml.safe_load(text) != value:
        raise ValueError(f"{value!r} cannot be written as YAML")
    return text


def index(found: Sequence[Run], sources: Mapping[str, str]) -> str:
    """README.md: which file is which row, and what the paper leaves open."""
    files = {row: run.name for run in found for row in run.rows}
    teachers = [run.options[TEACHER].value for run in found if TEACHER in run.options]
    pupils = teachers.count("runs/paper/tinyllama-cpt/final")
    lines = [
        "# The paper's runs",
        "",
        f"The rows of Tables 1 to 3 and the points of Fig. 7 of arXiv 2503.19123 as {len(found)} "
        "files. Each is complete",
        "and says beside every value where it comes from. Written by [`make.py`](make.py) from "
        "[`facts.yaml`](facts.yaml).",
        "",
        "| row or point | file |",
        "|---|---|",
    ]
    for words in FIRST_WORDS:
        rows = [row for row in files if row.startswith(f"{words} |")]
        lines += [f"| {_said(row)} | [{files[row]}]({files[row]}.yaml) |" for row in rows]
    lines += [
        "",
        "Table 1's first row is the student as it is, untrained. Rows that mean one run share a "
        "file. Run",
        f"`tinyllama-cpt` first: its final model is the teacher of {pupils} others.",
        "None has been run at its size by us; the tests run each for five steps with tiny models.",
        "",
        "## What the paper does not say",
        "",
        "| option | silent on | value | whose |",
        "|---|---|---|---|",
        *_silences(found),
        "",
        *(f"- **{name}**: {text}" for name, text in sources.items()),
    ]
    return "\n".join(lines) + "\n"


def _silences(found: Sequence[Run]) -> Iterator[str]:
    """Rows of a table, each silence once, with all values that it has."""
    values: dict[tuple[str, str, str, str], list[str]] = {}
    for run in found:
        for option, fact in run.options.items():
            if fact.silent:
                about = "all of it" if fact.silent is True else fact.silent
                key = (option, about, fact.source or "", fact.note or "")
                value = _scalar(run.steps if fact.tokens is not None else fact.value)
                values.setdefault(key, [])
                if value not in values[key]:
                    values[key].append(value)
    for (option, about, source, note), seen in sorted(values.items(), key=lambda item: item[0][0]):
        shown = ", ".join(f"`{value}`" for value in seen)
        yield f"| `{option}` | {about} | {shown}{f': {note}' if note else ''} | {source} |"


def contents() -> dict[Path, str]:
    """All files that follow from the facts."""
    facts = read_facts()
    found, sources = runs(facts), facts["sources"]
    files = {HERE / f"{run.name}.yaml": as_yaml(run, sources) for run in found}
    return {**files, HERE / "README.md": index(found, sources)}


def differences(wanted: Mapping[Path, str]) -> list[str]:
    """What is missing, different, or not of the facts."""
    made = {path for path in HERE.glob("*.yaml") if path.name != "facts.yaml"}
    found = [f"{path.name}: follows from no fact" for path in sorted(made - wanted.keys())]
    for path, text in wanted.items():
        if not path.is_file():
            found.append(f"{path.name}: missing")
        elif path.read_text(encoding="utf-8") != text:
            found.append(f"{path.name}: differs from the facts")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say what differs, write nothing")
    check = parser.parse_args(arguments).check
    wanted = contents()
    if check:
        found = differences(wanted)
        print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
        return 1 if found else 0
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
