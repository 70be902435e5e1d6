"""`python -m research.paper overlap`: the bars, the numbers, the errors."""

import csv
import json

import pytest

from research.paper.teachers import TeacherOverlap, write_overlaps
from shared_data import shared
from vocagno import TokenSpans, vocabulary_overlap


@pytest.fixture(scope="module")
def found(tokenizers):
    student, *teachers = (TokenSpans(tokenizers[name]) for name in ("llama", "byte-level", "llama"))
    names = zip(("other", "same$"), teachers, strict=True)
    return [TeacherOverlap(name, vocabulary_overlap(student, teacher)) for name, teacher in names]


@pytest.fixture
def run(tokenizer_files, tmp_path, monkeypatch):
    """The command, with the student's tokenizer as second teacher."""
    pytest.importorskip("jsonargparse")
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.__main__ import main

    monkeypatch.chdir(tmp_path)
    student, teacher = (str(tokenizer_files / f"{side}.json") for side in ("student", "teacher"))
    teachers = ["--teachers", teacher, student]
    return lambda *rest: main(["overlap", student, *teachers, *map(str, rest)])


def test_the_numbers_as_csv(found, tmp_path):
    write_overlaps(tmp_path / "o.csv", "llama", found)
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["teacher"] for row in rows] == ["other", "same$"]
    for row, one in zip(rows, found, strict=True):
        assert row["student"] == "llama"
        assert float(row["string_share"]) == one.overlap.string_share


def test_the_bars_hold_the_shares(found):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from research.paper.figures import draw_vocabulary_overlap

    (panel,) = draw_vocabulary_overlap("llama", found).axes
    widths = [[bar.get_width() for bar in bars] for bars in panel.containers]
    shares = ("string_share", "teacher_byte_share", "student_byte_share")
    assert widths == [[getattr(one.overlap, share) for one in found] for share in shares]
    assert widths[0][1] == 1
    assert [label.get_text() for label in panel.get_yticklabels()] == ["other", r"same\$"]


@pytest.mark.parametrize(("out", "magic"), [("new/a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_figure_and_csv_are_written(run, tmp_path, capsys, out, magic):
    assert run("--out", out, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (tmp_path / result["figure"]).read_bytes().startswith(magic)
    assert (tmp_path / result["data"]).read_text().count("\n") == 3
    assert [one["teacher"] for one in result["teachers"]] == ["teacher", "student"]
    assert result["teachers"][1]["string_share"] == 1
    before = (tmp_path / out).read_bytes()
    assert run("--out", out) == 0
    assert (tmp_path / out).read_bytes() == before


def test_the_table(run, tmp_path, capsys):
    assert run() == 0
    captured = capsys.readouterr()
    header, _, same = captured.out.splitlines()
    assert header.split("  ")[0] == "teacher"
    size = same.split()[1]
    assert same.split() == ["student", size, size, "100.00%", "100.0%", "100.0%"]
    assert captured.err.split() == ["overlap.svg", "overlap.csv"]
    assert (tmp_path / "overlap.svg").is_file()


def test_errors_of_the_command(run, tmp_path, capsys):
    assert run("--out", "a.pdf") == 2
    words = "error: --out: expected a file ending in .png or .svg, got a.pdf\n"
    assert capsys.readouterr().err == words
    assert not list(tmp_path.glob("*.svg"))


def test_the_papers_figure():
    """Fig. 1: TinyLlama shares 6.32 % of Qwen2.5's entries, and most of Mistral's."""
    student, qwen, mistral = (
        TokenSpans(shared("tokenizers", f"{name}.json.gz"))
        for name in ("tinyllama", "qwen2.5", "mistral-v0.1")
    )
    assert round(vocabulary_overlap(student, qwen).string_share, 4) == 0.0632
    assert round(vocabulary_overlap(student, mistral).string_share, 4) == 0.7558
