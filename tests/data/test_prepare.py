"""`vocagno prepare`: the same bytes for any number of workers, after any kill."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("filelock")
pytest.importorskip("pyarrow")

from corpora import write_corpus
from families import TEXTS
from folders import contents
from runs import started, wait_for_shards
from vocagno.data.rows import RowStore

pytestmark = pytest.mark.slow

SLOW = Path(__file__).parents[1] / "support" / "processes" / "slow_preparing.py"


@pytest.fixture
def prepare(tmp_path, tokenizer_files):
    """Starts the command on a corpus of 24 shards, with a cache of its own."""
    corpus = write_corpus(tmp_path / "c.jsonl", [f"{i}: {TEXTS[i % 6]}" for i in range(24)])

    options = f"--eos </s> --json --seq_len 16 --tokenizer {tokenizer_files}/student.json"

    def start(cache, workers, seconds=0.0):
        words = f"prepare {corpus} {options} --cache {tmp_path}/{cache} --workers {workers}".split()
        return started(sys.executable, SLOW, *words, SECONDS=str(seconds))

    return start


def finished(process):
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output)


def test_workers_and_kills_change_no_byte(prepare, tmp_path):
    alone = finished(prepare("one", 1))
    assert alone["shards_made"] == 24
    assert alone["peak_memory_mb"] > 0
    whole = contents(Path(alone["store"]))
    three = finished(prepare("three", 3, 0.05))
    assert contents(Path(three["store"])) == whole
    assert three["shards_made"] == 24
    store = tmp_path / "killed" / "rows" / Path(alone["store"]).name
    for _ in range(3):
        process = prepare("killed", 2, 0.2)
        wait_for_shards(store, len(list(store.glob("*.arrow"))) + 3, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)  # the helper has gone, too, or this would wait for it
    killed = finished(prepare("killed", 2))
    assert 0 < killed["shards_made"] < 24 - 8
    assert contents(store) == whole
    assert list(RowStore(store).damages()) == []


def test_a_helper_that_fails_leaves_its_share_to_the_others(prepare, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIL_IN_HELPERS", "1")
    process = prepare("cache", 2, 0.15)
    output, errors = process.communicate(timeout=60)
    result = json.loads(output)
    assert "OSError: as asked" in errors
    assert len(RowStore(Path(result["store"]))) == result["rows"]
