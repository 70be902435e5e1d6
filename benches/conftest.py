"""Inputs of the benchmarks: spans like those of two tokenizers on one text."""

import gzip
import json
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Real tokenizers and texts that may lie next to the project."""


def pytest_benchmark_update_machine_info(config, machine_info):
    """Adds the versions of what is measured to pytest-benchmark's record."""
    names = ("numpy", "torch", "tokenizers", "trl", "spacy-alignments")
    installed = {entry.metadata["Name"].lower(): entry.version for entry in distributions()}
    machine_info["versions"] = {name: installed[name] for name in names if name in installed}


def tiling_spans(num_tokens, seed):
    """(n, 2) int32 spans that follow one another, 1 to 9 bytes each, 4 on average."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(np.minimum(1 + rng.geometric(0.32, num_tokens), 9))
    return np.stack([ends - np.diff(ends, prepend=0), ends], 1).astype(np.int32)


@cache
def tiling_pair(num_tokens):
    """Student and teacher spans of one text, about as many each."""
    student, teacher = tiling_spans(num_tokens, 0), tiling_spans(num_tokens, 1)
    return cut_at(student, teacher, min(student[-1, 1], teacher[-1, 1]))


def cut_at(student, teacher, end):
    """Cuts both sides at the same byte, so that they cover one text."""
    sides = [spans[spans[:, 0] < end].copy() for spans in (student, teacher)]
    for spans in sides:
        spans[-1, 1] = min(spans[-1, 1], end)
    return sides


def text_of(student, teacher):
    """Makes a text with a random letter for every byte, so that a diff of strings does not match
    tokens at other places."""
    size = int(max(student[-1, 1], teacher[-1, 1]))
    letters = np.random.default_rng(3).integers(ord("a"), ord("z") + 1, size, np.uint8)
    return letters.tobytes().decode()


def latex():
    """Documents of LaTeX."""
    with gzip.open(SHARED / "data" / "math-valid.jsonl.gz", "rb") as lines:
        return [json.loads(line)["text"] for line in lines]


@cache
def rows_of(number):
    """Rows of 2,048 student tokens with the teacher tokens of the same text, and their source."""
    if not SHARED.exists():
        students = [tiling_spans(2_048, 2 * seed) for seed in range(number)]
        teachers = [tiling_spans(2_048, 2 * seed + 1) for seed in range(number)]
        ends = [min(a[-1, 1], b[-1, 1]) for a, b in zip(students, teachers, strict=True)]
        made = map(cut_at, students, teachers, ends)
        return [(student, teacher, "random") for student, teacher in made]
    from vocagno import TokenSpans

    text = "\n".join(latex())
    student, teacher = (
        TokenSpans(SHARED / "tokenizers" / f"{name}.json.gz").encode([text]).spans
        for name in ("tinyllama", "qwen2.5")
    )
    rows = []
    for start in range(0, 2_048 * number, 2_048):
        student_row = student[start : start + 2_048]
        low, high = student_row[0, 0], student_row[-1, 1]
        teacher_row = teacher[(teacher[:, 1] > low) & (teacher[:, 0] < high)].clip(low, high)
        rows.append((student_row - low, teacher_row - low, "LaTeX, TinyLlama x Qwen2.5"))
    return rows
