"""`vocagno filter`, as a user types it."""

import json

import pytest

pytest.importorskip("pyarrow")

from corpora import write_corpus
from noisy_texts import NOISY, without_noise, write_line_losses


@pytest.fixture
def words(tmp_path, tokenizers):
    """The words of a command that filters a corpus into `out`."""
    write_line_losses(tmp_path / "scores", tokenizers["byte-level"], NOISY)
    path = write_corpus(tmp_path / "c.jsonl", NOISY)
    return "filter", path, "--out", tmp_path / "out", "--cache", tmp_path / "cache"


def test_the_report_and_the_files_are_written(tmp_path, words, cli):
    scores = "--scores", tmp_path / "scores"
    printed = cli(*words, *scores).out
    assert printed == (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Examples, drawn by a hash of their text</h2>" in page
    assert printed.startswith("# Noise to a teacher in c.jsonl\n\nA line is omitted if more than")
    assert "6.00  c.jsonl, line 11" in printed
    assert "2 nats a byte on the rest of the line, to which 8 bytes of 1 nat each are" in printed
    fields = cli.json(*words, *scores)
    assert fields["counts"]["shortened_documents"] == 9
    lines = (tmp_path / "out" / "c.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts == [without_noise(NOISY[n]) for n in (*range(10), 11)]
    marked = *words[:3], tmp_path / "marked", *words[4:], *scores, "--keep", "marks"
    assert "A line is marked if" in cli(*marked).out


def test_errors_name_the_option_that_helps(tmp_path, words, cli):
    message = cli.error(*words)
    assert "--scores: needed, or --teacher.model; `vocagno score " in message
    scores = "--scores", tmp_path / "scores"
    assert "window_max_loss" in cli.error(*words, *scores, "--window_max_loss", "nan")
    # An option of the teacher is compared with the store, without --teacher.model, too.
    assert "another number of candidates" in cli.error(*words, *scores, "--teacher.candidates", "4")
    assert "add --yes" in cli.error(*words, *scores, "--window_max_loss", "0.1")
    written = cli(*words, *scores, "--window_max_loss", "0.1", "--yes")
    assert "all  " not in written.out
    assert "warning: window_max_loss: 0.1 is below 1 nat a byte" in written.err
    words = *words[:3], tmp_path / "documents", *words[4:]
    low = "--window_max_loss", "0.1", "--unit", "document"
    of_documents = cli(*words, *scores, *low, "--yes")
    assert "so it drops short documents" in of_documents.err
    other = write_corpus(tmp_path / "other.jsonl", ["Another text."])
    command = "filter", other, "--out", tmp_path / "o", *words[4:], *scores
    assert "has no scores of 1 of the 1 documents" in cli.error(*command)
    assert "other.jsonl" in cli(*command, "--missing", "keep").out


def test_a_teacher_scores_what_is_not_scored(tmp_path, words, cli, teacher_model):
    """Its store is that of `vocagno score` in the cache."""
    pytest.importorskip("torch")
    teacher = "--teacher.model", teacher_model
    fields = cli.json(*words, *teacher, "--yes", "--window_max_loss", "9")
    assert fields["counts"]["omitted_bytes"] == 0
    (store,) = (tmp_path / "cache" / "scores").iterdir()
    again = *words[:3], tmp_path / "again", *words[4:], "--scores", store, "--window_max_loss", "9"
    assert cli.json(*again)["counts"] == fields["counts"]
