"""`vocagno limit`, as a user types it."""

import json
import re

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import metrics, train_here, write_config

pytest.importorskip("torch")

from vocagno.cli.app import main

JUNK = ["QX7 zj-0w 9_v%k\nÞæ ~~ qq3\n" * 3] * 5


@pytest.fixture
def command(corpus, tmp_path, teacher_model, tokenizer_files):
    student = str(tokenizer_files / "student.json")
    options = ["--tokenizer", student, "--eos", "</s>", "--seq_len", "32"]
    teacher = ["--teacher.model", str(teacher_model), "--cache", str(tmp_path / "cache")]
    return ["limit", str(corpus), *options, *teacher]


def test_a_run_with_the_limit_keeps_that_share(
    corpus, tmp_path, teacher_model, tokenizer_files, command, capsys
):
    assert main([*command, "--keep", "0.9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    limit = found["window_max_loss"]
    by_limit = {row["window_max_loss"]: row["kept"][str(corpus)] for row in found["limits"]}
    assert by_limit[limit] >= 0.9
    assert sorted(by_limit.values()) == list(by_limit.values())
    prepare = ["prepare", str(corpus), *command[2:8], *command[-2:], "--json"]
    assert main(prepare) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    path = write_config(  # one step on all rows
        tmp_path,
        corpus,
        tokenizer_files,
        teacher_model,
        guidance={"top_fraction": None, "window": "line", "unit": "group"}
        | {"window_max_loss": limit},
        train={"steps": 1, "global_batch": rows, "micro_batch": rows, "log_every": 1},
    )
    assert train_here(path) == 0
    (entry,) = metrics(tmp_path / "run")[0]
    dropped = entry["tokens"] * (1 - entry["kept_fraction"])
    assert dropped == pytest.approx(found["tokens"][str(corpus)] * (1 - by_limit[limit]))
    assert dropped > 0.5


def test_it_shows_what_the_limits_keep_of_a_corpus(tmp_path, command, capsys):
    junk = write_corpus(tmp_path / "junk.jsonl", [*TEXTS, *JUNK])
    assert main([*command, "--corpus", str(junk)]) == 0
    table, last = capsys.readouterr().out.strip().split("\n\n")
    heading, *lines = table.splitlines()
    assert "kept of" in heading
    assert len(lines) == 5
    shares = [[float(one) for one in re.findall(r"([\d.]+)%", line)] for line in lines]
    assert all(len(pair) == 2 for pair in shares)
    (limit, share) = re.match(
        r"guidance.window_max_loss: ([\d.]+)  # keeps ([\d.]+)% of", last
    ).groups()
    assert float(share) >= 99
    assert [float(limit), float(share)] in [
        [float(line.split()[0]), pair[0]] for line, pair in zip(lines, shares, strict=True)
    ]


def test_stores_that_were_made_before_give_the_same(tmp_path, command, capsys):
    junk = write_corpus(tmp_path / "junk.jsonl", [*TEXTS, *JUNK])
    of_cache = [*command, "--corpus", str(junk), "--json"]
    assert main(of_cache) == 0
    found = json.loads(capsys.readouterr().out)
    teacher = command[command.index("--teacher.model") :]
    stores = []
    for name in (command[1], str(junk)):
        stores.append(str(tmp_path / f"scores-{len(stores)}"))
        assert main(["score", name, *teacher, "--out", stores[-1]]) == 0
    capsys.readouterr()
    start = command[: command.index("--teacher.model")]
    given = ["--scores", stores[0], "--corpus_scores", stores[1], "--cache", str(tmp_path / "new")]
    assert main([*start, "--corpus", str(junk), *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    other = ["--scores", stores[0], "--cache", str(tmp_path / "new")]
    assert main([start[0], str(junk), *start[2:], *other]) == 2
    assert f"has no scores of {len(JUNK)} documents of {junk}" in capsys.readouterr().err
    assert main([*start, *given, "--json"]) == 2
    assert "--corpus_scores: are of --corpus" in capsys.readouterr().err
    same = ["--scores", stores[0], "--corpus", command[1], "--cache", str(tmp_path / "new")]
    assert main([*start, *same]) == 2
    assert "--corpus: is the clean text itself" in capsys.readouterr().err


def test_bad_shares_and_texts_are_refused_in_one_line(tmp_path, command, capsys, monkeypatch):
    assert main([*command, "--keep", "0.001"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch("error: the share to keep must be above 0.*; got 0.001", last)
    monkeypatch.setattr("vocagno.cli.guidance._SHARES", (0.001, 0.95))
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["limits"]) == 2  # of 0.95 and 0.99
    empty = write_corpus(tmp_path / "empty.jsonl", [""])
    assert main([command[0], str(empty), *command[2:]]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {empty}: the corpus is empty")
