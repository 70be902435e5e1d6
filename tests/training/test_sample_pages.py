"""What a run shows: trackers, pages of what the teacher chose, the progress line, MFU."""

import re

import pytest

pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from runs import same_weights, train_here
from vocagno.data.corpus import scan
from vocagno.tokens.student_tokenizer import student_tokenizer
from vocagno.training.loop import progress_note
from vocagno.training.sample_pages import DOCUMENTS, choose_samples


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "c.jsonl", [*TEXTS, " ".join(TEXTS)])


@pytest.mark.slow
def test_pages_show_what_the_teacher_chose_and_change_nothing(tmp_path, config):
    """By a threshold for groups, with losses that a live teacher finds."""
    options = {
        "data": {"seq_len": 64},
        "teacher": {"mode": "live"},
        "guidance": {"unit": "group", "top_fraction": None, "max_threshold": -0.5},
    }
    path = config(train={"sample_every": 3, "checkpoint_every": 6}, **options)
    plain = config(train={"checkpoint_every": 6}, output=str(tmp_path / "plain"), **options)
    assert train_here(path) == train_here(plain) == 0
    assert same_weights(tmp_path / "run", tmp_path / "plain")
    pages = sorted(p.name for p in (tmp_path / "run" / "samples").iterdir())
    assert pages == ["step_3.html", "step_6.html"]
    page = (tmp_path / "run" / "samples" / "step_6.html").read_text(encoding="utf-8")
    assert "What the teacher chose at step 6" in page
    assert "Document 24" in page  # the one that is long enough
    tokens = re.findall(
        r"student loss [\d.]+, of its group ([\d.]+)\nteacher loss ([\d.]+)\n"
        r"excess ([+-][\d.]+) nats\n(.*?)\"",
        page,
    )
    assert len(tokens) > 20
    for *losses, verdict in tokens:
        mean, teacher_loss, excess = map(float, losses)
        assert excess == pytest.approx(mean - teacher_loss, abs=2e-3)
        assert verdict == ("kept (reaches)" if excess >= -0.5 else "dropped (below)")
    assert {verdict for *_, verdict in tokens} == {"kept (reaches)", "dropped (below)"}


def test_the_progress_line():
    entry = {"loss": 2.3456, "lr": 8e-5, "tokens_per_s": 12345.6, "kept_fraction": 0.412}
    assert progress_note(entry) == "loss 2.346, lr 8.0e-05, 12,346 tokens/s, kept 41%"
    assert progress_note(entry | {"mfu": 0.431}).endswith("kept 41%, mfu 43%")


def test_documents_that_the_student_cannot_read_are_not_drawn(tmp_path):
    """The next ones are, so that a run with pages goes on."""
    without_unknown_token("☃").save(str(tmp_path / "t.json"))
    texts = [f"{TEXTS[0]} ☃"] * DOCUMENTS + TEXTS[1:6]
    corpus = scan(write_corpus(tmp_path / "c.jsonl", texts))
    samples = choose_samples(corpus, student_tokenizer(str(tmp_path / "t.json"), "</s>"), 32)
    assert [sample.text for sample in samples] == texts[DOCUMENTS : 2 * DOCUMENTS]
    assert [sample.row.documents.tolist() for sample in samples] == [[3], [4], [5]]
