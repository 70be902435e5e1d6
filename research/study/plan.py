"""The plan of a study: a YAML file that names the runs, their options and what is compared."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from vocagno.config.arguments import new_parser, read_file
from vocagno.errors import ConfigError, InputError, require

OUT = "{out}"
"""Stands in options for the folder of the study."""
_OWN = ("config", "against")
"""The options of a run in a plan that are not options of training."""
# Finds the runs whose results an option names, such as NAME in `{out}/before/NAME/final`.
_NEEDED = re.compile(re.escape(f"{OUT}/before/") + r"([A-Za-z0-9.-]+)")
_RESERVED = ("before", "runs", "noise-", ".")
"""A tokenizer's name must not begin like this: other folders of a study do."""
_ALL = 1_000_000
"""The value of `train.keep_checkpoints` with which no checkpoint is removed."""


@dataclass(frozen=True, kw_only=True)
class LearnedTokenizer:
    """A tokenizer of the family of the quickstart's student."""

    vocabulary: int
    """The number of its ids."""
    text: str | None = None
    """A file that it is learned from; default: `data.train` of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study, as its YAML file states it.

    The options of runs are those of train.py, by their full names. `{out}` in an option stands for
    the folder of the study.
    """

    config: Path
    """Configuration that all runs begin with."""
    variants: dict[str, dict[str, Any]]
    """Runs by name: the options in which each differs; `against` names the one that it is compared
    with (default: `baseline`)."""
    baseline: str
    """The variant that the others are compared with, seed by seed."""
    tables: dict[str, list[str]]
    """The variants of each table, by the title of the table."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Seeds of new weights and of the order of the rows. Every variant is trained with each."""
    common: dict[str, Any] = field(default_factory=dict)
    """Options of all runs."""
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Runs carried out first, once: teachers. `config` names another configuration to begin
    with. One may use the model of an earlier one: `{out}/before/NAME/final`."""
    assets: Literal["quickstart"] | None = None
    """Assets to make first if they are missing. quickstart: its corpus, tokenizers and teacher."""
    noise: list[float] = field(default_factory=list)
    """quickstart: makes a corpus for each of these shares of junk lines; 0.25: `{out}/noise-25`."""
    documents: int | None = None
    """The number of documents of each of these corpora; null: as many as the quickstart's has."""
    tokenizers: dict[str, LearnedTokenizer] = field(default_factory=dict)
    """Tokenizers learned first where missing, by their folders in that of the study: `small` is
    `{out}/small`."""
    questions: Path | None = None
    """JSON Lines of `question` and `answer` that the final models are asked; again if they change.
    """
    questions_every: int | None = None
    """Steps after which the variants are asked, too. They keep a checkpoint of each until then,
    so a finished run cannot be asked at others. null: only the final models are asked."""
    confidence: int = 0
    """Tokens of data.validation of which is measured how sure each final model is, and which
    temperature suits it; 0: not measured."""

    def __post_init__(self) -> None:
        variants = set(self.variants)
        _check_file_names("variants", [*self.variants, *self.before], "folder")
        _check_file_names("tables", self.tables, "figure")
        require(bool(self.seeds), "seeds: expected at least one")
        require(len(set(self.seeds)) == len(self.seeds), f"seeds: one is named twice: {self.seeds}")
        for where, names in (("baseline", [self.baseline]), *self.tables.items()):
            for name in names:
                require(name in variants, f"{where}: {name} is none of the variants")
        for name, options in self.variants.items():
            against = options.get("against", self.baseline)
            require(against in variants, f"{name}: against: {against} is none of the variants")
            require("config" not in options, f"{name}: config: is for runs under `before`")
        require(
            not self.noise or self.assets == "quickstart", "noise: only with assets: quickstart"
        )
        for name in self.tokenizers:
            is_free = slug(name) == name and not name.startswith(_RESERVED)
            require(
                is_free, f"tokenizers: {name}: cannot be the name of its folder; choose another"
            )
        require(self.confidence >= 0, f"confidence: expected 0 or more, got {self.confidence}")
        require(
            self.questions_every is None or (self.questions_every >= 1 and bool(self.questions)),
            "questions_every: expected at least 1 step, and `questions`",
        )
        require(
            self.documents is None or (self.documents >= 1 and bool(self.noise)),
            "documents: expected at least 1, and `noise`",
        )
        require(all(0 <= share < 1 for share in self.noise), f"noise: not in [0, 1): {self.noise}")
        runs = {f"{slug(name)}-{seed}" for name in self.variants for seed in self.seeds}
        same = [name for name in self.before if slug(name) in runs]
        require(not same, f"before: {same[:1]}: has the name of a variant's run")

    def against(self, name: str) -> str:
        """Returns the variant that this one is compared with."""
        return str(self.variants[name].get("against", self.baseline))

    def only(self, names: Sequence[str], extra: Mapping[str, str]) -> "Plan":
        """Reduces the plan to some variants, those that they are compared with, and the runs under
        `before` whose results these use.

        Args: extra: options for all runs, from the command line.
        Raises: ConfigError for a name that is none of the variants.
        """
        for name in names:
            require(name in self.variants, f"--only: {name} is none of the variants")
        kept = {self.baseline, *names}
        while further := set(map(self.against, kept)) - kept:
            kept |= further
        tables = {
            title: [name for name in listed if name in kept]
            for title, listed in self.tables.items()
        }
        variants = {name: options for name, options in self.variants.items() if name in kept}
        needed = _needed_by(self.common, extra, *variants.values())
        before = {}
        # A run may use the results of those above it.
        for name, options in reversed(self.before.items()):
            if slug(name) in needed:
                before[name] = options
                needed |= _needed_by(options)
        return replace(
            self,
            before=dict(reversed(before.items())),
            variants=variants,
            tables={title: listed for title, listed in tables.items() if listed},
        )

    def runs(self, out: Path, extra: Mapping[str, str]) -> "Runs":
        """Makes the runs of the study in a folder.

        Args: extra: options for all runs, from the command line. They override `common`; a run's
            own options override them.
        """
        before = [
            self._run(name, None, out / "before" / slug(name), out, extra) for name in self.before
        ]
        variants = [
            self._run(name, seed, out / "runs" / f"{slug(name)}-{seed}", out, extra)
            for name in self.variants
            for seed in self.seeds
        ]
        for index, run in enumerate([*before, *variants]):
            for name in run.needs - {earlier.name for earlier in before[:index]}:
                raise ConfigError(
                    f"{run.name}: {OUT}/before/{name}: no such run under `before`, or not above "
                    "this one"
                )
        return Runs(before, variants)

    def _run(
        self, name: str, seed: int | None, folder: Path, out: Path, extra: Mapping[str, str]
    ) -> "Run":
        options = self.before[name] if seed is None else self.variants[name]
        config = Path(options.get("config", self.config))
        options_of_run: dict[str, Any] = {} if "config" in options else dict(self.common)
        options_of_run |= extra
        options_of_run |= {name: value for name, value in options.items() if name not in _OWN}
        if seed is not None:
            options_of_run["train.seed"] = seed
            if self.questions_every is not None:
                options_of_run["train.checkpoint_every"] = self.questions_every
                options_of_run["train.keep_checkpoints"] = _ALL
        words = {name: _word(value) for name, value in options_of_run.items()}
        needs = _needed_by(options_of_run)
        pairs = [
            part
            for name, word in words.items()
            for part in (f"--{name}", word.replace(OUT, str(out)))
        ]
        return Run(name, seed, folder, ["--config", str(config), *pairs], needs)


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of a study."""

    variant: str
    seed: int | None
    """None for a run under `before`, which is carried out once."""
    folder: Path
    arguments: Sequence[str]
    """The arguments of train.py, without --output."""
    needs: frozenset[str] = frozenset()
    """The names of the runs under `before` whose results its options use."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a study."""

    before: list[Run]
    variants: list[Run]

    def __iter__(self) -> Iterator[Run]:
        return iter([*self.before, *self.variants])

    def stages(self) -> list[list[Run]]:
        """Splits the runs into stages, each of which needs only the stages before it."""
        stages: list[list[Run]] = []
        stage_of: dict[str, int] = {}
        for run in self.before:
            stage = max((stage_of[name] + 1 for name in run.needs), default=0)
            stage_of[run.name] = stage
            if stage == len(stages):
                stages.append([])
            stages[stage].append(run)
        return [*stages, self.variants]


def read_plan(path: Path) -> Plan:
    """Reads a plan. Raises: InputError for a missing file; ConfigError for wrong options."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the plan of a study, as in configs/study")
    parser = new_parser(prog="plan")
    parser.add_class_arguments(Plan, fail_untyped=True)
    return Plan(**dict(read_file(parser, path).items()))


def slug(name: str) -> str:
    """Turns a name into one that a file can have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _check_file_names(where: str, names: Iterable[str], kind: str) -> None:
    """Checks that each name gives a file of its own, also if upper and lower case are the same.

    Raises: ConfigError.
    """
    seen: dict[str, str] = {}
    for name in names:
        file = slug(name)
        require(
            bool(file.strip(".")),
            f"{where}: {name!r}: leaves no name for its {kind}; use some of a-z, A-Z and 0-9",
        )
        other = seen.get(file.lower())
        require(
            other is None,
            f"{where}: {other!r} and {name!r} both become the {kind} {file}; rename one",
        )
        seen[file.lower()] = name


def _needed_by(*options_of_runs: Mapping[str, Any]) -> frozenset[str]:
    """Finds the runs under `before`, by their folders, whose results some options name."""
    words = [_word(value) for options in options_of_runs for value in options.values()]
    return frozenset(name for word in words for name in _NEEDED.findall(word))


def _word(value: Any) -> str:
    """Writes the value of an option as the command line takes it, in JSON if it is no string."""
    return value if isinstance(value, str) else json.dumps(value)
