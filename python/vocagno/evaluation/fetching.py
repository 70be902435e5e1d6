"""Downloads questions from the Hugging Face hub and writes the files that an evaluation reads.

The hub has five of the benchmarks with the fields of the paper's harness. The others have another
form there or are missing, and you have to provide them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import Benchmark, BenchmarkError, Record
from vocagno.system.files import appearing


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
"""By the name of the benchmark."""


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
    for number, record in enumerate(_records(source), 1):
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


def _records(source: Source) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        for configuration, split in product(source.configurations, source.splits):
            yield from load_dataset(source.dataset, configuration, split=split)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{source.dataset}: cannot be fetched from the hub: {error}; on a machine without a "
            "network, copy the file there"
        ) from error
