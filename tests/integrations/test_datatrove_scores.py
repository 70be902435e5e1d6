"""Scoring as steps of datatrove pipelines."""

import json
import os
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("datatrove")

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.readers import JsonlReader

from families import TEXTS
from folders import contents
from score_server import serving
from slurm import write_slurm
from vocagno.cli.app import main
from vocagno.data.rows import RowStore
from vocagno.data.store.building import finish_store
from vocagno.data.store.format import Manifest
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError
from vocagno.integrations import datatrove as steps
from vocagno.integrations.datatrove import FinishRows, FinishScores, RowPacker, TeacherScorer
from vocagno.teacher.corpus_scores import Teacher
from vocagno.teacher.scores import KIND, UNIT, VERSION, MatchedScores, ScoreShard, ScoreStore
from warm_python import executable


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with four files, the last without documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(3):
        texts = [f"{number} {i}: {TEXTS[(number + i) % len(TEXTS)]}" for i in range(5)]
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "3.jsonl").touch()
    return folder


@pytest.fixture
def pipeline(tmp_path, corpus, teacher_model):
    """Runs all tasks, and what finishes the store."""

    def run(store, *, tasks=4, workers=1, finish=True, folder=corpus, shard_bytes=100, **options):
        scorer = TeacherScorer(
            tmp_path / store,
            {"model": str(teacher_model), "context": 32, **options},
            shard_bytes=shard_bytes,
            cache=tmp_path / "cache",
        )
        scoring = LocalPipelineExecutor(
            [JsonlReader(str(folder)), scorer],
            tasks=tasks,
            workers=workers,
            logging_dir=str(tmp_path / "logs" / store),
            skip_completed=False,
        )
        if not finish:
            return scoring.run()
        last = LocalPipelineExecutor(
            [FinishScores(tmp_path / store)],
            logging_dir=str(tmp_path / "logs" / f"{store}-finish"),
            depends=scoring,
        )
        return last.run()

    steps._loaded_teacher.cache_clear()
    yield run
    steps._loaded_teacher.cache_clear()


def by_text(store):
    """The losses of each document, by the hash of its text."""
    found = {}
    for shard in store.shards():
        for row, text in enumerate(shard.text_hashes.tolist()):
            found[bytes(text)] = shard.nll[row]
    return found


def test_scores_are_those_of_the_command(tmp_path, pipeline, corpus, teacher_model):
    pipeline("ours")
    command = ["score", str(corpus), "--teacher.model", str(teacher_model), "--teacher.context"]
    assert main([*command, "32", "--cache", str(tmp_path / "c"), "--out", str(tmp_path / "x")]) == 0
    ours, theirs = ScoreStore(tmp_path / "ours"), ScoreStore(tmp_path / "x")
    assert ours.manifest.made_from == theirs.manifest.made_from
    assert len(ours.manifest.shards) > 4
    assert list(ours.damages()) == []
    found, expected = by_text(ours), by_text(theirs)
    assert found.keys() == expected.keys()
    for text, nll in expected.items():  # batches differ
        np.testing.assert_allclose(found[text], nll, atol=0.01)


def test_rows_and_scores_in_one_pipeline(
    tmp_path, pipeline, corpus, teacher_model, tokenizer_files
):
    """A scorer behind a packer makes what it makes alone."""
    packer = RowPacker(tmp_path / "rows", tokenizer_files / "student.json", seq_len=8, eos="</s>")
    teacher = {"model": str(teacher_model), "context": 32}
    given = {"shard_bytes": 100, "cache": tmp_path / "cache"}
    both = LocalPipelineExecutor(
        [JsonlReader(str(corpus)), packer, TeacherScorer(tmp_path / "both", teacher, **given)],
        tasks=4,
        workers=1,
        logging_dir=str(tmp_path / "logs" / "both"),
    )
    last = LocalPipelineExecutor(
        [FinishRows(tmp_path / "rows"), FinishScores(tmp_path / "both")],
        logging_dir=str(tmp_path / "logs" / "both-finish"),
        depends=both,
    )
    last.run()
    pipeline("alone")
    assert contents(tmp_path / "both") == contents(tmp_path / "alone")
    matched = MatchedScores(ScoreStore(tmp_path / "both"), RowStore(tmp_path / "rows"))
    assert matched.missing_documents == 0


def test_a_task_resumes(tmp_path, pipeline, monkeypatch):
    """What was finished is kept, and the store ends in the same bytes."""
    pipeline("whole")
    score, count = Teacher.score, 0

    def dies(self, texts):
        nonlocal count
        count += 1
        if count > 3:
            raise MemoryError("as asked")
        return score(self, texts)

    monkeypatch.setattr(Teacher, "score", dies)
    with pytest.raises(MemoryError):
        pipeline("killed", finish=False)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*.arrow")}
    assert len(kept) == 3
    with pytest.raises(StoreError, match=r"3 of 4 tasks are not done \(numbers 1, 2, 3\)"):
        list(FinishScores(tmp_path / "killed").run())
    count = -100
    pipeline("killed")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    pipeline("killed")  # nothing is left to do
    min(kept).unlink()
    with pytest.raises(StoreError, match=r"finished store \(task-00000/shard-00000.arrow\) are"):
        list(FinishScores(tmp_path / "killed").run())


def test_notes_and_shards_give_the_same_manifest(tmp_path, pipeline):
    pipeline("store")
    folder = tmp_path / "store"
    noted = (folder / "manifest.json").read_bytes()
    names = [entry.name for entry in Manifest.load(folder, KIND, VERSION).shards]
    assert names[0] == "task-00000/shard-00000"
    finish_store(folder, names, ScoreShard, UNIT)
    assert (folder / "manifest.json").read_bytes() == noted


def test_other_documents_and_other_teachers_are_refused(tmp_path, pipeline, corpus):
    pipeline("store", finish=False)
    with pytest.raises(StoreError, match=r"scores of another context \(32, now 64\) are being"):
        pipeline("store", context=64)
    with pytest.raises(StoreError, match=r"another text \(4 tasks, .* now 2 tasks"):
        pipeline("store", tasks=2)
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in corpus.iterdir():
        (changed / path.name).write_text(path.read_text().replace("0 1:", "0 one:"))
    with pytest.raises(StoreError, match="the input of this task has changed"):
        pipeline("store", folder=changed)


def test_what_is_not_asked_for_well(tmp_path):
    for teacher, words in (
        ({"modle": "x"}, "teacher: no such options: modle"),
        ({}, "teacher: needs a model"),
        ({"model": "x", "tensor_parallel": True}, "needs a model, and no tensor_parallel"),
    ):
        with pytest.raises(ConfigError, match=words):
            TeacherScorer(tmp_path, teacher)
    with pytest.raises(ConfigError, match="shard_bytes must be positive, got 0"):
        TeacherScorer(tmp_path, {"model": "x"}, shard_bytes=0)
    with pytest.raises(StoreError, match="no task that makes this store is done"):
        list(FinishScores(tmp_path).run())


@pytest.mark.slow
def test_tasks_in_processes(tmp_path, pipeline):
    pipeline("here")
    pipeline("processes", workers=2)
    assert contents(tmp_path / "processes") == contents(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for bash")
def test_slurm(tmp_path, pipeline, corpus, teacher_model, monkeypatch):
    """datatrove's own launcher and pickled pipelines, under a stand-in for `sbatch`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    write_slurm(programs)
    launch = programs / "launch_pickled_pipeline"
    launch.write_text(
        f'#!/bin/bash\nexec {executable()} -m datatrove.tools.launch_pickled_pipeline "$@"\n'
    )
    launch.chmod(0o755)
    (programs / "merge_stats").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    given = {"time": "1:00:00", "partition": "gpus", "with_srun": False}
    teacher = {"model": str(teacher_model), "context": 32}
    steps = TeacherScorer(tmp_path / "slurm", teacher, shard_bytes=100, cache=tmp_path / "cache")
    scoring = SlurmPipelineExecutor(
        [JsonlReader(str(corpus)), steps],
        tasks=4,
        logging_dir=str(tmp_path / "logs" / "a"),
        **given,
    )
    finish = SlurmPipelineExecutor(
        [FinishScores(tmp_path / "slurm")],
        tasks=1,
        logging_dir=str(tmp_path / "logs" / "b"),
        depends=scoring,
        **given,
    )
    finish.run()
    pipeline("here")
    assert contents(tmp_path / "slurm") == contents(tmp_path / "here")


def test_a_server_that_has_another_model(tmp_path, pipeline, tokenizer_files):
    """A task that resumes writes no shard of another model under the same name."""
    pytest.importorskip("requests")
    with serving() as (url, state):
        given = {"server": url, "tokenizer": str(tokenizer_files / "teacher.json")}
        given |= {"model": None, "context": 512, "finish": False}
        pipeline("store", **given)
        *kept, lost = sorted((tmp_path / "store").rglob("*.arrow"))
        lost.unlink()
        state.change = lambda found, ids: [one and one - 0.5 for one in found]
        steps._loaded_teacher.cache_clear()
        with pytest.raises(StoreError, match="are of another model than tiny"):
            pipeline("store", **given)
    assert sorted((tmp_path / "store").rglob("*.arrow")) == kept
