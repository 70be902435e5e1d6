"""`python -m vocagno.paper overlap`: the bars, the scores beside them, the numbers, the errors."""

import csv
import json

import pytest

from shared_data import shared
from vocagno import TokenSpans, vocabulary_overlap
from vocagno.errors import InputError
from vocagno.paper.vocabulary_overlaps import TeacherOverlap, read_scores, write_csv


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
    from vocagno.paper.__main__ import main

    monkeypatch.chdir(tmp_path)
    student, teacher = (str(tokenizer_files / f"{side}.json") for side in ("student", "teacher"))
    teachers = ["--teachers", teacher, student]
    return lambda *rest: main(["overlap", student, *teachers, *map(str, rest)])


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_scores_by_teacher(tmp_path):
    text = "\ufeffmodel,AVG,teacher\nx,1.5,a\ny,-,c\nz,2,b\nz,2,c\n"
    path = written(tmp_path / "s.csv", text)
    assert read_scores(path, ["b", "a"]) == [2.0, 1.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column `teacher`; expected `teacher` and `AVG`, got nothing"),
        ("teacher,avg\na,1\n", "no column `AVG`; .* got teacher, avg"),
        ("teacher,AVG\nb,1\n", "no row for the teacher a; it has b"),
        ("teacher,AVG\na,1\na,1\n", "a is there twice"),
        ("teacher,AVG\na,x\n", "expected a number as `AVG` of a, got 'x'"),
        ("teacher,AVG\na,nan\n", "expected a number as `AVG` of a, got 'nan'"),
        ("teacher,AVG\na\n", "expected a number as `AVG` of a, got None"),
    ],
)
def test_scores_that_cannot_be_read(tmp_path, text, words):
    with pytest.raises(InputError, match=rf"s\.csv: {words}"):
        read_scores(written(tmp_path / "s.csv", text), ["a"])


def test_the_numbers_as_csv(found, tmp_path):
    write_csv(tmp_path / "o.csv", "llama", found)
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["teacher"] for row in rows] == ["other", "same$"]
    for row, one in zip(rows, found, strict=True):
        assert row["student"] == "llama"
        assert float(row["string_share"]) == one.overlap.string_share
        assert row["score"] == ""


def test_the_bars_hold_the_shares(found):
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from vocagno.paper.figures.vocabulary_overlap import draw_vocabulary_overlap

    (panel,) = draw_vocabulary_overlap("llama", found).axes
    widths = [[bar.get_width() for bar in bars] for bars in panel.containers]
    shares = ("string_share", "teacher_byte_share", "student_byte_share")
    assert widths == [[getattr(one.overlap, share) for one in found] for share in shares]
    assert widths[0][1] == 1
    assert [label.get_text() for label in panel.get_yticklabels()] == ["other", r"same\$"]
    scored = [TeacherOverlap(one.teacher, one.overlap, score=-7.5) for one in found]
    _, scores = draw_vocabulary_overlap("llama", scored).axes
    assert [bar.get_width() for bar in scores.containers[0]] == [-7.5, -7.5]
    partly = [found[0], TeacherOverlap("same$", found[1].overlap, score=84.0, model="M$")]
    _, scores = draw_vocabulary_overlap("llama", partly).axes
    assert [(bar.get_width(), bar.get_y() > 0.5) for bar in scores.containers[0]] == [(84, True)]
    assert [text.get_text() for text in scores.texts] == ["84.0", " no score", r" M\$"]


@pytest.mark.parametrize(("out", "magic"), [("new/a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_figure_and_csv_are_written(run, tmp_path, capsys, out, magic):
    scores = written(tmp_path / "s.csv", "teacher,AVG\nteacher,59.7\nstudent,3\n")
    assert run("--out", out, "--scores", scores, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (tmp_path / result["figure"]).read_bytes().startswith(magic)
    assert (tmp_path / result["data"]).read_text().count("\n") == 3
    assert [one["teacher"] for one in result["teachers"]] == ["teacher", "student"]
    assert [one["score"] for one in result["teachers"]] == [59.7, 3]
    assert result["teachers"][1]["string_share"] == 1
    before = (tmp_path / out).read_bytes()
    assert run("--out", out, "--scores", scores) == 0
    assert (tmp_path / out).read_bytes() == before


def test_the_table(run, tmp_path, capsys):
    assert run() == 0
    captured = capsys.readouterr()
    header, _, same = captured.out.splitlines()
    assert header.split("  ")[0] == "teacher"
    size = same.split()[1]
    assert same.split() == ["student", size, size, "100.00%", "100.0%", "100.0%", "-"]
    assert captured.err.split() == ["overlap.svg", "overlap.csv"]
    assert (tmp_path / "overlap.svg").is_file()


def test_errors_of_the_command(run, tmp_path, capsys):
    for rest, words in [
        (["--out", "a.pdf"], "--out: expected a file ending in .png or .svg, got a.pdf"),
        (["--scores", "none.csv"], "none.csv"),
        (["--scores", written(tmp_path / "s.csv", "teacher,AVG\n")], "no row for the teacher"),
    ]:
        assert run(*rest) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert words in error
    assert not list(tmp_path.glob("*.svg"))


def test_the_papers_figure():
    """Fig. 1: TinyLlama shares 6.32 % of Qwen2.5's entries, and most of Mistral's."""
    student, qwen, mistral = (
        TokenSpans(shared("tokenizers", f"{name}.json.gz"))
        for name in ("tinyllama", "qwen2.5", "mistral-v0.1")
    )
    assert round(vocabulary_overlap(student, qwen).string_share, 4) == 0.0632
    assert round(vocabulary_overlap(student, mistral).string_share, 4) == 0.7558
