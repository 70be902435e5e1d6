"""Rows as steps of datatrove pipelines."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datatrove")
pytest.importorskip("pyarrow")

from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from folders import contents
from runs import environment
from vocagno.data.corpus import scan
from vocagno.data.prepare import open_rows, prepared_rows
from vocagno.data.rows import RowStore
from vocagno.data.store.refusals import REPORT
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError
from vocagno.integrations.datatrove import FinishRows, RowPacker
from vocagno.tokens.student_tokenizer import student_tokenizer
from warm_python import executable

SHARD_BYTES = 150


@pytest.fixture
def folder(tmp_path):
    """A corpus of four files, the third without documents."""
    place = tmp_path / "corpus"
    place.mkdir()
    for number, count in enumerate((5, 4, 0, 6)):
        texts = [f"{number} {i}: {TEXTS[number + i]}" for i in range(count)]
        write_corpus(place / f"{number}.jsonl", texts)
    return place


@pytest.fixture
def pipeline(tmp_path, folder, tokenizer_files):
    """Runs all tasks, and what finishes the store."""

    def run(store, *, tasks=4, workers=1, folder=folder, finish=True, **options):
        given = {"seq_len": 8, "eos": "</s>", "shard_bytes": SHARD_BYTES}
        given |= {"tokenizer": tokenizer_files / "student.json", **options}
        packing = LocalPipelineExecutor(
            [JsonlReader(str(folder)), RowPacker(tmp_path / store, **given)],
            tasks=tasks,
            workers=workers,
            logging_dir=str(tmp_path / "logs" / store),
            skip_completed=False,
        )
        if not finish:
            return packing.run()
        last = LocalPipelineExecutor(
            [FinishRows(tmp_path / store)],
            logging_dir=str(tmp_path / "logs" / f"{store}-finish"),
            depends=packing,
        )
        last.run()
        return RowStore(tmp_path / store)

    return run


@pytest.fixture
def student(tokenizer_files):
    return student_tokenizer(str(tokenizer_files / "student.json"), "</s>")


def equal(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


def test_a_task_for_each_file_makes_the_rows_of_prepare(tmp_path, folder, pipeline, student):
    """In its order: the shards of a corpus begin anew with each file, too."""
    found = pipeline("rows")
    corpus = scan(folder, shard_bytes=SHARD_BYTES)
    expected, _ = prepared_rows(corpus, student, 8, tmp_path / "cache", show_progress=False)
    assert found.text_hashes == expected.text_hashes
    assert len(found.manifest.shards) == 6
    assert len(found) == len(expected) > 30
    assert all(equal(found[i], expected[i]) for i in range(len(expected)))
    for ours, theirs in zip(found.documents(), expected.documents(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert list(found.damages()) == []


def test_tasks_of_several_files_pack_the_same_documents(pipeline):
    """In another order, and cut elsewhere."""
    four, two = pipeline("four"), pipeline("two", tasks=2)
    assert four.text_hashes != two.text_hashes
    by_hash = [
        {bytes(text): count for text, count in zip(*store.documents(), strict=True)}
        for store in (four, two)
    ]
    assert len(by_hash[1]) == 15
    for store, tokens in zip((four, two), by_hash, strict=True):
        number = int(store[len(store) - 1].documents[-1])
        assert number == 14  # over all shards
        assert sum(tokens.values()) == sum(len(store[i].ids) for i in range(len(store)))
    # A document that a row cuts has the token at the cut in both rows.
    assert all(abs(by_hash[0][text] - by_hash[1][text]) <= 3 for text in by_hash[0])


KILLED = """
import os, signal, sys
from datatrove.pipeline.readers import JsonlReader
from vocagno.integrations import datatrove as steps

pack, made = steps.pack_shard, []

def dies(*arguments):
    if len(made) == 3:  # in the second task
        os.kill(os.getpid(), signal.SIGKILL)
    made.append(pack(*arguments))

steps.pack_shard = dies
corpus, store, tokenizer, shard_bytes = sys.argv[1:]
packer = steps.RowPacker(store, tokenizer, seq_len=8, eos="</s>", shard_bytes=int(shard_bytes))
for rank in range(4):  # an executor would leave processes of its own behind
    for _ in packer.run(JsonlReader(corpus).run(None, rank, 4), rank, 4):
        pass
"""


@pytest.mark.slow
def test_a_killed_task_resumes(tmp_path, folder, pipeline, tokenizer_files):
    """What was finished is kept, and the store ends in the same bytes."""
    pipeline("whole")
    store = tmp_path / "killed"
    given = folder, store, tokenizer_files / "student.json", SHARD_BYTES
    ended = subprocess.run(
        [executable(), "-c", KILLED, *map(str, given)],
        env=environment(),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr.decode()
    kept = {path: path.stat().st_mtime_ns for path in store.rglob("*.arrow")}
    assert len(kept) == 3
    with pytest.raises(StoreError, match=r"3 of 4 tasks are not done \(numbers 1, 2, 3\)"):
        list(FinishRows(store).run())
    pipeline("killed")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert contents(store) == contents(tmp_path / "whole")
    pipeline("killed")  # nothing is left to do


def test_other_documents_and_other_settings_are_refused(tmp_path, folder, pipeline, student):
    rows = pipeline("rows")
    with pytest.raises(StoreError, match=r"another seq len \(8, now 32\); make them again"):
        open_rows(rows.folder, student, 32)
    assert len(open_rows(rows.folder, student, 8)) == len(rows)
    pipeline("unfinished", finish=False)
    with pytest.raises(StoreError, match="this store of rows is unfinished"):
        open_rows(tmp_path / "unfinished", student, 8)
    with pytest.raises(StoreError, match=r"rows of another seq len \(8, now 32\) are being made"):
        pipeline("unfinished", seq_len=32)
    first = folder / "0.jsonl"
    first.write_text(first.read_text().replace("0 0:", "0 one:"))
    with pytest.raises(StoreError, match="made from other documents, or with other settings"):
        pipeline("unfinished")
    for options, words in (
        ({"seq_len": 0}, "seq_len must be positive, got 0"),
        ({"shard_bytes": 0}, "shard_bytes must be positive, got 0"),
    ):
        with pytest.raises(ConfigError, match=words):
            RowPacker("rows", "tokenizer.json", **options)


def test_a_finished_store_refuses_more_or_fewer_documents(tmp_path, tokenizer_files):
    """Of one of its two tasks, which runs again; the other one does not."""
    store = tmp_path / "rows"

    def run(count, rank):
        """Makes a shard of each document."""
        given = {"seq_len": 8, "eos": "</s>", "shard_bytes": 1}
        packer = RowPacker(store, tokenizer_files / "student.json", **given)
        documents = (Document(text=f"{rank} {text}", id=text) for text in TEXTS[:count])
        list(packer.run(documents, rank, 2))

    run(2, 0)
    run(3, 1)
    list(FinishRows(store).run())
    whole = contents(store)
    for count, words in ((5, "has 3 shards of task-00001, which now has 5"), (2, "now has 2")):
        run(count, 1)
        with pytest.raises(StoreError, match=rf"{words}: its documents have changed; name another"):
            list(FinishRows(store).run())
        run(3, 1)
        list(FinishRows(store).run())
    assert contents(store) == whole


@pytest.mark.slow
def test_tasks_in_processes(tmp_path, pipeline):
    pipeline("here")
    pipeline("processes", workers=2)
    assert contents(tmp_path / "processes") == contents(tmp_path / "here")
    stats = json.loads((tmp_path / "logs" / "processes" / "stats.json").read_text())
    (step,) = (one["stats"] for one in stats if "vocagno" in one["name"])
    store = RowStore(Path(tmp_path / "processes"))
    assert step["rows"]["total"] == len(store)
    assert step["tokens"]["total"] == store.num_tokens


def test_documents_that_cannot_be_placed_are_left_out_and_named(tmp_path, pipeline, folder):
    without_unknown_token("☃").save(str(tmp_path / "unigram.json"))
    write_corpus(folder / "4.jsonl", ["one", "two ☃", "three"])
    options = {"tokenizer": tmp_path / "unigram.json", "tasks": 5}
    found = pipeline("rows", **options)
    lines = (tmp_path / "rows" / REPORT).read_text("utf-8").splitlines()
    (entry,) = map(json.loads, lines)
    assert (entry["document"], entry["place"]) == (16, "document 4.jsonl/1")
    assert found.manifest.count("refused_documents") == 1
    assert [found[len(found) - 1].documents[-1]] == [17]
    write_corpus(folder / "4.jsonl", ["☃"] * 11)
    with pytest.raises(StoreError, match="the tokens of 11 of 26 documents cannot be placed"):
        pipeline("others", **options)
