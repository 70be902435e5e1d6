"""The commands `vocagno score` and `vocagno prepare`, as a user types them."""

import shutil
import subprocess
import sys

import pytest

from corpora import write_corpus
from families import TEXTS
from folders import contents
from runs import environment
from warm_python import executable

pytest.importorskip("torch")

from vocagno.cli.app import main
from vocagno.teacher.score_store import ScoreStore


def test_score_then_prepare(corpus, tmp_path, teacher_model, tokenizer_files, cli):
    cache = "--cache", tmp_path / "cache"
    scores = cli.json("score", corpus, "--teacher.model", teacher_model, *cache)
    assert scores["documents"] == len(TEXTS)
    student = tokenizer_files / "student.json"
    prepare = "prepare", corpus, "--tokenizer", student, "--eos", "</s>", "--seq_len", 32, *cache
    rows = cli.json(*prepare)
    assert rows["documents"] == len(TEXTS)
    assert rows["rows"] == -(-rows["tokens"] // 32)
    assert f"rows               {rows['rows']}" in cli(*prepare).out  # the same for people


def test_scores_go_where_they_are_told(corpus, tmp_path, teacher_model, cli):
    out = tmp_path / "store"
    options = "--teacher.model", teacher_model, "--cache", tmp_path / "cache"
    score = "score", corpus, "--out", out, *options
    cli(*score)
    assert (out / "manifest.json").is_file()
    for flags, words in (
        (["--candidates", "4"], "of another candidates (None, now 4); name another folder"),
        (["--teacher.tensor_parallel", "true"], "teacher.tensor_parallel: needs a launcher"),
    ):
        assert words in cli.error(*score, *flags)
    write_corpus(corpus, TEXTS[1:])
    assert "another text" in cli.error(*score)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files there")
def test_a_write_that_fails_leaves_nothing_behind(corpus, tmp_path, teacher_model):
    """A limit on the size of files stands for a full disk: the write itself fails, for real."""
    import resource

    out = tmp_path / "store"
    score = f"score {corpus} --out {out} --teacher.model {teacher_model} --cache {tmp_path}/cache"
    command = [executable(), "-m", "vocagno", *score.split()]
    # The shard takes some 8 kB; the corpus index before it takes less than the limit.
    failed = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)),
    )
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith("error: [Errno 27] File too large")
    left = [path.name for path in out.rglob("*") if path.is_file() and path.parent == out]
    assert left == []
    assert main(command[3:]) == 0
    assert (out / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", [[], ["--candidates", "3", "--sampled"]], ids=["losses", "candidates"]
)
def test_parts_of_a_store_finish_to_the_same_bytes(tmp_path, corpus, teacher_model, cli, flags):
    """Two parts, and one command that finishes them, give the bytes of one process."""
    options = "--cache", tmp_path / "cache", "--shard_bytes", 40, *flags
    score = "score", corpus, "--teacher.model", teacher_model, *options
    cli(*score, "--out", tmp_path / "whole")
    parts = "--out", tmp_path / "parts"
    second = cli.json(*score, *parts, "--shards", "2/2")
    assert (second["part"], second["shards_made"]) == ("2/2", second["shards"])
    finish = "scores", "finish", parts[1]
    assert "run their parts again" in cli.error(*finish)
    status = cli.json(*score, *parts, "--status")
    assert status["shards_done"] == second["shards"] < status["shards"]
    assert status["seconds_left"] >= 0
    assert not status["finished"]
    assert "not allowed with" in cli.error(*score, *parts, "--status", "--dry_run")
    other = write_corpus(tmp_path / "other.jsonl", TEXTS[::-1])
    message = cli.error(score[0], other, *score[2:], *parts, "--status")
    assert f"contains another store than scores of {other}" in message
    cli(*score, *parts, "--shards", "1/2")
    assert cli.json(*finish)["documents"] == len(TEXTS)
    for folder in ("whole", "parts"):
        shutil.rmtree(tmp_path / folder / ".locks")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    made_from = ScoreStore(tmp_path / "whole").manifest.made_from
    assert made_from.get("sampled", False) is ("--sampled" in flags)
