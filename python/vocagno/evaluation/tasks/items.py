"""Functions for the task files: questions in lm-eval's form, and verdicts on completions."""

import atexit
import os
from functools import cache
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import BENCHMARKS, Item
from vocagno.evaluation.judging import Judge
from vocagno.evaluation.prompts import read_examples
from vocagno.evaluation.reading import read_items

DATA = "VOCAGNO_EVAL_DATA"
"""Environment variable with the data folder, used if `metadata` does not name one."""


def dataset(benchmark: str, data: str | None = None, **_: object) -> dict[str, Any]:
    """The questions of a benchmark, each with its prompt.

    Args:
        data: folder of the benchmarks; default: from the environment.
        _: other metadata of the task.
    """
    import datasets

    folder = data or os.environ.get(DATA)
    if folder is None:
        raise InputError(f"""name the data: --metadata '{{"data": "FOLDER"}}', or {DATA}=FOLDER""")
    named = BENCHMARKS[benchmark]
    examples = read_examples(named, Path(folder))
    rows = [
        {
            "benchmark": benchmark,
            "index": item.index,
            "question": item.question,
            "prompt": examples.prompt(named, item.question),
            "gold": item.gold,
            "stated": item.stated,
            "words": list(item.words or ()),
        }
        for item in read_items(named, Path(folder))
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def verdict(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The two metrics of a completion."""
    words = tuple(doc["words"]) or None
    item = Item(doc["index"], doc["question"], doc["gold"], doc["stated"], words)
    found = _judge().verdict(BENCHMARKS[doc["benchmark"]], item, results[0])
    return {"harness_match": float(found.harness_match), "math_verify": float(found.math_verify)}


@cache
def _judge() -> Judge:
    judge = Judge()
    atexit.register(judge.close)
    return judge
