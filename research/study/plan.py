"""What a study is: a file that names the runs, what they share and what is compared."""

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
"""Of a run in a plan: what is no option of training."""
_NEEDED = re.compile(re.escape(f"{OUT}/before/") + r"([A-Za-z0-9.-]+)")
_RESERVED = ("before", "runs", "noise-", ".")
"""What the names of other folders of a study begin with."""
_ALL = 1_000_000
"""`train.keep_checkpoints` where none is to be removed."""


@dataclass(frozen=True, kw_only=True)
class LearnedTokenizer:
    """A tokenizer of the family of the quickstart's student."""

    vocabulary: int
    """Its ids."""
    text: str | None = None
    """A file that it is learned from; default: `data.train` of the baseline."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study. Options of runs are those of train.py, by their full names; `{out}` in one stands
    for the folder of the study."""

    config: Path
    """Configuration that all runs begin with."""
    variants: dict[str, dict[str, Any]]
    """Runs by name: the options in which each differs; `against` names the one that it is compared
    with (default: `baseline`)."""
    baseline: str
    """What the others are compared with, seed by seed."""
    tables: dict[str, list[str]]
    """Which runs stand in a table together, by its title."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Of new weights and of the order of the rows; every run is carried out with each."""
    common: dict[str, Any] = field(default_factory=dict)
    """Options of all runs."""
    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Runs carried out first, once: teachers. `config` names another configuration to begin
    with. One may use the model of an earlier one: `{out}/before/NAME/final`."""
    assets: Literal["quickstart"] | None = None
    """What is made first where missing. quickstart: its corpus, tokenizers and teacher."""
    noise: list[float] = field(default_factory=list)
    """quickstart: corpora with such shares of junk lines, as `{out}/noise-25` for 0.25."""
    documents: int | None = None
    """Of each of these corpora; null: as many as the quickstart's."""
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
        known = set(self.variants)
        _check_file_names("variants", [*self.variants, *self.before], "folder")
        _check_file_names("tables", self.tables, "figure")
        require(bool(self.seeds), "seeds: expected at least one")
        require(len(set(self.seeds)) == len(self.seeds), f"seeds: twice the same: {self.seeds}")
        for where, names in (("baseline", [self.baseline]), *self.tables.items()):
            for name in names:
                require(name in known, f"{where}: {name} is none of the variants")
        for name, options in self.variants.items():
            against = options.get("against", self.baseline)
            require(against in known, f"{name}: against: {against} is none of the variants")
            require("config" not in options, f"{name}: config: is for runs under `before`")
        require(
            not self.noise or self.assets == "quickstart", "noise: only with assets: quickstart"
        )
        for name in self.tokenizers:
            is_free = slug(name) == name and not name.startswith(_RESERVED)
            require(
                is_free, f"tokenizers: {name}: cannot be the name of its folder; choose another"
            )
        require(self.confidence >= 0, f"confidence: negative: {self.confidence}")
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
        """The variant that one is compared with."""
        return str(self.variants[name].get("against", self.baseline))

    def only(self, names: Sequence[str]) -> "Plan":
        """Some variants, and those that they are compared with. Raises: ConfigError."""
        for name in names:
            require(name in self.variants, f"--only: {name} is none of the variants")
        kept = {self.baseline, *names, *map(self.against, names)}
        tables = {
            title: [name for name in listed if name in kept]
            for title, listed in self.tables.items()
        }
        return replace(
            self,
            variants={name: given for name, given in self.variants.items() if name in kept},
            tables={title: listed for title, listed in tables.items() if listed},
        )

    def runs(self, out: Path, extra: Mapping[str, str]) -> "Runs":
        """The runs of the study as they are carried out in a folder. `extra`: options for all of
        them, as given on the command line; they come before `common`, and behind what a run has of
        its own."""
        before = [
            self._run(name, None, out / "before" / slug(name), out, extra) for name in self.before
        ]
        variants = [
            self._run(name, seed, out / "runs" / f"{slug(name)}-{seed}", out, extra)
            for name in self.variants
            for seed in self.seeds
        ]
        for place, run in enumerate([*before, *variants]):
            for name in run.needs - {earlier.name for earlier in before[:place]}:
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
        given: dict[str, Any] = {} if "config" in options else dict(self.common)
        given |= extra
        given |= {name: value for name, value in options.items() if name not in _OWN}
        if seed is not None:
            given["train.seed"] = seed
            if self.questions_every is not None:
                given["train.checkpoint_every"] = self.questions_every
                given["train.keep_checkpoints"] = _ALL
        words = {name: _word(value) for name, value in given.items()}
        needs = {found for word in words.values() for found in _NEEDED.findall(word)}
        pairs = [
            part
            for name, word in words.items()
            for part in (f"--{name}", word.replace(OUT, str(out)))
        ]
        return Run(name, seed, folder, ["--config", str(config), *pairs], frozenset(needs))


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of a study."""

    variant: str
    seed: int | None
    """None for those that are carried out once."""
    folder: Path
    arguments: Sequence[str]
    """For train.py, but for its output."""
    needs: frozenset[str] = frozenset()
    """Names of the runs under `before` that its options name."""

    @property
    def name(self) -> str:
        """As its folder."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs of a study."""

    before: list[Run]
    variants: list[Run]

    def __iter__(self) -> Iterator[Run]:
        return iter([*self.before, *self.variants])

    def stages(self) -> list[list[Run]]:
        """The same in parts whose runs need only those of the parts before them."""
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
    """Reads a plan. Raises: ConfigError as `read_file`."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the plan of a study, as in configs/study")
    parser = new_parser(prog="plan")
    parser.add_class_arguments(Plan, fail_untyped=True)
    return Plan(**dict(read_file(parser, path).items()))


def slug(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _check_file_names(where: str, names: Iterable[str], kind: str) -> None:
    """Raises: ConfigError for a name that leaves nothing for that of a file, and for two that give
    one file, also where upper and lower case are one."""
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


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
