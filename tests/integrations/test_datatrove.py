"""Rows and scores as steps of datatrove pipelines."""

import json
import subprocess

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datatrove")
pytest.importorskip("pyarrow")

from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from folders import contents
from noisy_texts import NOISY, without_noise, write_line_losses
from runs import environment
from score_server import serving
from vocagno.cli.app import main
from vocagno.data.corpus import scan
from vocagno.data.prepare import open_rows, prepare_rows
from vocagno.data.rows import RowStore
from vocagno.data.store.format import REPORT
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError
from vocagno.integrations import datatrove as steps
from vocagno.integrations.datatrove import FinishRows, FinishScores, RowPacker, TeacherScorer
from vocagno.teacher.score_store import MatchedScores, ScoreStore
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
def execute(tmp_path, folder):
    """Runs all tasks of some steps, and what finishes their stores."""

    def execute(name, makers, finishers, *, tasks=4, workers=1, folder=folder):
        making = LocalPipelineExecutor(
            [JsonlReader(str(folder)), *makers],
            tasks=tasks,
            workers=workers,
            logging_dir=str(tmp_path / "logs" / name),
            skip_completed=False,
        )
        if not finishers:
            return making.run()
        logs = str(tmp_path / "logs" / f"{name}-finish")
        return LocalPipelineExecutor(finishers, logging_dir=logs, depends=making).run()

    return execute


@pytest.fixture
def pipeline(tmp_path, execute, tokenizer_files):
    """Rows."""

    def run(store, *, finish=True, tasks=4, **options):
        settings = {"seq_len": 8, "eos": "</s>", "shard_bytes": SHARD_BYTES}
        settings |= {"tokenizer": tokenizer_files / "student.json", **options}
        finishers = [FinishRows(tmp_path / store)] * finish
        makers = [RowPacker(tmp_path / store, **settings)]
        execute(store, makers, finishers, tasks=tasks)
        return RowStore(tmp_path / store) if finish else None

    return run


def scorer(folder, cache, **teacher):
    return TeacherScorer(folder, {"context": 32, **teacher}, shard_bytes=100, cache=cache)


@pytest.fixture
def scoring(tmp_path, execute, teacher_model):
    """Scores."""

    def run(store, *, finish=True, **teacher):
        teacher_options = {"model": str(teacher_model), **teacher}
        makers = [scorer(tmp_path / store, tmp_path / "cache", **teacher_options)]
        execute(store, makers, [FinishScores(tmp_path / store)] * finish)

    steps._loaded_teacher.cache_clear()
    yield run
    steps._loaded_teacher.cache_clear()


@pytest.fixture
def student(tokenizer_files):
    return student_tokenizer(str(tokenizer_files / "student.json"), "</s>")


def equal(row, other):
    return all(np.array_equal(getattr(row, name), getattr(other, name)) for name in row.__slots__)


@pytest.mark.slow
def test_a_task_for_each_file_makes_the_rows_of_prepare(tmp_path, folder, pipeline, student):
    """In its order: the shards of a corpus begin anew with each file, too."""
    rows = pipeline("rows")
    corpus = scan(folder, shard_bytes=SHARD_BYTES)
    expected, _ = prepare_rows(corpus, student, 8, tmp_path / "cache", show_progress=False)
    assert rows.text_hashes == expected.text_hashes
    assert len(rows.manifest.shards) == 6
    assert len(rows) == len(expected) > 30
    assert all(equal(rows[i], expected[i]) for i in range(len(expected)))
    for column, expected_column in zip(rows.documents(), expected.documents(), strict=True):
        np.testing.assert_array_equal(column, expected_column)
    assert list(rows.damages()) == []


@pytest.mark.slow
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
    arguments = folder, store, tokenizer_files / "student.json", SHARD_BYTES
    ended = subprocess.run(
        [executable(), "-c", KILLED, *map(str, arguments)],
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


@pytest.mark.slow
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
    with pytest.raises(StoreError, match=r"another text \(4 tasks, .* now 2 tasks"):
        pipeline("unfinished", tasks=2)
    first = folder / "0.jsonl"
    first.write_text(first.read_text().replace("0 0:", "0 one:"))
    with pytest.raises(StoreError, match="made from other documents, or with other settings"):
        pipeline("unfinished")


@pytest.mark.parametrize(
    ("step", "options", "words"),
    [
        (RowPacker, {"seq_len": 0}, "seq_len must be positive, got 0"),
        (RowPacker, {"shard_bytes": 0}, "shard_bytes must be positive, got 0"),
        (FinishScores, {"folder": "s3://a/b"}, "s3://a/b: expected a folder that all tasks see"),
        (RowPacker, {"folder": "s3://a/b"}, "s3://a/b: expected a folder that all tasks see"),
        (TeacherScorer, {"teacher": {"modle": "x"}}, "teacher: no such options: modle"),
        (TeacherScorer, {"teacher": {}}, "teacher: needs a model"),
        (
            TeacherScorer,
            {"teacher": {"model": "x", "tensor_parallel": True}},
            "needs a model, and no tensor_parallel",
        ),
    ],
)
def test_options_of_steps_are_checked(step, options, words):
    required = {"tokenizer": "tokenizer.json"} if step is RowPacker else {}
    with pytest.raises(ConfigError, match=words):
        step(**{"folder": "store", **required, **options})


def test_a_finished_store_refuses_more_or_fewer_documents(tmp_path, tokenizer_files):
    """Of one of its two tasks, which runs again; the other one does not."""
    store = tmp_path / "rows"

    def run(count, rank):
        """Makes a shard of each document."""
        options = {"seq_len": 8, "eos": "</s>", "shard_bytes": 1}
        packer = RowPacker(store, tokenizer_files / "student.json", **options)
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
    (store / "task-00000" / "shard-00000.arrow").unlink()
    with pytest.raises(StoreError, match=r"finished store \(task-00000/shard-00000.arrow\) are"):
        list(FinishRows(store).run())
    with pytest.raises(StoreError, match="no task that makes this store is done"):
        list(FinishRows(tmp_path / "none").run())


@pytest.mark.slow
def test_documents_that_cannot_be_placed_are_left_out_and_named(tmp_path, pipeline, folder):
    without_unknown_token("☃").save(str(tmp_path / "unigram.json"))
    write_corpus(folder / "4.jsonl", ["one", "two ☃", "three"])
    options = {"tokenizer": tmp_path / "unigram.json", "tasks": 5}
    rows = pipeline("rows", **options)
    lines = (tmp_path / "rows" / REPORT).read_text("utf-8").splitlines()
    (entry,) = map(json.loads, lines)
    assert (entry["document"], entry["place"]) == (16, "document 4.jsonl/1")
    assert rows.manifest.count("refused_documents") == 1
    assert [rows[len(rows) - 1].documents[-1]] == [17]
    write_corpus(folder / "4.jsonl", ["☃"] * 11)
    with pytest.raises(StoreError, match="the tokens of 11 of 26 documents cannot be placed"):
        pipeline("others", **options)


def by_text(store):
    """The losses of each document, by the hash of its text."""
    losses = {}
    for shard in store.shards():
        for row, text in enumerate(shard.text_hashes.tolist()):
            losses[bytes(text)] = shard.nll[row]
    return losses


@pytest.mark.slow
def test_scores_are_those_of_the_command(tmp_path, scoring, folder, teacher_model):
    scoring("ours")
    command = ["score", str(folder), "--teacher.model", str(teacher_model), "--teacher.context"]
    assert main([*command, "32", "--cache", str(tmp_path / "c"), "--out", str(tmp_path / "x")]) == 0
    pipeline_scores, command_scores = ScoreStore(tmp_path / "ours"), ScoreStore(tmp_path / "x")
    assert pipeline_scores.manifest.made_from == command_scores.manifest.made_from
    assert len(pipeline_scores.manifest.shards) > 4
    assert list(pipeline_scores.damages()) == []
    losses, expected = by_text(pipeline_scores), by_text(command_scores)
    assert losses.keys() == expected.keys()
    for text, nll in expected.items():  # batches differ
        np.testing.assert_allclose(losses[text], nll, atol=0.01)


@pytest.mark.slow
def test_rows_and_scores_in_one_pipeline_of_processes(
    tmp_path, execute, pipeline, scoring, teacher_model, tokenizer_files
):
    """A scorer behind a packer: both make what they make alone and here."""
    rows, scores = tmp_path / "rows", tmp_path / "scores"
    options = {"seq_len": 8, "eos": "</s>", "shard_bytes": SHARD_BYTES}
    packer = RowPacker(rows, tokenizer_files / "student.json", **options)
    scoring_step = scorer(scores, tmp_path / "cache", model=str(teacher_model))
    execute("both", [packer, scoring_step], [FinishRows(rows), FinishScores(scores)], workers=2)
    pipeline("rows-here")
    scoring("scores-here")
    assert contents(rows) == contents(tmp_path / "rows-here")
    assert contents(scores) == contents(tmp_path / "scores-here")
    store = RowStore(rows)
    assert MatchedScores(ScoreStore(scores), store).missing_documents == 0
    stats = json.loads((tmp_path / "logs" / "both" / "stats.json").read_text())
    (step,) = (entry["stats"] for entry in stats if "vocagno: rows" in entry["name"])
    assert step["rows"]["total"] == len(store)
    assert step["tokens"]["total"] == store.num_tokens


@pytest.mark.slow
def test_a_server_that_has_another_model(tmp_path, scoring, tokenizer_files):
    """A task that resumes writes no shard of another model under the same name."""
    pytest.importorskip("requests")
    with serving() as (url, state):
        options = {"server": url, "tokenizer": str(tokenizer_files / "teacher.json")}
        options |= {"model": None, "context": 512, "finish": False}
        scoring("store", **options)
        *kept, lost = sorted((tmp_path / "store").rglob("*.arrow"))
        lost.unlink()
        state.change = lambda logprobs, ids: [logprob and logprob - 0.5 for logprob in logprobs]
        steps._loaded_teacher.cache_clear()
        with pytest.raises(StoreError, match="are of another model than tiny"):
            scoring("store", **options)
    assert sorted((tmp_path / "store").rglob("*.arrow")) == kept


def test_the_remover_passes_texts_without_noisy_lines(tmp_path, tokenizers):
    write_line_losses(tmp_path / "scores", tokenizers["byte-level"], NOISY)
    documents = [Document(text, str(number)) for number, text in enumerate(NOISY)]
    step = steps.NoiseRemover(tmp_path / "scores", missing="drop")
    passed = list(step.run(iter([*documents, Document("New.", "new")])))
    assert [document.text for document in passed] == [
        without_noise(NOISY[number]) for number in (*range(10), 11)
    ]
    assert passed[0].metadata["omitted_share"] > 0.1
    assert passed[0].metadata["teacher_nats_per_byte"] > 1
    with pytest.raises(StoreError, match="no scores of document new: score it, or give missing="):
        list(steps.NoiseRemover(tmp_path / "scores").run(iter([Document("New.", "new")])))
    with pytest.raises(ConfigError, match="window_max_loss"):
        steps.NoiseRemover(tmp_path / "scores", window_max_loss=float("nan"))
    with pytest.warns(UserWarning, match="0.5 is below 1 nat a byte, so it drops short documents"):
        steps.NoiseRemover(tmp_path / "scores", window_max_loss=0.5, unit="document")
