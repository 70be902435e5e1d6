"""All tables and figures of the paper in one command, from the inputs that are given."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vocagno.config.commands import CORPUS
from vocagno.errors import InputError
from vocagno.paper.inputs import Named, refuse_repeated
from vocagno.paper.outputs import write_curves
from vocagno.paper.paper_averages import read_paper_results
from vocagno.paper.result_figures import (
    write_granularity_scores,
    write_points_figure,
    write_tables,
)
from vocagno.paper.tokenizer_figures import (
    PAPERS_TEXT,
    add_sequences,
    check_sequences,
    measured,
    write_aligned,
    write_levels,
    write_shared,
)
from vocagno.tokens.token_spans import TokenSpans

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
    """Make all tables and figures that the given inputs allow, and name the others.

    All of them need --paper, --tokenizers, --corpus and --runs.
    """
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--paper", type=Path, help="folder of table1.csv (or paper-table1.csv) to table4.csv"
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
    parser.add_argument("--corpus", type=str, help=f"to measure chunks and tokens on: {CORPUS}")
    add_sequences(parser)
    parser.add_argument("--runs", type=Path, help="folder that holds the `output` of runs")


def all_(options: Any) -> dict[str, Any] | None:
    """Writes the files and names them; says on stderr what was skipped, and what it needs."""
    inputs = _Inputs(options)
    inputs.check()
    made: list[Path] = []
    for name, needs, make in _PARTS:
        if missing := [f"--{need}" for need in needs if options[need] is None]:
            inputs.notes.append(f"skipped {name}: needs {' and '.join(missing)}")
        else:
            made += make(inputs)
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
    """What people should know of what was made or skipped."""

    def check(self) -> None:
        """Refuses wrong inputs before anything is made."""
        options = self.options
        if not any(options[name] is not None for name in ("paper", "tokenizers", "runs")):
            raise InputError("nothing to draw: give --paper, --tokenizers or --runs")
        check_sequences(options)
        if options.corpus is not None:
            _check_corpus(options.corpus)
        if options.paper is not None:
            for number in _TABLES:
                self.table(number)
        if options.tokenizers is not None:
            self.place(options.student, "--student")
            for name in self.models:
                self.place(name, "--teachers")
        if options.runs is not None:
            self.run_folders()

    def out(self, name: str) -> Path:
        """A file to write."""
        return Path(self.options.out / name)

    def table(self, number: int) -> Path:
        """The file of one of the paper's tables."""
        paths = [self.options.paper / f"{prefix}table{number}.csv" for prefix in ("", "paper-")]
        for path in paths:
            if path.is_file():
                return Path(path)
        raise InputError(f"--paper: neither {paths[0]} nor {paths[1].name} is there")

    @cached_property
    def models(self) -> Mapping[str, str]:
        """Names of the teachers' tokenizers, and the models that they stand for, or ""."""
        models = []
        for given in self.options.teachers:
            name, equals, model = given.partition("=")
            if not name or (equals and not model):
                raise InputError(f"--teachers: expected NAME or NAME=MODEL, got {given}")
            models.append((name, model))
        refuse_repeated([name for name, _ in models], "--teachers")
        return dict(models)

    def place(self, name: str, option: str) -> str:
        """The file or folder of a tokenizer."""
        folder = self.options.tokenizers
        for path in (folder / f"{name}.json.gz", folder / f"{name}.json", folder / name):
            if path.exists():
                return str(path)
        raise InputError(
            f"--tokenizers: {folder} has no {name}.json.gz, {name}.json or {name}/tokenizer.json; "
            f"put one there, or name others with {option}"
        )

    @cached_property
    def student(self) -> Named:
        name = self.options.student
        return Named(name, TokenSpans.from_pretrained(self.place(name, "--student")))

    @cached_property
    def teachers(self) -> list[Named]:
        places = {name: self.place(name, "--teachers") for name in self.models}
        return [Named(name, TokenSpans.from_pretrained(place)) for name, place in places.items()]

    def run_folders(self) -> list[Path]:
        """The folders of training runs in that of `--runs`."""
        from vocagno.training.run_log import METRICS

        if found := sorted(path.parent for path in self.options.runs.glob(f"*/{METRICS}")):
            return found
        raise InputError(
            f"--runs: no folder in {self.options.runs} has a {METRICS}; expected the one in which "
            "the `output` folders of training runs lie"
        )


def _vocabularies(inputs: _Inputs) -> Sequence[Path]:
    from vocagno.paper.vocabulary_overlaps import share_with_each

    shared = share_with_each(inputs.student.spans, dict(inputs.teachers))
    if inputs.options.paper is None:
        inputs.notes.append("Fig. 1 has no scores of the teachers: they need --paper")
    else:
        scores = _own_scores(inputs)
        models = inputs.models.values()
        shared = [
            replace(one, score=scores[model], model=model) if model else one
            for one, model in zip(shared, models, strict=True)
        ]
    return write_shared(inputs.student.name, shared, inputs.out("overlap.svg"))


def _own_scores(inputs: _Inputs) -> dict[str, float]:
    """Table 4, which has to have the models that are named."""
    from vocagno.paper.comparisons import scores_by

    path = inputs.table(4)
    scores = scores_by(read_paper_results([path]), "teacher", "AVG")
    for model in filter(None, inputs.models.values()):
        if model not in scores:
            raise InputError(f"--teachers: {path} has no {model}; it has {', '.join(scores)}")
    return scores


def _tokens(inputs: _Inputs) -> Sequence[Path]:
    from vocagno.paper.aligned_teachers import align_teachers

    found = align_teachers(inputs.student, dict(inputs.teachers), inputs.options.text)
    return write_aligned(found, inputs.out("tokens.svg"))


def _granularity(inputs: _Inputs) -> Sequence[Path]:
    found = measured(inputs.student, inputs.teachers, inputs.options)
    return write_levels(found, inputs.out("granularity.svg"))


def _tables(inputs: _Inputs) -> Sequence[Path]:
    made = []
    for number in _TABLES:
        found = read_paper_results([inputs.table(number)])
        inputs.notes.extend(found.disagreements())
        made += write_tables(inputs.out(f"paper-table{number}"), found, f"Table {number} {_PAPER}")
    return made


def _students(inputs: _Inputs) -> Sequence[Path]:
    from vocagno.paper.comparisons import compare_teachers
    from vocagno.paper.figures.scores import draw_gains, draw_scores

    students, own = (read_paper_results([inputs.table(number)]) for number in (1, 4))
    found = compare_teachers(students, own)
    scores, gains = inputs.out("paper-teachers.svg"), inputs.out("paper-gains.svg")
    return [
        *write_points_figure(draw_scores(found), found.students, scores),
        *write_points_figure(draw_gains(found), found.students, gains),
    ]


def _granularity_scores(inputs: _Inputs) -> Sequence[Path]:
    overlaps = inputs.out("granularity.csv")
    teacher = next((name for name, model in inputs.models.items() if model == _TABLE_2), None)
    if not overlaps.is_file():
        needs = f"{overlaps}, which --tokenizers and --corpus make"
    elif teacher is None:
        needs = f"one of --teachers as NAME={_TABLE_2}, who taught the students of Table 2"
    else:
        if inputs.options.tokenizers is None or inputs.options.corpus is None:
            inputs.notes.append(f"{_FIGURE_6}: from the {overlaps} that was there")
        out = inputs.out("paper-granularity-scores.svg")
        return write_granularity_scores(inputs.table(2), overlaps, teacher, "AVG", out)[1]
    inputs.notes.append(f"skipped {_FIGURE_6}: needs {needs}")
    return []


def _curves(inputs: _Inputs) -> Sequence[Path]:
    from vocagno.training.run_log import read_runs

    return write_curves(read_runs(inputs.run_folders()), inputs.out("curves.svg"))


def _check_corpus(corpus: str) -> None:
    """Raises: InputError if there is none."""
    from vocagno.data.sources import open_sources

    try:
        open_sources(corpus)
    except InputError as error:
        raise InputError(f"--corpus: {error}") from error


_PARTS: Sequence[tuple[str, Sequence[str], Callable[[_Inputs], Sequence[Path]]]] = (
    ("Tables 1 to 4", ["paper"], _tables),
    ("Fig. 1, shared vocabulary", ["tokenizers"], _vocabularies),
    ("Fig. 2, a text in tokens", ["tokenizers"], _tokens),
    ("Fig. 3, chunks and tokens", ["tokenizers", "corpus"], _granularity),
    ("Fig. 4 and 5, students by teacher", ["paper"], _students),
    (_FIGURE_6, ["paper"], _granularity_scores),  # from what Fig. 3 has written
    ("learning curves", ["runs"], _curves),
)
"""What the command makes: name, options that it needs, and a function that gives its files."""
_ELSEWHERE = (
    "skipped Fig. 7, what an option does: `python -m vocagno.paper sweep` draws it from your runs",
    "skipped Fig. 8, guidance of a text: `vocagno guidance --figure` draws it with two models",
)
