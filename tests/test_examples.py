"""Every example runs, as its first lines say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TEXTS, write_corpus

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(example, *arguments):
    """What it prints; as a user starts it."""
    command = [sys.executable, EXAMPLES / example, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def student_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama and a tokenizer of the SentencePiece kind."""
    pytest.importorskip("torch")
    from transformers import PreTrainedTokenizerFast

    from conftest import tiny_llama

    folder = tmp_path_factory.mktemp("student")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers["llama"], eos_token="</s>")
    tokenizer.save_pretrained(folder)
    tiny_llama(tokenizers["llama"].get_vocab_size(), seed=3).save_pretrained(folder)
    return folder


def test_align(tokenizer_files):
    printed = run(
        "align.py", tokenizer_files / "student.json", tokenizer_files / "teacher.json", "17 and 25"
    )
    first, *others = printed.splitlines()
    assert first.startswith("▁")
    assert all(line.endswith("]") and "[]" not in line for line in others)


def test_bits_per_byte(tmp_path, student_model, teacher_model):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS[:6]), encoding="utf-8")
    lines = run(
        "bits_per_byte.py", student_model, teacher_model, tmp_path / "text.txt"
    ).splitlines()
    own, other, both = (float(line.split()[0]) for line in lines[:3])
    assert lines[2].endswith("both together")
    assert both <= (own + other) / 2 + 0.001  # as the logarithm is concave
    assert all(line.endswith("nats") for line in lines[3:5])


@pytest.mark.parametrize("example", ["plain_loop.py", "guided_trainer.py"])
def test_guided(tmp_path, student_model, teacher_model, example):
    from vocagno.cli import main

    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    cache = ["--cache", str(tmp_path / "cache")]
    rows, scores, out = (str(tmp_path / name) for name in ("rows", "scores", "out"))
    prepared = ["prepare", str(corpus), "--seq_len", "64", "--tokenizer", str(student_model)]
    assert main([*prepared, "--out", rows, *cache]) == 0
    scored = ["score", str(corpus), "--teacher.model", str(teacher_model)]
    assert main([*scored, "--teacher.context", "128", "--teacher.min_context", "16",
                 "--out", scores, *cache]) == 0  # fmt: skip
    run(example, student_model, rows, scores, out)
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.skipif(shutil.which("cargo") is None, reason="no Rust toolchain")
def test_rust():
    manifest = EXAMPLES / "rust" / "Cargo.toml"
    target = EXAMPLES.parent / "target" / "examples-rust"
    command = ["cargo", "run", "--quiet", "--locked", "--manifest-path", manifest,
               "--target-dir", target, "--", "an unbelievable story", "4"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "bytes 0 to 4: words 0 to 2, the longest of 13 bytes"
