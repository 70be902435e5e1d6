"""Real tokenizers on real text, where they lie beside the project."""

import gzip
import json

import numpy as np
import pytest

import oracle
import vocagno
from conftest import shared
from vocagno import TokenSpans

TEACHERS = ["qwen2.5", "mistral-v0.1", "deepseek-llm", "llama-3", "gpt2"]
FILES = ["math-train", "math-valid", "stress"]


def texts_of(name):
    path = shared("data", f"{name}.jsonl.gz")
    with gzip.open(path, "rb") as lines:
        return [json.loads(line)["text"] for line in lines]


@pytest.fixture(scope="module")
def student():
    return TokenSpans(shared("tokenizers", "tinyllama.json.gz"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("teacher", TEACHERS)
def test_every_document_is_aligned_as_defined_and_covered(student, teacher, name):
    texts = texts_of(name)
    other = TokenSpans(shared("tokenizers", f"{teacher}.json.gz"))
    for start in range(0, len(texts), 256):
        batch = texts[start : start + 256]
        left, right = student.encode(batch), other.encode(batch)
        mapping = vocagno.align(
            left.spans, right.spans,
            student_cu_seqlens=left.cu_seqlens, teacher_cu_seqlens=right.cu_seqlens,
        )  # fmt: skip
        for index, text in enumerate(batch):
            mine, theirs = left.text(index), right.text(index)
            expected = oracle.align_by_bytes(
                left.spans[mine], right.spans[theirs], len(text.encode())
            )
            expected[expected[:, 0] >= 0] += theirs.start
            np.testing.assert_array_equal(mapping[mine], expected, err_msg=repr(text[:80]))
        with_text = left.spans[:, 0] < left.spans[:, 1]
        assert (mapping[with_text, 0] >= 0).all()
        if name != "stress":
            assert left.proved.all()
            assert right.proved.all()
