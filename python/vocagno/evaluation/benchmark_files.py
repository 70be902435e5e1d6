"""Files of the benchmarks: their questions, the worked examples of their prompts, and the download
of some from the Hugging Face hub."""

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import UNREADABLE, Benchmark, Item, Record
from vocagno.system.files import atomic_file, refuse_pointers


class BenchmarkError(InputError):
    """A file of questions or completions cannot be read; names file and line."""


def read_items(benchmark: Benchmark, data: Path, *, limit: int | None = None) -> list[Item]:
    """Reads the items of a benchmark, in the order of their `idx`, or of the file if no record has
    an `idx`. An item that is there again is read once.

    Args:
        data: contains NAME/test.jsonl or NAME/test.jsonl.gz.
        limit: maximum number of items, starting with the first.
    Raises: BenchmarkError.
    """
    path = _find_file(benchmark, data)
    items: dict[int, Item] = {}
    with_index = 0
    for position, (where, record) in enumerate(json_records(path)):
        with_index += "idx" in record
        if with_index not in (0, position + 1):
            raise BenchmarkError(
                f"{where}: some records of this file have an `idx`, and some have none, so two may "
                "have one number; give all of them one, or none"
            )
        index = str(record.get("idx", position))  # int() of 0.7 or true would be another's number
        try:
            item = benchmark.item(record, int(index))
            if items.setdefault(item.index, item) != item:
                raise ValueError(f"its `idx`, {index}, is that of another item before it")
        except KeyError as error:
            raise BenchmarkError(f"{where}: no field {error} of {benchmark.name}") from error
        except UNREADABLE as error:
            raise BenchmarkError(f"{where}: not an item of {benchmark.name}: {error}") from error
    if not items:
        raise BenchmarkError(f"{path}: no items")
    return [items[index] for index in sorted(items)[:limit]]


def _find_file(benchmark: Benchmark, data: Path) -> Path:
    """Returns the path of a benchmark's questions. Raises: BenchmarkError if they are missing."""
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
        """Checks that there are as many examples as the benchmark has, and that each is put and
        answered as its questions are, with choices if these have any. Other examples would lower
        the result silently. It cannot tell two benchmarks of one form apart.
        Raises: BenchmarkError."""
        opening, answering = benchmark.format_question("").split()
        examples = self.text.split(BETWEEN)
        wrong = [
            example
            for example in examples
            if not example.startswith(opening) or answering not in example
        ]
        if wrong or all("(A)" in example for example in examples) != benchmark.choice:
            raise BenchmarkError(
                f"{self.source}: not worked examples of {benchmark.name}: expected {opening} and "
                f"{answering} with{'' if benchmark.choice else 'out'} choices (A), (B), ... and "
                f"two blank lines between examples, got {(wrong or examples)[0][:40]!r}; give its "
                "own"
            )
        if len(examples) != benchmark.shots:
            raise BenchmarkError(
                f"{self.source}: has {len(examples)} worked examples; the prompts of "
                f"{benchmark.name} have {benchmark.shots}, with two blank lines between them"
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
    joined = BETWEEN.join(_EXAMPLES_OF_LM_EVAL[benchmark.prompt](benchmark))
    examples = Examples(joined, "lm-eval")
    examples.check(benchmark)
    return examples


def _gsm8k_examples(benchmark: Benchmark) -> list[str]:
    """Returns lm-eval's worked examples of GSM8K, in the form of the benchmark's prompts."""
    import lm_eval
    import yaml

    path = Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k-cot.yaml"
    samples = yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    return [
        f"{benchmark.format_question(sample['question'])} {sample['target']}" for sample in samples
    ]


def _math_examples(benchmark: Benchmark) -> list[str]:
    """Returns lm-eval's worked examples of MATH, in the form of the benchmark's prompts."""
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
        except UNREADABLE as error:
            raise BenchmarkError(
                f"{source.dataset}, item {number}: not an item of {benchmark.name}: {error!r}"
            ) from error
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    with atomic_file(path) as file:
        file.writelines(line.encode() for line in lines)
    return path, len(lines)


def _download(source: Source) -> Iterator[Record]:
    """Yields the records of a benchmark on the hub. Raises: InputError if it cannot be reached."""
    from datasets import load_dataset

    try:
        for configuration, split in product(source.configurations, source.splits):
            yield from load_dataset(source.dataset, configuration, split=split)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{source.dataset}: cannot be fetched from the hub: {error}; on a machine without a "
            "network, copy the file there"
        ) from error
