"""What a limit of lines drops of known noise, and of the rest."""

import json
from unittest.mock import Mock

import pytest

from noisy_texts import NOISY, write_line_losses
from research.noise_by_limit import main
from vocagno.teacher.score_store import REFUSED_BY_TEACHER

TEXTS = [text for text in NOISY if text]


def junk_of(text):
    """The ranges of bytes of the lines that begin with `#`."""
    ranges, at = [], 0
    for line in text.encode().splitlines(keepends=True):
        ranges += [[at, at + len(line)]] * (line[:1] == b"#")
        at += len(line)
    return ranges


def write_texts(path, noise_of):
    lines = [json.dumps({"text": text, "noise": noise_of(text)}) for text in TEXTS]
    path.write_text("\n".join(lines) + "\n")
    return path


def rows(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["noise_by_limit", *map(str, arguments)])
    main()
    return capsys.readouterr().out.splitlines()[2:]


@pytest.fixture
def store(tmp_path, tokenizers):
    write_line_losses(tmp_path / "scores", tokenizers["byte-level"], TEXTS)
    return tmp_path / "scores"


def test_junk_is_dropped_below_its_loss(tmp_path, store, monkeypatch, capsys):
    """Lines of junk lose 6 nats a byte, smoothed a little below that, and all others half a nat."""
    text = write_texts(tmp_path / "t.jsonl", junk_of)
    shown = rows(monkeypatch, capsys, text, store, "--limits", "0.1", "2", "6.5")
    assert shown[1:] == ["| 2 | 100.00% | 0.00% |", "| 6.5 | 0.00% | 0.00% |"]
    assert shown[0].startswith("| 0.1 | 100.00% | 100.00%")


def test_shares_are_of_bytes(tmp_path, store, monkeypatch, capsys):
    """Noise that lies half in a dropped line, half in a line that is kept."""

    def around_junk(text):
        start = text.encode().find(b"\n#") + 1
        return [[start - 4, start + 4]] if start and text[0] != "#" else []

    text = write_texts(tmp_path / "t.jsonl", around_junk)
    junk = sum(stop - start for text in TEXTS for start, stop in junk_of(text))
    marked = sum(len(around_junk(text)) for text in TEXTS)
    size = sum(len(text.encode()) for text in TEXTS)
    other = (junk - 4 * marked) / (size - 8 * marked)
    shown = rows(monkeypatch, capsys, text, store, "--limits", "2")
    assert shown == [f"| 2 | 50.00% | {other:.2%} |"]


def test_clean_text_shows_what_the_rule_costs(tmp_path, store, monkeypatch, capsys):
    text = write_texts(tmp_path / "t.jsonl", lambda text: [])
    assert rows(monkeypatch, capsys, text, store, "--limits", "6.5") == ["| 6.5 | - | 0.00% |"]


def test_a_text_that_the_teacher_could_not_read_is_named(tmp_path, store, monkeypatch, capsys):
    """All of its bytes would count as text that the rule keeps."""
    refused = Mock(find=lambda texts: [REFUSED_BY_TEACHER for _ in texts])
    monkeypatch.setattr("research.scores.ScoresOfTexts", lambda store: refused)
    text = write_texts(tmp_path / "t.jsonl", junk_of)
    with pytest.raises(SystemExit, match=r"has no scores of .*cannot be placed"):
        rows(monkeypatch, capsys, text, store)


def test_noise_beyond_the_end_is_refused(tmp_path, store, monkeypatch, capsys):
    text = write_texts(tmp_path / "t.jsonl", lambda text: [[0, len(text.encode()) + 1]])
    with pytest.raises(SystemExit, match="ends behind its"):
        rows(monkeypatch, capsys, text, store)
