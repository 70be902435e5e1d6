"""`python -m research.paper`: what the three commands print and write, and their errors."""

import json
from dataclasses import asdict

import pytest

from corpora import write_corpus
from families import TEXTS
from research.paper.__main__ import short_names
from research.paper.granularity import granularity
from vocagno import TokenSpans
from vocagno.errors import InputError

pytest.importorskip("jsonargparse")
pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")

TEXT = "José has 17 − 4."


@pytest.fixture
def run(tokenizer_files, tmp_path, monkeypatch):
    """A command in a folder with a small corpus; the second teacher is the student's tokenizer."""
    from research.paper.__main__ import main

    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "c.jsonl", TEXTS)
    student, teacher = (str(tokenizer_files / f"{side}.json") for side in ("student", "teacher"))

    def start(command, *rest):
        corpus = ["c.jsonl"] * (command == "granularity")
        teachers = ["--teachers", teacher, student]
        return main([command, student, *corpus, *teachers, *map(str, rest)])

    return start


def test_the_table_of_overlaps(run, tmp_path, capsys):
    assert run("overlap") == 0
    captured = capsys.readouterr()
    header, _, same = captured.out.splitlines()
    assert header.split("  ")[0] == "teacher"
    size = same.split()[1]
    assert same.split() == ["student", size, size, "100.00%", "100.0%", "100.0%"]
    assert captured.err.split() == ["overlap.svg", "overlap.csv"]
    assert (tmp_path / "overlap.svg").is_file()


def test_the_table_of_tokens(run, tokenizers, capsys):
    assert run("tokens", "--text", TEXT) == 0
    captured = capsys.readouterr()
    header, student, _, same = (line.split() for line in captured.out.splitlines())
    count = str(len(TokenSpans(tokenizers["llama"]).encode([TEXT]).ids))
    assert header == ["tokenizer", "tokens", "1:1", "1:N", "N:1"]
    assert student == ["student", count, "-", "-", "-"]
    assert same == ["student", count, count, "0", "0"]
    assert captured.err.split() == ["tokens.svg", "tokens.csv"]


def test_the_tables_of_levels(run, tokenizers, capsys):
    sides = [TokenSpans(tokenizers[name]) for name in ("llama", "byte-level")]
    assert run("granularity", "--seq_len", 64) == 0
    captured = capsys.readouterr()
    overlap = granularity(*sides, [TEXTS], seq_len=64)
    lines = captured.out.splitlines()
    assert lines[0].split() == ["IoU", "teacher", "student"]
    assert lines[1].split() == ["1", "chunk", f"{overlap.levels[0].iou:.2%}", "100.00%"]
    assert lines[8].split() == ["tokens", f"{overlap.levels[-1].iou:.2%}", "100.00%"]
    assert lines[9:11] == ["", "IoS        teacher  student"]
    assert lines[-1].split() == ["tokens", "100.00%", "100.00%"]
    assert f"over {overlap.sequences} sequences of 64 tokens of student" in captured.err
    assert run("granularity", "--seq_len", 16, "--limit", 3, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    expected = asdict(granularity(*sides, [TEXTS[:3]], seq_len=16))
    assert shown["files"] == []
    assert shown["teachers"][0] == expected | {"student": "student", "teacher": "teacher"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "out", "magic", "num_lines"),
    [
        (["overlap"], "new/a.png", b"\x89PNG", 3),
        (["overlap"], "a.svg", b"<?xml", 3),
        (["tokens", "--text", TEXT], "a.png", b"\x89PNG", None),
        (["tokens", "--text", TEXT], "new/a.svg", b"<?xml", None),
        (["granularity", "--seq_len", "64"], "new/a.svg", b"<?xml", 1 + 2 * 8),
    ],
)
def test_figure_and_csv_are_written(run, tmp_path, capsys, command, out, magic, num_lines):
    """The figure has the same bytes each time."""
    assert run(*command, "--out", out, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    figure, data = shown.get("files") or (shown["figure"], shown["data"])
    before = (tmp_path / figure).read_bytes()
    assert before.startswith(magic)
    assert num_lines in (None, (tmp_path / data).read_text().count("\n"))
    assert len(shown["teachers"]) == 2
    assert run(*command, "--out", out) == 0
    assert (tmp_path / out).read_bytes() == before


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["overlap", "--out", "a.pdf"], "--out: expected a file ending in .png or .svg, got a.pdf"),
        (["tokens", "--out", "a.pdf"], "--out: expected a file ending in .png or .svg, got a.pdf"),
        (["tokens", "--text", ""], "no tokens in '' to draw; give it some text"),
        (["tokens", "--text", "ab " * 34], "the text takes 102 columns; at most 100 fit in a line"),
        (["tokens", "--text", "日"], "日 (U+65E5) is in none of the figure's fonts"),
        (["tokens", "--teachers", "none.json"], "none.json: no such file"),
        (["granularity", "--out", "a.pdf"], "--out: expected a file ending in .png or .svg"),
        (["granularity", "--limit", "0"], "--limit: expected at least 1 document, got 0"),
        (["granularity", "--seq_len", "-1"], "seq_len: expected at least 1 token, got -1"),
        (["granularity"], "not even one sequence of 2,048; give more text or a smaller seq_len"),
    ],
)
def test_wrong_options_are_named_and_no_file_is_written(run, tmp_path, capsys, command, words):
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_names_of_teachers():
    paths = ["a/qwen2.5.json.gz", "b/llama/tokenizer.json", "org/model", "x.json"]
    assert short_names(paths, "--teachers") == ["qwen2.5", "llama", "model", "x"]
    assert short_names(["a/x.json", "b/x.json"], "--teachers") == ["a/x.json", "b/x.json"]
    assert short_names(["tokenizer.json"], "--teachers") == ["tokenizer.json"]
    with pytest.raises(InputError, match=r"--teachers: a/x\.json is given twice"):
        short_names(["a/x.json", "a/x.json"], "--teachers")
