"""The mathematical benchmarks: how each one's records are read, the worked examples of its prompts,
files of questions, and the download of some from the Hugging Face hub."""

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
from vocagno.evaluation.answers import answer_part, extract_answer, in_box, normalize
from vocagno.system.files import atomic_file, refuse_pointers

Record = Mapping[str, Any]
"""The JSON object in a line of a benchmark's file."""

_CHOOSE = "What of the following is the right choice? Explain your answer."
_ENDINGS = dict.fromkeys(("true", "false"), " (True or False)")
_ENDINGS |= dict.fromkeys(("yes", "no"), " (Yes or No)")
"""Text that is appended to a question, by its gold answer in lower case."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question with its gold answer."""

    question: str
    stated: str
    """The gold answer as the benchmark writes it: LaTeX, a number, a letter or words."""
    gold: str
    """The gold answer, normalised as by `Benchmark.answer`."""
    words: tuple[str, ...] | None = None
    """The possible answers, if they are words or letters, as far as the item lists them."""
    index: int = 0
    """Number of the item in its benchmark, `idx` in the files."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The format of a benchmark: its file, its prompts, and how a record becomes an item."""

    name: str
    column: str | None
    """Column in the paper's tables; None if it is in none."""
    folder: str
    """Folder that contains its test.jsonl."""
    prompt: str
    """NAME of the worked examples' file, prompts/cot/NAME.md."""
    shots: int
    problem: bool
    """True if prompts use `Problem:` and `Solution:`, not `Question:` and `Answer:`."""
    choice: bool
    """True if the answer is a letter."""
    read: Callable[[Record], Item]
    """Reads a record. Raises: KeyError, TypeError, ValueError or IndexError for another kind."""

    def item(self, record: Record, index: int) -> Item:
        """Reads and checks the item in a record. Raises: the errors of `read`."""
        item = self.read(record)
        if item.stated in ("", "nan", "inf", "-inf"):
            raise ValueError(f"it states no answer ({item.stated!r})")
        if item.words is not None and item.stated not in item.words:
            raise ValueError(f"the answer {item.stated!r} is not one of {', '.join(item.words)}")
        question = f"{item.question}{_ENDINGS.get(item.gold.lower(), '')}"
        return replace(item, question=question.strip(), index=index)

    def format_question(self, question: str) -> str:
        """Returns a question in the form that follows the worked examples."""
        if self.problem:
            return f"Problem:\n{question}\nSolution:"
        return f"Question: {question}\nAnswer:"

    def answer(self, completion: str) -> str:
        """Returns the answer in a completion, normalised."""
        return extract_answer(completion, choice=self.choice)


def _field(record: Record, name: str, kind: type | tuple[type, ...] = str) -> Any:
    """Reads a field of a record. Raises: KeyError, or TypeError for a value of another type."""
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):  # a bool is an int, too
        raise TypeError(f"`{name}` is {value!r:.60}")
    return value


_NUMBER = (int, float)
_NUMERAL = re.compile(r"-?[\d,]*\.?\d+(/\d+)?%?")


def _number_item(question: str, value: object) -> Item:
    """Builds an item whose gold answer is a number."""
    # The harness normalises the number itself; 1e-05 is stated as 0.00001.
    stated = np.format_float_positional(value, trim="-") if isinstance(value, float) else value
    return Item(question, str(stated), normalize(value))


def _read_gsm8k(record: Record) -> Item:
    _, marked, stated = _field(record, "answer").partition("####")
    if not marked:
        raise ValueError("`answer` has no ####")
    return _number_item(_field(record, "question"), stated.strip())


def _read_math(record: Record) -> Item:
    solution = _field(record, "solution")
    # The normalised answer is only for the harness: it lacks units, `m` and half of `\\sec x`.
    # Without the backslash, as in the harness, the "boxed" of a sentence would count.
    _, box, after_box = solution.rpartition(r"\boxed")
    stated = in_box(after_box) if box else answer_part(solution)
    stated = _field(record, "answer") if "answer" in record else stated
    return Item(_field(record, "problem"), stated, extract_answer(solution, choice=False))


def _read_svamp(record: Record) -> Item:
    body = _field(record, "Body").strip()
    body = body if body.endswith(".") else f"{body}."
    stated = _field(record, "Answer", (*_NUMBER, str))  # text in the hub's
    return _number_item(f"{body} {_field(record, 'Question').strip()}", float(stated))


def _read_asdiv(record: Record) -> Item:
    stated = re.sub(r"\(.*?\)", "", _field(record, "answer")).strip()
    question = f"{_field(record, 'body').strip()} {_field(record, 'question').strip()}"
    # Other answers than numbers are words, a time or a ratio.
    words = None if _NUMERAL.fullmatch(stated) else (stated,)
    return Item(question, stated, normalize(stated), words)


def _read_target(record: Record) -> Item:
    return _number_item(_field(record, "input"), _field(record, "target", _NUMBER))


def _read_tabmwp(record: Record) -> Item:
    title, choices = record["table_title"], record["choices"]
    regarding = f' regarding "{title}"' if title else ""
    question = (
        f"Read the following table{regarding} and answer a question:\n"
        f"{_field(record, 'table')}\n{_field(record, 'question')}"
    )
    if choices:
        question += f" Please select from the following options: {choices}"
    stated = _field(record, "answer")
    if record["ans_type"] in ("integer_number", "decimal_number"):
        return Item(question, stated, normalize(_number_value(stated)))
    return Item(question, stated, normalize(stated), tuple(choices or (stated,)))


def _number_value(number: str) -> float:
    """Reads `3/4`, `75%` or `1,000`."""
    numerator, slash, denominator = number.partition("/")
    if slash:
        return int(numerator) / int(denominator)
    digits = number.removesuffix("%")
    return float(digits.replace(",", "")) / (1 if digits == number else 100)


def _read_mathqa(record: Record) -> Item:
    options = _field(record, "options").strip()
    if options.startswith("['"):  # a few items have a printed list
        options = " , ".join(options.removeprefix("['").removesuffix("']").split("', '"))
    _, *parts = re.split(r"(?:^| , )([a-e]) \) (?:\1 \) )?", options)  # some repeat the letter
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    if "".join(texts) != "abcde"[: len(texts)]:
        raise ValueError(f"`options` has no letters in order: {options!r:.60}")
    listed = ", ".join(f"({letter.upper()}) {text.strip()}" for letter, text in texts.items())
    problem = _field(record, "problem")
    return _choice_item(
        f"{problem[:1].upper()}{problem[1:]}".strip(),
        listed,
        _field(record, "correct").upper(),
        texts,
    )


def _read_mmlu(record: Record) -> Item:
    choices = _field(record, "choices", list)
    listed = ", ".join(
        f"({letter}) {str(text).strip()}" for letter, text in zip("ABCDE", choices, strict=False)
    )
    number = _field(record, "answer", int)
    if not 0 <= number < len(choices):
        raise ValueError(f"`answer` is {number}, of {len(choices)} choices")
    gold = "ABCDE"[number]
    return _choice_item(_field(record, "question").strip(), listed, gold, choices)


def _read_sat(record: Record) -> Item:
    listed = re.sub(r"(^| )([A-E])[).] ", r"\1(\2) ", _field(record, "options").strip())
    letters = re.findall(r"\(([A-E])\) ", listed)
    if letters != list("ABCDE"[: len(letters)]):
        raise ValueError(f"`options` has no letters in order: {listed!r:.60}")
    return _choice_item(
        _field(record, "question").strip(), listed, _field(record, "Answer"), letters
    )


def _choice_item(question: str, listed: str, gold: str, choices: Collection[object]) -> Item:
    words = tuple("ABCDE"[: len(choices)])
    return Item(f"{question}\n{_CHOOSE}\n{listed}", gold, normalize(gold), words)


def _grade_school(name: str, column: str, read: Callable[[Record], Item]) -> Benchmark:
    """Returns a benchmark of word problems, with the worked examples of GSM8K."""
    return Benchmark(name, column, name, "gsm8k", shots=8, problem=False, choice=False, read=read)


def _competition(name: str, column: str | None, folder: str, shots: int) -> Benchmark:
    return Benchmark(name, column, folder, name, shots, problem=True, choice=False, read=_read_math)


def _multiple_choice(
    name: str, column: str, prompt: str, read: Callable[[Record], Item]
) -> Benchmark:
    return Benchmark(name, column, name, prompt, shots=4, problem=True, choice=True, read=read)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _grade_school("gsm8k", "GSM8K", _read_gsm8k),
        _competition("minerva_math", "MATH", folder="math_oai", shots=4),
        _grade_school("gsm_hard", "GSM-Hard", _read_target),
        _grade_school("svamp", "SVAMP", _read_svamp),
        _grade_school("asdiv", "ASDiv", _read_asdiv),
        _grade_school("mawps", "MAWPS", _read_target),
        _grade_school("tabmwp", "TAB", _read_tabmwp),
        _multiple_choice("mathqa", "MQA", "mathqa", _read_mathqa),
        _multiple_choice("mmlu_stem", "MMLU-STEM", "mmlu_stem", _read_mmlu),
        _multiple_choice("sat_math", "SAT", "mmlu_stem", _read_sat),
        _competition("math", None, folder="math", shots=5),
    )
}
"""The benchmarks by name: the ten of the paper, and the full test set of MATH, of which
`minerva_math` has 500 problems."""

PAPER = tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.column is not None)
"""The names of the ten benchmarks that the paper names."""


def find_benchmark(task: str) -> Benchmark:
    """Returns the benchmark with a name. Raises: InputError that suggests similar names."""
    if task in BENCHMARKS:
        return BENCHMARKS[task]
    similar = get_close_matches(task.lower(), BENCHMARKS, n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(BENCHMARKS)}"
    raise InputError(f"task {task!r}: no such benchmark; {hint}")


class BenchmarkError(InputError):
    """A file of questions or completions cannot be read; names file and line."""


def read_items(benchmark: Benchmark, data: Path, *, limit: int | None = None) -> list[Item]:
    """Reads the items of a benchmark, in the order of their `idx`, or of the file if there is no
    `idx`. Of items with the same `idx`, the last is used.

    Args:
        data: contains NAME/test.jsonl or NAME/test.jsonl.gz.
        limit: maximum number of items, starting with the first.
    Raises: BenchmarkError.
    """
    path = _find_file(benchmark, data)
    items: dict[int, Item] = {}
    for position, (where, record) in enumerate(json_records(path)):
        index = str(record.get("idx", position))  # int() of 0.7 or true would be another's number
        try:
            items[int(index)] = benchmark.item(record, int(index))
        except KeyError as error:
            raise BenchmarkError(f"{where}: no field {error} of {benchmark.name}") from error
        except (TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(f"{where}: not an item of {benchmark.name}: {error}") from error
    if not items:
        raise BenchmarkError(f"{path}: no items")
    return [items[index] for index in sorted(items)[:limit]]


def _find_file(benchmark: Benchmark, data: Path) -> Path:
    if not data.is_dir():
        raise BenchmarkError(f"{data}: no such folder; expected one that holds NAME/test.jsonl")
    for name in ("test.jsonl", "test.jsonl.gz"):
        if (path := data / benchmark.folder / name).is_file():
            return path
    raise BenchmarkError(
        f"{data / benchmark.folder / 'test.jsonl'}: no such file, plain or .gz; expected the "
        f"questions of {benchmark.name}"
    )


def json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of a file of JSON lines, each with its file and line. Lines end only in
    LF; blank ones are skipped. Raises: BenchmarkError for a line that is no JSON object."""
    refuse_pointers([path], BenchmarkError)
    open_file = gzip.open if path.suffix == ".gz" else open
    line = b""
    number = 0
    try:
        with open_file(path, "rb") as file:
            for number, line in enumerate(file, 1):
                where = f"{path}, line {number}"
                line = line.removeprefix(BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield where, json_object(line, where)
    except (OSError, EOFError, zlib.error) as error:
        raise BenchmarkError(f"{path}: cannot be read after line {number}: {error}") from error


def json_object(line: bytes, where: str, remedy: str = "") -> dict[str, Any]:
    """Parses the object in a line of JSON. Raises: BenchmarkError that begins with `where` and ends
    with `remedy`."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{where}: not JSON in UTF-8 ({error}){remedy}") from error
    if not isinstance(record, dict):
        raise BenchmarkError(f"{where}: expected an object, got {line[:60]!r}{remedy}")
    return record


BETWEEN = "\n\n\n"
"""The separator between two worked examples, and before the question."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The worked examples of a benchmark."""

    text: str
    source: str
    """The file they were read from, or `lm-eval`."""

    def prompt(self, benchmark: Benchmark, question: str) -> str:
        """Returns the prompt for a question."""
        return f"{self.text}{BETWEEN}{benchmark.format_question(question)}"

    def check(self, benchmark: Benchmark) -> None:
        """Checks that the examples have the form of the benchmark's questions. Raises:
        BenchmarkError if not: those of another benchmark would lower the result silently."""
        opening, examples = benchmark.format_question("").split()[0], self.text.split(BETWEEN)
        wrong = [example for example in examples if not example.startswith(opening)]
        if wrong or all("(A)" in example for example in examples) != benchmark.choice:
            raise BenchmarkError(
                f"{self.source}: not worked examples of {benchmark.name}: expected {opening} with"
                f"{'' if benchmark.choice else 'out'} choices (A), (B), ... and two blank lines "
                f"between examples, got {(wrong or examples)[0][:40]!r}; give its own"
            )


def read_examples(benchmark: Benchmark, data: Path) -> Examples:
    """Reads the worked examples from `prompts/cot/NAME.md` in the data folder or next to it, as in
    the paper's harness, or else takes those that lm-eval includes.

    Raises: BenchmarkError if there are none.
    """
    name = f"prompts/cot/{benchmark.prompt}.md"
    for path in (data / name, data.absolute().parent / name):
        if path.is_file():
            refuse_pointers([path], BenchmarkError)
            try:
                examples = Examples(path.read_text(encoding="utf-8-sig").strip(), str(path))
            except UnicodeDecodeError as error:
                raise BenchmarkError(f"{path}: not UTF-8 ({error})") from error
            examples.check(benchmark)
            return examples
    if benchmark.prompt not in _EXAMPLES_OF_LM_EVAL:
        raise BenchmarkError(
            f"{data / name}: no such file; expected the {benchmark.shots} worked examples of "
            f"{benchmark.name}; lm-eval has only those of {' and '.join(_EXAMPLES_OF_LM_EVAL)}"
        )
    return Examples(BETWEEN.join(_EXAMPLES_OF_LM_EVAL[benchmark.prompt](benchmark)), "lm-eval")


def _gsm8k_examples(benchmark: Benchmark) -> list[str]:
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml"
    samples = yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    return [
        f"{benchmark.format_question(sample['question'])} {sample['target']}" for sample in samples
    ]


def _math_examples(benchmark: Benchmark) -> list[str]:
    from lm_eval.tasks.minerva_math.utils import list_fewshot_samples

    return [
        f"{benchmark.format_question(sample['problem'])}\n{sample['solution']}"
        for sample in list_fewshot_samples()
    ]


_EXAMPLES_OF_LM_EVAL: dict[str, Callable[[Benchmark], list[str]]] = {
    "gsm8k": _gsm8k_examples,
    "minerva_math": _math_examples,
}


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a benchmark on the hub."""

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
"""Locations by the name of the benchmark, of those that have the fields of the paper's harness on
the hub. The others have other fields there, or are missing."""


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
    for existing in (path, path.with_suffix(".jsonl.gz")):
        if existing.exists():
            raise InputError(f"{existing}: already exists; remove it to fetch it again")
    source, lines = SOURCES[benchmark.name], []
    for number, record in enumerate(_download(source), 1):
        try:
            benchmark.item(record, number - 1)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(
                f"{source.dataset}, item {number}: not an item of {benchmark.name}: {error!r}"
            ) from error
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    with atomic_file(path) as file:
        file.writelines(line.encode() for line in lines)
    return path, len(lines)


def _download(source: Source) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        for configuration, split in product(source.configurations, source.splits):
            yield from load_dataset(source.dataset, configuration, split=split)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{source.dataset}: cannot be fetched from the hub: {error}; on a machine without a "
            "network, copy the file there"
        ) from error
