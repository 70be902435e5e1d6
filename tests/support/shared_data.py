"""Real tokenizers and texts that may lie next to the project."""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from vocagno import TokenSpans

SHARED = Path(__file__).resolve().parents[3] / "shared"
REAL_TOKENIZERS = [
    *("bert-base-uncased", "deepseek-llm", "gpt2", "llama-3", "mistral-v0.1", "pythia"),
    *("qwen2.5", "t5-small", "tinyllama"),
]
"""What may lie in `shared/tokenizers`, each a NAME.json.gz."""


@cache
def real_tokenizer(name):
    """`TokenSpans` of one of them, or a skip."""
    return TokenSpans(shared("tokenizers", f"{name}.json.gz"))


def shared(*parts):
    """A file or folder beside the project, or a skip that says what is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real data is not beside the project: {'/'.join(('shared', *parts))}")
    return path


def shared_texts(name):
    """The documents of a corpus beside the project."""
    with gzip.open(shared("data", f"{name}.jsonl.gz"), "rb") as lines:
        return [json.loads(line)["text"] for line in lines]
