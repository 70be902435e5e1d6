"""All of the paper's tables and figures in one command, from what is at hand."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vocagno.cli.corpora import CORPUS, Named, load_tokenizer, refuse_repeated
from vocagno.cli.figures import PAPERS_TEXT, draw_aligned, draw_runs, draw_shared
from vocagno.cli.granularity import add_sequences, check_sequences, drawn, measured
from vocagno.cli.result_figures import draw_and_write, join_granularities
from vocagno.cli.results import write_table_files
from vocagno.errors import InputError

_PAPER = "of arXiv 2503.19123 (Shin et al., ICML 2025); averages computed from the scores."
_TABLES = range(1, 5)
_TABLE_2 = "Mistral-ProXMath"
"""Who taught the students of Table 2."""
_FIGURE_6 = "Fig. 6, scores by granularity"
_TEACHERS = (
    "qwen2.5=Qwen2.5-Math-Instruct",
    "llama-3",
    "deepseek-llm=DeepSeekMath",
    f"mistral-v0.1={_TABLE_2}",
)


def add_all(parser: Any) -> None:
    """Makes all tables and figures anew, from what is given, and says what is left out.

    All of them need --paper, --tokenizers, --corpus and --runs.
    """
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--paper",
        type=Path,
        help="folder of the paper's tables: table1.csv (or paper-table1.csv) to table4.csv",
    )
    parser.add_argument(
        "--tokenizers", type=Path, help="folder of NAME.json.gz, NAME.json or NAME/tokenizer.json"
    )
    parser.add_argument("--student", type=str, default="tinyllama", help="NAME of the student's")
    parser.add_argument(
        "--teachers",
        type=str,
        nargs="+",
        default=[*_TEACHERS],
        metavar="NAME[=MODEL]",
        help="NAMEs of the teachers', each with the teacher of Table 4 that it stands for, if any",
    )
    parser.add_argument("--text", type=str, default=PAPERS_TEXT, help="to be drawn in tokens")
    parser.add_argument("--corpus", type=Path, help=f"to measure chunks and tokens on: {CORPUS}")
    add_sequences(parser)
    parser.add_argument("--runs", type=Path, help="folder that holds the `output` of runs")


def all_(options: Any) -> dict[str, Any] | None:
    """Writes the files and names them; on stderr what was left out, and what would make it."""
    inputs = _Inputs(options)
    inputs.check()
    made: list[Path] = []
    for part in _PARTS:
        missing = [f"--{name}" for name in part.needs if options[name] is None]
        if missing:
            inputs.notes.append(f"left out: {part.name}, without {' and '.join(missing)}")
        else:
            made += part.make(inputs)
    notes = [*inputs.notes, *_ELSEWHERE]
    print(*notes, sep="\n", file=sys.stderr)
    if options.json:
        return {"files": [str(path) for path in made], "notes": notes}
    print(*made, sep="\n")
    return None


@dataclass(frozen=True)
class _Inputs:
    """What the command was given, each thing read once."""

    options: Any
    notes: list[str] = field(default_factory=list)
    """What people should know of what was made, or was not."""

    def check(self) -> None:
        """Refuses what cannot be, before anything is made."""
        options = self.options
        if not any(options[name] is not None for name in ("paper", "tokenizers", "runs")):
            raise InputError("nothing to draw: give --paper, --tokenizers or --runs")
        check_sequences(options)
        if options.corpus is not None and not options.corpus.exists():
            raise InputError(f"--corpus: {options.corpus}: no such file or folder")
        if options.paper is not None:
            for number in _TABLES:
                self.table(number)
        if options.tokenizers is not None:
            self.place(options.student, "--student")
            for name in self.models:
                self.place(name, "--teachers")
        if options.runs is not None:
            self.run_folders()

    @property
    def out(self) -> Path:
        out: Path = self.options.out
        return out

    def table(self, number: int) -> Path:
        """The file of one of the paper's tables."""
        paths = [self.options.paper / f"{prefix}table{number}.csv" for prefix in ("", "paper-")]
        for path in paths:
            if path.is_file():
                return Path(path)
        raise InputError(f"--paper: neither {paths[0]} nor {paths[1].name} is there")

    @cached_property
    def models(self) -> Mapping[str, str]:
        """Names of the teachers' tokenizers, and the models that they stand for or nothing."""
        pairs = [given.partition("=") for given in self.options.teachers]
        for given, (name, equals, model) in zip(self.options.teachers, pairs, strict=True):
            if not name or (equals and not model):
                raise InputError(f"--teachers: expected NAME or NAME=MODEL, got {given}")
        refuse_repeated([name for name, _, _ in pairs], "--teachers")
        return {name: model for name, _, model in pairs}

    def place(self, name: str, option: str) -> Path:
        """The file or folder of a tokenizer."""
        folder = self.options.tokenizers
        for path in (folder / f"{name}.json.gz", folder / f"{name}.json", folder / name):
            if path.exists():
                return Path(path)
        raise InputError(
            f"--tokenizers: {folder} has no {name}.json.gz, {name}.json or {name}/tokenizer.json; "
            f"put one there, or name others with {option}"
        )

    @cached_property
    def student(self) -> Named:
        name = self.options.student
        return Named(name, load_tokenizer(str(self.place(name, "--student"))))

    @cached_property
    def teachers(self) -> list[Named]:
        places = {name: str(self.place(name, "--teachers")) for name in self.models}
        return [Named(name, load_tokenizer(place)) for name, place in places.items()]

    def run_folders(self) -> list[Path]:
        """The folders of training runs in that of `--runs`."""
        from vocagno.training.run_log import METRICS

        found = sorted(path.parent for path in self.options.runs.glob(f"*/{METRICS}"))
        if not found:
            raise InputError(
                f"--runs: no folder in {self.options.runs} has a {METRICS}; expected the one in "
                "which the `output` folders of training runs lie"
            )
        return found


def _vocabularies(inputs: _Inputs) -> list[Path]:
    from vocagno.paper.vocabulary_overlaps import share_with_each

    shared = share_with_each(inputs.student.spans, dict(inputs.teachers))
    if inputs.options.paper is None:
        inputs.notes.append("without the teachers' scores, which --paper has: Fig. 1")
    else:
        scores = _own_scores(inputs)
        shared = [
            replace(one, score=scores[model], model=model)
            if (model := inputs.models[one.teacher])
            else one
            for one in shared
        ]
    return draw_shared(inputs.student.name, shared, inputs.out / "overlap.svg")


def _own_scores(inputs: _Inputs) -> dict[str, float]:
    """Table 4, which has to have the models that are named."""
    from vocagno.evaluation.results import read_results
    from vocagno.paper.comparisons import scores_by

    path = inputs.table(4)
    scores = scores_by(read_results([path]), "teacher", "AVG")
    for model in filter(None, inputs.models.values()):
        if model not in scores:
            raise InputError(f"--teachers: {path} has no {model}; it has {', '.join(scores)}")
    return scores


def _tokens(inputs: _Inputs) -> list[Path]:
    from vocagno.paper.aligned_teachers import align_teachers

    found = align_teachers(inputs.student, dict(inputs.teachers), inputs.options.text)
    return draw_aligned(found, inputs.out / "tokens.svg")


def _granularity(inputs: _Inputs) -> list[Path]:
    found = measured(inputs.student, inputs.teachers, inputs.options)
    return drawn(inputs.out / "granularity.svg", found)


def _tables(inputs: _Inputs) -> list[Path]:
    from vocagno.evaluation.results import read_results

    made = []
    for number in _TABLES:
        found = read_results([inputs.table(number)])
        inputs.notes.extend(found.disagreements())
        stem = inputs.out / f"paper-table{number}"
        made += write_table_files(stem, found, f"Table {number} {_PAPER}")
    return made


def _students(inputs: _Inputs) -> list[Path]:
    from vocagno.evaluation.results import read_results
    from vocagno.paper.comparisons import compare_teachers
    from vocagno.paper.figures.students import draw_gains, draw_scores

    students, own = (read_results([inputs.table(number)]) for number in (1, 4))
    found = compare_teachers(students, own)
    return [
        path
        for draw, name in ((draw_scores, "teachers"), (draw_gains, "gains"))
        for path in draw_and_write(draw(found), found.students, inputs.out / f"paper-{name}.svg")
    ]


def _granularity_scores(inputs: _Inputs) -> list[Path]:
    overlaps = inputs.out / "granularity.csv"
    teacher = next((name for name, model in inputs.models.items() if model == _TABLE_2), None)
    without = ""
    if not overlaps.is_file():
        without = f"{overlaps}, which --tokenizers and --corpus make"
    elif teacher is None:
        without = f"one of --teachers as NAME={_TABLE_2}, who taught the students of Table 2"
    if without or teacher is None:
        inputs.notes.append(f"left out: {_FIGURE_6}, without {without}")
        return []
    if inputs.options.tokenizers is None or inputs.options.corpus is None:
        inputs.notes.append(f"drawn from {overlaps} as it was: {_FIGURE_6}")
    found, figure = join_granularities(inputs.table(2), overlaps, teacher, "AVG")
    return draw_and_write(figure, found, inputs.out / "paper-granularity-scores.svg")


def _curves(inputs: _Inputs) -> list[Path]:
    from vocagno.training.run_log import read_runs

    return draw_runs(read_runs(inputs.run_folders()), inputs.out / "curves.svg")


@dataclass(frozen=True, slots=True)
class _Part:
    """Something that the command makes."""

    name: str
    needs: Sequence[str]
    """Options without which it is left out."""
    make: Callable[[_Inputs], list[Path]]
    """Gives the files that it wrote."""


_PARTS = (
    _Part("Tables 1 to 4", ["paper"], _tables),
    _Part("Fig. 1, shared vocabulary", ["tokenizers"], _vocabularies),
    _Part("Fig. 2, a text in tokens", ["tokenizers"], _tokens),
    _Part("Fig. 3, chunks and tokens", ["tokenizers", "corpus"], _granularity),
    _Part("Fig. 4 and 5, students by teacher", ["paper"], _students),
    _Part(_FIGURE_6, ["paper"], _granularity_scores),  # from what Fig. 3 has written
    _Part("learning curves", ["runs"], _curves),
)
_ELSEWHERE = (
    "left out: Fig. 7, what an option does; `vocagno figures sweep` draws it from runs of your own",
    "left out: Fig. 8, guidance of a text; `vocagno guidance --figure` draws it with two models",
)
