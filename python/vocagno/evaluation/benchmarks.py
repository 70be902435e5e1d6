"""The benchmarks: questions with their gold answers, worked examples, the files they are in, and
from where on the Hugging Face hub some of these can be downloaded."""

import gzip
import json
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from vocagno.errors import InputError
from vocagno.evaluation.answers import answer_part, extracted, in_box, normalized
from vocagno.system.files import appearing, refuse_pointers

Record = Mapping[str, Any]
"""A line of a benchmark's file."""

_CHOOSE = "What of the following is the right choice? Explain your answer."
_ENDINGS = dict.fromkeys(("true", "false"), " (True or False)")
_ENDINGS |= dict.fromkeys(("yes", "no"), " (Yes or No)")
"""What ends the question, by the gold answer in lower case."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question."""

    question: str
    stated: str
    """The gold answer as the benchmark writes it: LaTeX, a number, a letter or words."""
    gold: str
    """The gold answer, normalised as by `Benchmark.answer`."""
    words: tuple[str, ...] | None = None
    """The possible answers, if they are words or letters, as far as the item lists them."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One of the benchmarks."""

    name: str
    column: str | None
    """Column in the paper's tables; None if it is in none."""
    folder: str
    """Folder that contains its test.jsonl."""
    prompt: str
    """NAME of the worked examples' file, prompts/cot/NAME.md."""
    shots: int
    problem: bool
    """Whether prompts use `Problem:` and `Solution:`, not `Question:` and `Answer:`."""
    choice: bool
    """The answer is a letter."""
    read: Callable[[Record], Item]
    """Reads a record. Raises: KeyError, TypeError, ValueError or IndexError for another kind."""

    def item(self, record: Record, index: int) -> Item:
        """The item in a record; see `read` for errors."""
        found = self.read(record)
        if found.stated in ("", "nan", "inf", "-inf"):
            raise ValueError(f"it states no answer ({found.stated!r})")
        if found.words is not None and found.stated not in found.words:
            raise ValueError(f"the answer {found.stated!r} is not one of {', '.join(found.words)}")
        question = f"{found.question}{_ENDINGS.get(found.gold.lower(), '')}"
        return replace(found, question=question.strip(), index=index)

    def asked(self, question: str) -> str:
        """A question in the form that follows the worked examples."""
        if self.problem:
            return f"Problem:\n{question}\nSolution:"
        return f"Question: {question}\nAnswer:"

    def answer(self, completion: str) -> str:
        """The answer in a completion, normalised."""
        return extracted(completion, choice=self.choice)


def _of(record: Record, name: str, kind: type | tuple[type, ...] = str) -> Any:
    """A field of a record. Raises: KeyError, or TypeError for a value of another type."""
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"`{name}` is {value!r:.60}")
    return value


_NUMBER = (int, float)
_NUMERAL = re.compile(r"-?[\d,]*\.?\d+(/\d+)?%?")


def _number(question: str, value: object) -> Item:
    stated = np.format_float_positional(value, trim="-") if isinstance(value, float) else value
    return Item(question, str(stated), normalized(value))


def _gsm8k(record: Record) -> Item:
    _, marked, stated = _of(record, "answer").partition("####")
    if not marked:
        raise ValueError("`answer` has no ####")
    return _number(_of(record, "question"), stated.strip())


def _math(record: Record) -> Item:
    solution = _of(record, "solution")
    # The normalised answer is only for the harness: it lacks units, `m` and half of `\\sec x`.
    _, box, behind = solution.rpartition(r"\boxed")  # the harness also reads "not boxed" in a text
    stated = in_box(behind) if box else answer_part(solution)
    stated = _of(record, "answer") if "answer" in record else stated
    return Item(_of(record, "problem"), stated, extracted(solution, choice=False))


def _svamp(record: Record) -> Item:
    body = _of(record, "Body").strip()
    body = body if body.endswith(".") else f"{body}."
    stated = _of(record, "Answer", (*_NUMBER, str))  # text in the hub's
    return _number(f"{body} {_of(record, 'Question').strip()}", float(stated))


def _asdiv(record: Record) -> Item:
    stated = re.sub(r"\(.*?\)", "", _of(record, "answer")).strip()
    question = f"{_of(record, 'body').strip()} {_of(record, 'question').strip()}"
    # Other answers than numbers are words, a time or a ratio.
    words = None if _NUMERAL.fullmatch(stated) else (stated,)
    return Item(question, stated, normalized(stated), words)


def _target(record: Record) -> Item:
    return _number(_of(record, "input"), _of(record, "target", _NUMBER))


def _tabmwp(record: Record) -> Item:
    title, choices = record["table_title"], record["choices"]
    regarding = f' regarding "{title}"' if title else ""
    question = (
        f"Read the following table{regarding} and answer a question:\n"
        f"{_of(record, 'table')}\n{_of(record, 'question')}"
    )
    if choices:
        question += f" Please select from the following options: {choices}"
    stated = _of(record, "answer")
    if record["ans_type"] in ("integer_number", "decimal_number"):
        return Item(question, stated, normalized(_value(stated)))
    return Item(question, stated, normalized(stated), tuple(choices or (stated,)))


def _value(number: str) -> float:
    above, divided, below = number.partition("/")
    if divided:
        return int(above) / int(below)
    share = number.removesuffix("%")
    return float(share.replace(",", "")) / (1 if share == number else 100)


def _mathqa(record: Record) -> Item:
    options = _of(record, "options").strip()
    if options.startswith("['"):  # a few items have a printed list
        options = " , ".join(options.removeprefix("['").removesuffix("']").split("', '"))
    _, *parts = re.split(r"(?:^| , )([a-e]) \) (?:\1 \) )?", options)  # some repeat the letter
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    if "".join(texts) != "abcde"[: len(texts)]:
        raise ValueError(f"`options` has no letters in order: {options!r:.60}")
    listed = ", ".join(f"({letter.upper()}) {text.strip()}" for letter, text in texts.items())
    problem = _of(record, "problem")
    return _chosen(
        f"{problem[:1].upper()}{problem[1:]}".strip(), listed, _of(record, "correct").upper(), texts
    )


def _mmlu(record: Record) -> Item:
    choices = _of(record, "choices", list)
    listed = ", ".join(
        f"({letter}) {str(text).strip()}" for letter, text in zip("ABCDE", choices, strict=False)
    )
    gold = "ABCDE"[: len(choices)][_of(record, "answer", int)]
    return _chosen(_of(record, "question").strip(), listed, gold, choices)


def _sat(record: Record) -> Item:
    listed = re.sub(r"(^| )([A-E])[).] ", r"\1(\2) ", _of(record, "options").strip())
    letters = re.findall(r"\(([A-E])\) ", listed)
    if letters != list("ABCDE"[: len(letters)]):
        raise ValueError(f"`options` has no letters in order: {listed!r:.60}")
    return _chosen(_of(record, "question").strip(), listed, _of(record, "Answer"), letters)


def _chosen(question: str, listed: str, gold: str, choices: Collection[object]) -> Item:
    words = tuple("ABCDE"[: len(choices)])
    return Item(f"{question}\n{_CHOOSE}\n{listed}", gold, normalized(gold), words)


def _in_words(name: str, column: str, read: Callable[[Record], Item]) -> Benchmark:
    """A benchmark with the worked examples of GSM8K."""
    return Benchmark(name, column, name, "gsm8k", shots=8, problem=False, choice=False, read=read)


def _in_latex(name: str, column: str | None, folder: str, shots: int) -> Benchmark:
    return Benchmark(name, column, folder, name, shots, problem=True, choice=False, read=_math)


def _with_letters(name: str, column: str, prompt: str, read: Callable[[Record], Item]) -> Benchmark:
    return Benchmark(name, column, name, prompt, shots=4, problem=True, choice=True, read=read)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _in_words("gsm8k", "GSM8K", _gsm8k),
        _in_latex("minerva_math", "MATH", folder="math_oai", shots=4),
        _in_words("gsm_hard", "GSM-Hard", _target),
        _in_words("svamp", "SVAMP", _svamp),
        _in_words("asdiv", "ASDiv", _asdiv),
        _in_words("mawps", "MAWPS", _target),
        _in_words("tabmwp", "TAB", _tabmwp),
        _with_letters("mathqa", "MQA", "mathqa", _mathqa),
        _with_letters("mmlu_stem", "MMLU-STEM", "mmlu_stem", _mmlu),
        _with_letters("sat_math", "SAT", "mmlu_stem", _sat),
        _in_latex("math", None, folder="math", shots=5),
    )
}
"""By name: the ten of the paper, and the full test set of MATH, of which `minerva_math` is 500."""

PAPER = tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.column is not None)
"""The ten that the paper names."""


def named(task: str) -> Benchmark:
    """The benchmark with a name. Raises: InputError that suggests similar names."""
    if task in BENCHMARKS:
        return BENCHMARKS[task]
    near = get_close_matches(task.lower(), BENCHMARKS, n=3)
    offered = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(BENCHMARKS)}"
    raise InputError(f"task {task!r}: no such benchmark; {offered}")


class BenchmarkError(InputError):
    """A file of questions or completions cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's completion for one item."""

    index: int
    text: str
    question: str | None
    """The question it answers, if the file has it."""
    where: str
    """File and line."""


def read_items(benchmark: Benchmark, data: Path, *, limit: int | None = None) -> list[Item]:
    """The items of a benchmark in the order of their `idx`, or of the file if there is no `idx`. Of
    items with the same `idx`, the last is used.

    Args:
        data: contains NAME/test.jsonl or NAME/test.jsonl.gz.
        limit: maximum number of items, starting with the first.
    Raises: BenchmarkError.
    """
    path = _file_of(benchmark, data)
    items: dict[int, Item] = {}
    for position, (where, record) in enumerate(_records(path)):
        given = str(record.get("idx", position))  # not 0.7, nor true
        try:
            items[int(given)] = benchmark.item(record, int(given))
        except KeyError as error:
            raise BenchmarkError(f"{where}: no field {error} of {benchmark.name}") from error
        except (TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(f"{where}: not an item of {benchmark.name}: {error}") from error
    if not items:
        raise BenchmarkError(f"{path}: no items")
    return [items[index] for index in sorted(items)[:limit]]


def read_completions(path: Path) -> tuple[list[Completion], int]:
    """Completions in the order of their `idx`, and the number of duplicates. Of completions with
    the same `idx`, the last is used.

    Raises: BenchmarkError for a line without an `idx` and a `completion`, or with a `question` that
        is not a string.
    """
    found: dict[int, Completion] = {}
    records = list(_records(path))
    for where, record in records:
        index, text = record.get("idx"), record.get("completion")
        if not isinstance(index, int) or not isinstance(text, str):
            raise BenchmarkError(
                f"{where}: expected an integer `idx` and a string `completion`, got {record!r:.80}"
            )
        question = record.get("question")
        if not isinstance(question, str | None):
            raise BenchmarkError(
                f"{where}: expected a string as `question`, or none, got {question!r:.60}"
            )
        found[index] = Completion(index, text, question, where)
    if not found:
        raise BenchmarkError(f"{path}: no completions")
    return [found[index] for index in sorted(found)], len(records) - len(found)


def _file_of(benchmark: Benchmark, data: Path) -> Path:
    if not data.is_dir():
        raise BenchmarkError(f"{data}: no such folder; expected one that holds NAME/test.jsonl")
    for name in ("test.jsonl", "test.jsonl.gz"):
        if (path := data / benchmark.folder / name).is_file():
            return path
    raise BenchmarkError(
        f"{data / benchmark.folder / 'test.jsonl'}: no such file, plain or .gz; expected the "
        f"questions of {benchmark.name}"
    )


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place. Lines end only in LF; blank ones are skipped."""
    refuse_pointers([path], BenchmarkError)
    opened = gzip.open if path.suffix == ".gz" else open
    line = b""
    number = 0
    try:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield where, json_object(line, where)
    except (OSError, EOFError, zlib.error) as error:
        raise BenchmarkError(f"{path}: cannot be read after line {number}: {error}") from error


def json_object(line: bytes, where: str, remedy: str = "") -> dict[str, Any]:
    """The object in a line of JSON. Raises: BenchmarkError with the place and the remedy."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{where}: not JSON in UTF-8 ({error}){remedy}") from error
    if not isinstance(record, dict):
        raise BenchmarkError(f"{where}: expected an object, got {line[:60]!r}{remedy}")
    return record


BETWEEN = "\n\n\n"
"""Between two examples, and before the question."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The worked examples of a benchmark."""

    text: str
    source: str
    """Where they were read from."""

    def prompt(self, benchmark: Benchmark, question: str) -> str:
        return f"{self.text}{BETWEEN}{benchmark.asked(question)}"

    def check(self, benchmark: Benchmark) -> None:
        """Raises: BenchmarkError for examples that are not put as the questions will be."""
        opening, examples = benchmark.asked("").split()[0], self.text.split(BETWEEN)
        wrong = [example for example in examples if not example.startswith(opening)]
        if wrong or all("(A)" in example for example in examples) != benchmark.choice:
            raise BenchmarkError(
                f"{self.source}: not worked examples of {benchmark.name}: expected {opening} with"
                f"{'' if benchmark.choice else 'out'} choices (A), (B), ... and two blank lines "
                f"between examples, got {(wrong or examples)[0][:40]!r}; give its own"
            )


def read_examples(benchmark: Benchmark, data: Path) -> Examples:
    """The examples from `prompts/cot/NAME.md` in the data folder or next to it, as in the paper's
    harness; else those that lm-eval includes.

    Raises: BenchmarkError if there are none.
    """
    name = f"prompts/cot/{benchmark.prompt}.md"
    for path in (data / name, data.absolute().parent / name):
        if path.is_file():
            refuse_pointers([path], BenchmarkError)
            try:
                found = Examples(path.read_text(encoding="utf-8-sig").strip(), str(path))
            except UnicodeDecodeError as error:
                raise BenchmarkError(f"{path}: not UTF-8 ({error})") from error
            found.check(benchmark)
            return found
    if benchmark.prompt not in _CARRIED:
        raise BenchmarkError(
            f"{data / name}: no such file; expected the {benchmark.shots} worked examples of "
            f"{benchmark.name}; lm-eval has only those of {' and '.join(_CARRIED)}"
        )
    return Examples(BETWEEN.join(_CARRIED[benchmark.prompt](benchmark)), "lm-eval")


def _of_gsm8k(benchmark: Benchmark) -> list[str]:
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml"
    samples = yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    return [f"{benchmark.asked(sample['question'])} {sample['target']}" for sample in samples]


def _of_math(benchmark: Benchmark) -> list[str]:
    from lm_eval.tasks.minerva_math.utils import list_fewshot_samples

    return [
        f"{benchmark.asked(sample['problem'])}\n{sample['solution']}"
        for sample in list_fewshot_samples()
    ]


_CARRIED: dict[str, Callable[[Benchmark], list[str]]] = {
    "gsm8k": _of_gsm8k,
    "minerva_math": _of_math,
}


@dataclass(frozen=True, slots=True)
class Source:
    """The location on the hub of a benchmark with the fields of the paper's harness."""

    dataset: str
    splits: tuple[str, ...] = ("test",)
    configurations: tuple[str | None, ...] = (None,)


# The subjects that MMLU's authors count as STEM (lm-eval also counts anatomy), in the order of the
# harness's file: an item's number is its position.
_STEM = tuple(
    """
    college_biology astronomy electrical_engineering high_school_biology
    machine_learning abstract_algebra high_school_mathematics high_school_computer_science
    college_chemistry high_school_chemistry computer_security conceptual_physics
    high_school_physics college_physics high_school_statistics elementary_mathematics
    college_mathematics college_computer_science
    """.split()
)

SOURCES: Mapping[str, Source] = {
    "gsm8k": Source("openai/gsm8k", configurations=("main",)),
    "minerva_math": Source("HuggingFaceH4/MATH-500"),
    "gsm_hard": Source("reasoning-machines/gsm-hard", splits=("train",)),
    "svamp": Source("ChilleD/SVAMP", splits=("train", "test")),
    "mmlu_stem": Source("cais/mmlu", configurations=_STEM),
}
"""By the name of the benchmark. The others have another form there or are missing."""


def fetch(benchmark: Benchmark, data: Path) -> tuple[Path, int]:
    """Writes a benchmark's file, NAME/test.jsonl in a folder. Returns its path and item count.

    An existing file is not replaced. A failure leaves no partial file.

    Raises: InputError if the hub has no such benchmark or cannot be reached; BenchmarkError if its
        records are not of that benchmark.
    """
    if benchmark.name not in SOURCES:
        raise InputError(
            f"{benchmark.name}: not on the hub in the form that the paper's harness reads "
            f"(available: {', '.join(SOURCES)}); put it in "
            f"{data / benchmark.folder / 'test.jsonl'}"
        )
    path = data / benchmark.folder / "test.jsonl"
    for present in (path, path.with_suffix(".jsonl.gz")):
        if present.exists():
            raise InputError(f"{present}: already exists; remove it to fetch it again")
    source, lines = SOURCES[benchmark.name], []
    for number, record in enumerate(_downloaded(source), 1):
        try:
            benchmark.item(record, number - 1)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(
                f"{source.dataset}, item {number}: not an item of {benchmark.name}: {error!r}"
            ) from error
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    with appearing(path) as file:
        file.writelines(line.encode() for line in lines)
    return path, len(lines)


def _downloaded(source: Source) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        for configuration, split in product(source.configurations, source.splits):
            yield from load_dataset(source.dataset, configuration, split=split)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{source.dataset}: cannot be fetched from the hub: {error}; on a machine without a "
            "network, copy the file there"
        ) from error
