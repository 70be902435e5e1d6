"""`python -m vocagno.paper all`: what is made of which inputs, what is skipped, the errors."""

import gzip
import json
import shutil

import pytest

from corpora import write_corpus
from families import TEXTS
from result_files import CHUNKED, STUDENTS, TEACHERS, lines, of_nine
from run_folders import training, validation, write_run
from shared_data import shared

TABLES = [f"paper-table{number}{kind}" for number in range(1, 5) for kind in (".md", ".csv")]
FIGURES = {
    "paper": ["paper-teachers", "paper-gains"],
    "tokenizers": ["overlap", "tokens"],
    "corpus": ["granularity"],
    "runs": ["curves"],
}
FROM_BOTH = "paper-granularity-scores"


@pytest.fixture
def inputs(tmp_path, tokenizer_files):
    """The options, each with what it needs."""
    (tmp_path / "paper").mkdir()
    tables = (STUDENTS, CHUNKED, CHUNKED, TEACHERS + "Mistral-ProXMath,32K,50,60\n")
    for number, table in enumerate(tables, 1):
        (tmp_path / "paper" / f"table{number}.csv").write_text(of_nine(table))
    tokenizers = tmp_path / "tokenizers"
    (tokenizers / "other").mkdir(parents=True)
    shutil.copy(tokenizer_files / "student.json", tokenizers)
    shutil.copy(tokenizer_files / "teacher.json", tokenizers / "other" / "tokenizer.json")
    data = (tokenizer_files / "teacher.json").read_bytes()
    (tokenizers / "zipped.json.gz").write_bytes(gzip.compress(data))
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, training(2, 4.0), validation(2, 3.0))
    (tmp_path / "runs" / "empty").mkdir()
    return {
        "paper": ["--paper", "paper"],
        "tokenizers": [
            "--tokenizers",
            "tokenizers",
            "--student",
            "student",
            "--teachers",
            "zipped=Mistral-ProXMath",
            "other",
        ],
        "corpus": ["--corpus", write_corpus(tmp_path / "c.jsonl", TEXTS), "--seq_len", "64"],
        "runs": ["--runs", "runs"],
    }


def arguments(inputs, *names):
    return ["all", "--out", "out", *(word for name in names for word in inputs[name])]


def made_of(*figures):
    return {f"{name}{kind}" for name in figures for kind in (".svg", ".csv")}


def test_everything_there_is(command, inputs, tmp_path, capsys):
    assert command(*arguments(inputs, *inputs)) == 0
    captured = capsys.readouterr()
    every = [name for names in FIGURES.values() for name in names]
    expected = {*TABLES, *made_of(*every, FROM_BOTH)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    assert sorted(captured.out.split()) == sorted(f"out/{name}" for name in expected)
    notes = [line[:15] for line in captured.err.splitlines()]
    assert notes == ["skipped Fig. 7,", "skipped Fig. 8,"]
    before = {name: (tmp_path / "out" / name).read_bytes() for name in expected}
    again = [*arguments(inputs, "tokenizers", "corpus", "runs"), "--paper", "out"]
    assert command(*again) == 0  # from the tables that it wrote itself
    assert {name: (tmp_path / "out" / name).read_bytes() for name in expected} == before


def test_scores_stand_beside_the_tokenizers_of_their_models(command, inputs, tmp_path):
    assert command(*arguments(inputs, "paper", "tokenizers")) == 0
    header, first, second = lines(tmp_path / "out" / "overlap.csv")
    assert header[-2:] == ["score", "model"]
    assert (first[1], first[-2:]) == ("zipped", ["55.0", "Mistral-ProXMath"])
    assert (second[1], second[-2:]) == ("other", ["", ""])


def test_scores_meet_the_granularity_just_measured(command, inputs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "granularity.csv").write_text("teacher,chunks,iou,ios\nzipped,8,0,0\n")
    assert command(*arguments(inputs, "paper", "tokenizers", "corpus")) == 0
    levels = {
        row[3]: row[4:6]
        for row in lines(tmp_path / "out" / "granularity.csv")
        if row[1] == "zipped"
    }
    rows = lines(tmp_path / "out" / f"{FROM_BOTH}.csv")[1:]
    for _, chunks, iou, ios, _ in rows:
        assert [float(iou), float(ios)] == [float(share) for share in levels[chunks or "token"]]


LEFT_OUT = {
    "tables": "skipped Tables 1 to 4: needs --paper",
    "1": "skipped Fig. 1, shared vocabulary: needs --tokenizers",
    "scores": "Fig. 1 has no scores of the teachers: they need --paper",
    "2": "skipped Fig. 2, a text in tokens: needs --tokenizers",
    "4": "skipped Fig. 4 and 5, students by teacher: needs --paper",
    "6": "skipped Fig. 6, scores by granularity: needs --paper",
    "levels": "skipped Fig. 6, scores by granularity: needs out/granularity.csv, which "
    "--tokenizers and --corpus make",
    "runs": "skipped learning curves: needs --runs",
}


@pytest.mark.parametrize(
    ("given", "left_out", "fig_3"),
    [
        (["paper"], ["1", "2", "levels", "runs"], "--tokenizers and --corpus"),
        (["tokenizers"], ["tables", "scores", "4", "6", "runs"], "--corpus"),
        (["runs"], ["tables", "1", "2", "4", "6"], "--tokenizers and --corpus"),
        (["paper", "corpus"], ["1", "2", "levels", "runs"], "--tokenizers"),
        (["tokenizers", "corpus"], ["tables", "scores", "4", "6", "runs"], None),
    ],
)
def test_what_is_left_out_is_named(command, inputs, tmp_path, capsys, given, left_out, fig_3):
    assert command(*arguments(inputs, *given), "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    expected = {LEFT_OUT[name] for name in left_out}
    if fig_3:
        expected.add(f"skipped Fig. 3, chunks and tokens: needs {fig_3}")
    assert set(captured.err.splitlines()[:-2]) == expected
    assert captured.err.splitlines() == found["notes"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.removeprefix("out/") for path in found["files"]}
    figures = [
        name
        for option in given
        for name in FIGURES[option]
        if option != "corpus" or "tokenizers" in given
    ]
    assert names == made_of(*figures) | ({*TABLES} if "paper" in given else set())


def test_granularity_that_was_there_is_named(command, inputs, tmp_path, capsys):
    assert command(*arguments(inputs, "tokenizers", "corpus")) == 0
    capsys.readouterr()
    drawn = tmp_path / "out" / f"{FROM_BOTH}.svg"
    assert command(*arguments(inputs, "paper")) == 2  # the default teachers are not in it
    assert "out/granularity.csv: no teacher mistral-v0.1; it has zipped" in capsys.readouterr().err
    named = ["--teachers", "zipped=Mistral-ProXMath"]
    assert command(*arguments(inputs, "paper"), *named) == 0
    words = "Fig. 6, scores by granularity: from the out/granularity.csv that was there"
    assert words in capsys.readouterr().err.splitlines()
    assert drawn.is_file()
    drawn.unlink()
    assert command(*arguments(inputs, "paper"), "--teachers", "zipped") == 0
    assert "needs one of --teachers as NAME=Mistral-ProXMath" in capsys.readouterr().err
    assert not drawn.exists()


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ([], "nothing to draw: give --paper, --tokenizers or --runs"),
        (["--corpus", "c.jsonl"], "nothing to draw"),
        (["--paper", "none"], "--paper: neither none/table1.csv nor paper-table1.csv is there"),
        (["--runs", "paper"], "--runs: no folder in paper has a metrics.jsonl; expected the one"),
        (["--runs", "runs", "--corpus", "none"], "none: no such file or folder; expected .json"),
        (["--runs", "runs", "--seq_len", "0"], "--seq_len: expected at least 1 token, got 0"),
        (["--tokenizers", "tokenizers"], "--tokenizers: tokenizers has no tinyllama.json.gz, tiny"),
        (["--tokenizers", "tokenizers", "--student", "student"], "or name others with --teachers"),
        (["+tokenizers", "--teachers", "=x"], "--teachers: expected NAME or NAME=MODEL, got =x"),
        (["+tokenizers", "--teachers", "other="], "expected NAME or NAME=MODEL, got other="),
        (["+tokenizers", "--teachers", "other", "other=Weak"], "--teachers: other is given twice"),
        (["+tokenizers", "--teachers", "none"], "no none.json.gz, none.json or none/tokenizer.js"),
        (["+tokenizers", "--text", ""], "no tokens in '' to draw; give it some text"),
    ],
)
def test_wrong_inputs_are_named(command, inputs, tmp_path, capsys, rest, words):
    if rest[:1] == ["+tokenizers"]:
        rest = [*inputs["tokenizers"], *rest[1:]]
    assert command("all", "--out", "out", *rest) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error


def test_a_model_that_the_table_has_not(command, inputs, capsys):
    rest = ["--teachers", "other=Best"]
    assert command(*arguments(inputs, "paper", "tokenizers"), *rest) == 2
    words = "--teachers: paper/table4.csv has no Best; it has Qwen2.5-Math-Instruct, Mistral-ProX"
    assert words in capsys.readouterr().err


def test_the_papers_tables_and_tokenizers(command, tmp_path, capsys):
    """The real files, under their usual names; no corpus, which takes a minute."""
    given = ["--paper", shared("paper"), "--tokenizers", shared("tokenizers")]
    assert command("all", "--out", "out", *given) == 0
    assert len(capsys.readouterr().out.split()) == 16
    rows = lines(tmp_path / "out" / "overlap.csv")[1:]
    found = {row[1]: (round(float(row[7]), 4), row[-2][:4], row[-1]) for row in rows}
    assert found == {
        "qwen2.5": (0.0632, "83.9", "Qwen2.5-Math-Instruct"),
        "llama-3": (0.0752, "", ""),
        "deepseek-llm": (0.0961, "68.3", "DeepSeekMath"),
        "mistral-v0.1": (0.7558, "59.1", "Mistral-ProXMath"),
    }
