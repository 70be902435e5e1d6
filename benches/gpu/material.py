"""Text, tokenizers, rows and scores, made on the machine itself: nothing is downloaded."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from gpu.gauge import drawn_model
from gpu.sizes import Sizes, Text
from vocagno.quickstart.problems import documents
from vocagno.quickstart.tokenizers import EOS, student_tokenizer, teacher_tokenizer

NOISE = 0.5
"""Junk between the lines: its letters and digits are what fills a large vocabulary."""


def write_texts(path: Path, count: int, parts: int, seed: int = 0) -> list[str]:
    """`count` documents, each of `parts` of the quickstart's."""
    drawn = documents(seed, count * parts, NOISE)
    short = [document["text"] for document in drawn]
    texts = ["\n".join(short[start::count]) for start in range(count)]
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    path.write_text("".join(lines), encoding="utf-8")
    return texts


class Material:
    """A corpus, held-out text and the two tokenizers, in a folder."""

    eos = EOS

    def __init__(self, folder: Path, text: Text) -> None:
        self.corpus, self.held_out = folder / "train.jsonl", folder / "valid.jsonl"
        self.student, self.teacher = folder / "student.json", folder / "teacher.json"
        texts = write_texts(self.corpus, text.documents, text.parts)
        write_texts(self.held_out, max(2, text.documents // 20), text.parts, seed=1)
        student_tokenizer(texts, text.student_ids).save(str(self.student))
        teacher_tokenizer(texts, text.teacher_ids).save(str(self.teacher))

    def options(self, **more: Any) -> argparse.Namespace:
        """As the command line of `benches/training.py` would give them."""
        return argparse.Namespace(
            corpus=self.corpus,
            student=str(self.student),
            eos=self.eos,
            teacher=str(self.teacher),
            **more,
        )


def small_run(folder: Path, sizes: Sizes) -> tuple[Material, dict[str, Any]]:
    """Texts with a small random teacher next to them, and the sections of a configuration that
    trains a small student under it."""
    text = sizes.few
    made, teacher = Material(folder, text), folder / "teacher"
    model = drawn_model(sizes.small | {"vocab_size": text.teacher_ids}, torch.float32)
    model.save_pretrained(teacher)
    made.teacher = made.teacher.rename(teacher / "tokenizer.json")
    return made, {
        "student": {
            "tokenizer": str(made.student),
            "eos": made.eos,
            "architecture": sizes.small | {"vocab_size": text.student_ids},
        },
        "teacher": {
            "model": str(teacher),
            "context": sizes.small_length,
            "dtype": "float32",
        },
        "data": {
            "train": str(made.corpus),
            "validation": str(made.held_out),
            "seq_len": sizes.small_length,
            "cache": str(folder / "cache"),
        },
        "output": "named by the run",
    }
