"""The commands `vocagno score` and `vocagno prepare`, as a user types them."""

import json
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


def test_score_then_prepare(corpus, tmp_path, teacher_model, tokenizer_files, capsys):
    cache = ["--cache", str(tmp_path / "cache")]
    assert (
        main(["score", str(corpus), "--teacher.model", str(teacher_model), *cache, "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["documents"] == len(TEXTS)
    student = str(tokenizer_files / "student.json")
    prepare = ["prepare", str(corpus), "--tokenizer", student, "--eos", "</s>", "--seq_len", "32"]
    assert main([*prepare, *cache, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["documents"] == len(TEXTS)
    assert rows["rows"] == -(-rows["tokens"] // 32)
    assert main(prepare + cache) == 0  # the same for people
    assert f"rows               {rows['rows']}" in capsys.readouterr().out


def test_scores_go_where_they_are_told(corpus, tmp_path, teacher_model, capsys):
    out = tmp_path / "store"
    options = ["--teacher.model", str(teacher_model), "--cache", str(tmp_path / "cache")]
    assert main(["score", str(corpus), "--out", str(out), *options]) == 0
    assert (out / "manifest.json").is_file()
    for more, words in (
        (["--candidates", "4"], "of another candidates (None, now 4); name another folder"),
        (["--teacher.tensor_parallel", "true"], "teacher.tensor_parallel: needs a launcher"),
    ):
        assert main(["score", str(corpus), "--out", str(out), *options, *more]) == 2
        assert words in capsys.readouterr().err
    write_corpus(corpus, TEXTS[1:])
    assert main(["score", str(corpus), "--out", str(out), *options]) == 2
    assert "another text" in capsys.readouterr().err


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


@pytest.mark.parametrize("more", [[], ["--candidates", "3"]], ids=["losses", "candidates"])
def test_parts_of_a_store(tmp_path, corpus, teacher_model, capsys, more):
    """Two parts, and one command that finishes them, give the bytes of one process."""
    cache = ["--cache", str(tmp_path / "cache"), "--json", "--shard_bytes", "40", *more]
    score = ["score", str(corpus), "--teacher.model", str(teacher_model), *cache]
    assert main([*score, "--out", str(tmp_path / "whole")]) == 0
    parts = ["--out", str(tmp_path / "parts")]
    capsys.readouterr()
    assert main([*score, *parts, "--shards", "2/2"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["part"], second["shards_made"]) == ("2/2", second["shards"])
    finish = ["scores", "finish", parts[1], "--json"]
    assert main(finish) == 2
    assert "run their parts again" in capsys.readouterr().err
    assert main([*score, *parts, "--status"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["shards_done"] == second["shards"] < status["shards"]
    assert status["seconds_left"] >= 0
    assert not status["finished"]
    other = write_corpus(tmp_path / "other.jsonl", TEXTS[::-1])
    assert main([score[0], str(other), *score[2:], *parts, "--status"]) == 2
    assert f"contains another store than scores of {other}" in capsys.readouterr().err
    assert main([*score, *parts, "--shards", "1/2"]) == 0
    capsys.readouterr()
    assert main(finish) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == len(TEXTS)
    for folder in ("whole", "parts"):
        shutil.rmtree(tmp_path / folder / ".locks")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
