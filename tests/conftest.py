"""Fixtures: small tokenizers of every family, tiny models, a corpus; nothing is downloaded."""

import json
import os
from collections import Counter

# A process that is forked while threads of OpenMP wait hangs in its first product.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from corpora import write_corpus
from families import FAMILIES, TEXTS
from tiny_models import save_llama

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


def pytest_collection_modifyitems(items):
    """Runs files of slow tests first, so that no worker is left with one at the end."""
    tests, slow = Counter(), Counter()
    for item in items:
        tests[item.path] += 1
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: -slow[item.path] / tests[item.path])


@pytest.fixture(scope="session")
def tokenizers():
    """Every family by name."""
    return {name: build() for name, build in FAMILIES.items()}


@pytest.fixture(scope="session")
def tokenizer_files(tokenizers, tmp_path_factory):
    """`student` (llama) and `teacher` (byte-level) as tokenizer.json files."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for name, family in (("student", "llama"), ("teacher", "byte-level")):
        tokenizers[family].save(str(folder / f"{name}.json"))
    return folder


@pytest.fixture(scope="session")
def teacher_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama and the byte-level tokenizer."""
    return save_llama(tmp_path_factory.mktemp("teacher"), tokenizers["byte-level"], seed=1)


@pytest.fixture(scope="session")
def same_vocabulary_model(tokenizers, tmp_path_factory):
    """A folder with a tiny random Llama and the student's tokenizer; its head has ids to spare."""
    folder, tokenizer = tmp_path_factory.mktemp("same"), tokenizers["llama"]
    return save_llama(folder, tokenizer, seed=5, size=tokenizer.get_vocab_size() + 16)


class Commands:
    """The command `vocagno`, in this process."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, *words, status=0):
        """What a command prints to stdout and stderr."""
        from vocagno.cli.app import main

        self._capsys.readouterr()
        assert main([*map(str, words)]) == status
        return self._capsys.readouterr()

    def json(self, *words):
        return json.loads(self(*words, "--json").out)

    def error(self, *words):
        """What a command that is refused prints to stderr."""
        return self(*words, status=2).err


@pytest.fixture
def cli(capsys):
    return Commands(capsys)


@pytest.fixture
def small_chunks(monkeypatch):
    """Seven tokens of 50 ids at a time, so that chunks end inside rows and the last is short."""
    monkeypatch.setattr("vocagno.models.head.CHUNK_ELEMENTS", 7 * 50)
    monkeypatch.setattr("vocagno.models.head.LEAST_ROWS", 1)


@pytest.fixture
def corpus(tmp_path):
    """A small corpus as JSON Lines."""
    return write_corpus(tmp_path / "c.jsonl", TEXTS)


@pytest.fixture
def config(tmp_path, corpus, tokenizer_files, teacher_model):
    """Writes the configuration of a small guided run; sections override single options."""
    from runs import write_config

    def write(**sections):
        return write_config(tmp_path, corpus, tokenizer_files, teacher_model, **sections)

    return write
