"""Questions from the Hugging Face hub, written as the files that an evaluation reads.

The hub has five of the benchmarks with the fields of the paper's harness; the others are there in
other forms or not at all, and have to be brought.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import Benchmark, Record
from vocagno.evaluation.reading import BenchmarkError
from vocagno.system.files import appearing


@dataclass(frozen=True, slots=True)
class Source:
    """Where the hub has a benchmark."""

    dataset: str
    splits: tuple[str, ...] = ("test",)
    configurations: tuple[str | None, ...] = (None,)


# The subjects that MMLU's authors count as STEM (lm-eval counts anatomy, too), in the order of the
# harness's file: an item's number is its place.
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
    """Writes a benchmark's file, NAME/test.jsonl in a folder; its path and how many items it has.

    What is there already is not replaced, and a failure leaves nothing behind.

    Raises: InputError if the hub has no such benchmark or is not reached; BenchmarkError if what it
        has is not read as that benchmark.
    """
    if benchmark.name not in SOURCES:
        raise InputError(
            f"{benchmark.name}: not on the hub in the form that the paper's harness reads (what "
            f"is: {', '.join(SOURCES)}); put it in {data / benchmark.folder / 'test.jsonl'}"
        )
    path = data / benchmark.folder / "test.jsonl"
    for present in (path, path.with_suffix(".jsonl.gz")):
        if present.exists():
            raise InputError(f"{present}: is there already; remove it to fetch it anew")
    source, lines = SOURCES[benchmark.name], []
    for number, record in enumerate(_records(source), 1):
        try:
            benchmark.item(record, number - 1)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BenchmarkError(
                f"{source.dataset}, item {number}: no item of {benchmark.name}: {error!r}"
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
            f"{source.dataset}: cannot be fetched from the hub: {error}; on a machine that is not "
            "connected, bring the file"
        ) from error
