"""What a run shows: trackers, pages of what the teacher chose, the progress line, MFU."""

import re

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS, without_unknown_token
from runs import final_weights, train_here, write_config
from vocagno.data.corpus import scan
from vocagno.tokens.student_tokenizer import student_tokenizer
from vocagno.training.loop import progress_note
from vocagno.training.report import REPORT
from vocagno.training.sample_pages import DOCUMENTS, choose_samples

STEPS = 6


@pytest.fixture
def config(tmp_path, tokenizer_files, teacher_model):
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS, " ".join(TEXTS)])

    def build(**sections):
        return write_config(tmp_path, corpus, tokenizer_files, teacher_model, **sections)

    return build


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stored", "live"])
def test_pages_show_what_the_teacher_chose(tmp_path, config, mode):
    path = config(
        train={"sample_every": 3, "checkpoint_every": 6},
        teacher={"mode": mode},
        data={"seq_len": 64},
    )
    plain = config(
        train={"checkpoint_every": 6},
        teacher={"mode": mode},
        data={"seq_len": 64},
        output=str(tmp_path / "plain"),
    )
    assert train_here(path) == train_here(plain) == 0
    pages = sorted(p.name for p in (tmp_path / "run" / "samples").iterdir())
    assert pages == ["step_3.html", "step_6.html"]
    page = (tmp_path / "run" / "samples" / "step_6.html").read_text(encoding="utf-8")
    assert "What the teacher chose at step 6" in page
    assert page.count('class="tok student on') > 20
    assert "Document 24" in page  # the one that is long enough
    assert "What the teacher chose" in (tmp_path / "run" / REPORT).read_text()
    drawn, undrawn = (final_weights(tmp_path / name) for name in ("run", "plain"))
    assert all(torch.equal(drawn[name], undrawn[name]) for name in drawn)


def test_pages_show_the_rule_of_the_run(tmp_path, config):
    """A threshold for groups, with losses that a live teacher finds."""
    rule = {"unit": "group", "top_fraction": None, "max_threshold": -0.5}
    path = config(
        train={"sample_every": 2, "steps": 2},
        teacher={"mode": "live"},
        data={"seq_len": 64},
        guidance=rule,
    )
    assert train_here(path) == 0
    page = (tmp_path / "run" / "samples" / "step_2.html").read_text(encoding="utf-8")
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
    found = choose_samples(corpus, student_tokenizer(str(tmp_path / "t.json"), "</s>"), 32)
    assert [sample.text for sample in found] == texts[DOCUMENTS : 2 * DOCUMENTS]
    assert [sample.row.documents.tolist() for sample in found] == [[3], [4], [5]]
