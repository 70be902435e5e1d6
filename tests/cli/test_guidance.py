"""`vocagno limit`, as a user types it."""

import re

import pytest

from corpora import write_corpus
from families import TEXTS
from runs import metrics, train_here

pytest.importorskip("torch")

JUNK = ["QX7 zj-0w 9_v%k\nÞæ ~~ qq3\n" * 3] * 5


@pytest.fixture
def command(corpus, tmp_path, teacher_model, tokenizer_files):
    student = tokenizer_files / "student.json"
    options = ["--tokenizer", student, "--eos", "</s>", "--seq_len", 32]
    teacher = ["--teacher.model", teacher_model, "--cache", tmp_path / "cache"]
    return ["limit", corpus, *options, *teacher]


@pytest.mark.slow
def test_a_run_with_the_limit_keeps_that_share(corpus, tmp_path, config, command, cli):
    output = cli.json(*command, "--keep", "0.9")
    limit = output["window_max_loss"]
    by_limit = {row["window_max_loss"]: row["kept"][str(corpus)] for row in output["limits"]}
    assert by_limit[limit] >= 0.9
    assert sorted(by_limit.values()) == list(by_limit.values())
    rows = cli.json("prepare", corpus, *command[2:8], *command[-2:])["rows"]
    rule = {"top_fraction": None, "window": "line", "unit": "group", "window_max_loss": limit}
    train = {"steps": 1, "global_batch": rows, "micro_batch": rows, "log_every": 1}  # on all rows
    assert train_here(config(guidance=rule, train=train)) == 0
    (entry,) = metrics(tmp_path / "run")[0]
    dropped = entry["tokens"] * (1 - entry["kept_fraction"])
    assert dropped == pytest.approx(output["tokens"][str(corpus)] * (1 - by_limit[limit]))
    assert dropped > 0.5


def test_limits_are_shown_with_what_they_keep_of_a_corpus(tmp_path, command, cli):
    junk = write_corpus(tmp_path / "junk.jsonl", [*TEXTS, *JUNK])
    table, last = cli(*command, "--corpus", junk).out.strip().split("\n\n")
    heading, *lines = table.splitlines()
    assert "kept of" in heading
    assert len(lines) == 5
    shares = [[float(percent) for percent in re.findall(r"([\d.]+)%", line)] for line in lines]
    assert all(len(pair) == 2 for pair in shares)
    words = r"guidance.window_max_loss: ([\d.]+)  # keeps ([\d.]+)% of"
    limit, share = map(float, re.match(words, last).groups())
    assert share >= 99
    limits = [float(line.split()[0]) for line in lines]
    assert (limit, share) in zip(limits, [pair[0] for pair in shares], strict=True)


@pytest.mark.slow
def test_stores_that_were_made_before_give_the_same(tmp_path, command, cli):
    junk = write_corpus(tmp_path / "junk.jsonl", [*TEXTS, *JUNK])
    output = cli.json(*command, "--corpus", junk)
    teacher = command[command.index("--teacher.model") :]
    stores = [tmp_path / "scores-0", tmp_path / "scores-1"]
    for text, store in zip((command[1], junk), stores, strict=True):
        cli("score", text, *teacher, "--out", store)
    start = command[: command.index("--teacher.model")]
    scores = "--scores", stores[0], "--cache", tmp_path / "new"
    options = *scores, "--corpus_scores", stores[1]
    assert cli.json(*start, "--corpus", junk, *options) == output
    message = cli.error(start[0], junk, *start[2:], *scores)
    assert f"has no scores of {len(JUNK)} documents of {junk}" in message
    assert "--corpus_scores: these are scores of --corpus" in cli.error(*start, *options)
    assert "--corpus: is the clean text itself" in cli.error(*start, *scores, "--corpus", start[1])


def test_bad_shares_and_texts_are_refused_in_one_line(tmp_path, command, cli, monkeypatch):
    last = cli.error(*command, "--keep", "0.001").splitlines()[-1]
    assert re.fullmatch("error: the share to keep must be above 0.*; got 0.001", last)
    monkeypatch.setattr("vocagno.cli.guidance._SHARES", (0.001, 0.95))
    assert len(cli.json(*command)["limits"]) == 2  # of 0.95 and 0.99
    empty = write_corpus(tmp_path / "empty.jsonl", [""])
    last = cli.error(command[0], empty, *command[2:]).splitlines()[-1]
    assert last.startswith(f"error: {empty}: the corpus is empty")
