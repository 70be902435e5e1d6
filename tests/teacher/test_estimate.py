"""What scoring will take, compared with what it took."""

import json

import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from vocagno.cli.app import main
from vocagno.data import sample


@pytest.fixture
def commands(tmp_path, teacher_model):
    """`vocagno score` of a corpus of 60 shards, with the options to come."""
    texts = [f"{i}: {TEXTS[i % len(TEXTS)]} {TEXTS[(i * i) % len(TEXTS)]}" for i in range(240)]
    corpus = write_corpus(tmp_path / "c.jsonl", texts)
    given = ["--cache", str(tmp_path / "cache"), "--shard_bytes", "300", "--json"]
    return ["score", str(corpus), "--teacher.model", str(teacher_model), *given]


def test_an_estimate_is_near_what_comes_out(tmp_path, commands, capsys):
    out = ["--out", str(tmp_path / "store")]
    assert main([*commands, *out, "--dry_run"]) == 0
    printed = capsys.readouterr()
    guess = json.loads(printed.out)
    assert "assumed: the speed grows in proportion to the devices" in printed.err
    assert not (tmp_path / "store").exists()
    assert main([*commands, *out]) == 0
    made = json.loads(capsys.readouterr().out)
    assert guess["documents"] == made["documents"] == 240
    assert 0 < guess["tokens_standard_error"] < made["tokens"] / 10
    assert abs(guess["tokens"] - made["tokens"]) < 4 * guess["tokens_standard_error"]
    assert guess["tokens_per_second"] > 100
    assert guess["hours_on_1"] == pytest.approx(
        guess["tokens"] / guess["tokens_per_second"] / 3600, rel=0.01
    )
    assert guess["hours_on_8"] == pytest.approx(guess["hours_on_1"] / 8, rel=0.01)
    assert guess["store_bytes"] > 2 * guess["tokens"]


def test_a_sample_of_everything_has_no_error(tmp_path, commands, capsys, monkeypatch):
    monkeypatch.setattr(sample, "SHARDS", 1000)
    assert main([*commands, "--dry_run"]) == 0
    guess = json.loads(capsys.readouterr().out)
    assert guess["tokens_standard_error"] == 0
    assert main([*commands, "--out", str(tmp_path / "store")]) == 0
    assert guess["tokens"] == json.loads(capsys.readouterr().out)["tokens"]


def test_what_the_processes_of_a_launch_share_is_computed(commands, capsys):
    shared = [*commands, "--dry_run", "--teacher.tensor_parallel", "true"]
    assert main(shared) == 2
    assert capsys.readouterr().err.startswith(
        "error: --dry_run: measures one process, and teacher.tensor_parallel needs several; compute"
    )
    assert main([*shared, "--gpu", "H100"]) == 0
    assert json.loads(capsys.readouterr().out)["hours_on_1"] > 0


def test_documents_of_a_token_without_a_loss_take_no_time(tmp_path, teacher_model, capsys):
    corpus = write_corpus(tmp_path / "c.jsonl", ["a", "b"])
    given = ["--teacher.model", str(teacher_model), "--cache", str(tmp_path / "cache"), "--json"]
    assert main(["score", str(corpus), *given, "--dry_run"]) == 0
    guess = json.loads(capsys.readouterr().out)
    assert (guess["tokens"], guess["tokens_per_second"], guess["hours_on_1"]) == (2, 0, 0)
