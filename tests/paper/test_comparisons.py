"""Figures and tables of scores: the numbers behind them, the errors, the commands."""

import json

import pytest

from result_files import CHUNKED, STUDENTS, TEACHERS, lines, of_nine
from shared_data import shared
from vocagno.evaluation import summary
from vocagno.evaluation.benchmarks import BENCHMARKS, PAPER
from vocagno.evaluation.results import STARRED, ResultError, read_results
from vocagno.paper.comparisons import compare_granularities, compare_teachers

LEVELS = """student,teacher,chunks,iou,ios
s,A,8,0.9,0.95
s,A,16,0.7,0.8
s,A,token,0.98,1
s,B,8,0.5,0.6
"""


@pytest.fixture
def files(tmp_path):
    """Writes a file of each kind; texts by name replace the usual ones."""

    def write(**texts):
        usual = {"students": STUDENTS, "teachers": TEACHERS, "chunked": CHUNKED, "levels": LEVELS}
        for name, text in {**usual, **texts}.items():
            (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
        return {name: tmp_path / f"{name}.csv" for name in usual}

    return write


def test_students_stand_by_their_teachers(files):
    paths = files()
    found = compare_teachers(read_results([paths["students"]]), read_results([paths["teachers"]]))
    assert (found.naive, found.naive_score) == ("TinyLlama-CPT", 15)
    assert found.teachers == ["Unknown", "TinyLlama-CPT", "Qwen2.5-Math-Instruct"]
    assert found.methods == ["KLD", "ULD", "Ours"]
    assert [(s.method, s.score, s.gain, s.teacher_score) for s in found.students] == [
        ("Ours", 16.5, 1.5, None),
        ("KLD", 16, 1, 15),
        ("Ours", 18, 3, 15),
        ("ULD", 14, -1, 85),
        ("Ours", 30, 15, 85),
    ]


def test_another_column_and_no_teachers(files):
    found = compare_teachers(read_results([files()["students"]]), column="GSM8K")
    assert {s.teacher: s.gain for s in found.of("Ours")} == {
        "TinyLlama-CPT": 4,
        "Qwen2.5-Math-Instruct": 10,
        "Weak": -1,
        "Unknown": 3,
    }


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"students": CHUNKED}, {}, "students.csv, row 2: no column `model`; expected model and"),
        ({"teachers": CHUNKED}, {}, "teachers.csv, row 2: no column `teacher`"),
        ({}, {"naive": "CPT"}, "no row whose `model` is CPT has a score under AVG"),
        ({}, {"column": "AVGE"}, "AVGE: no such column; expected one of GSM8K, SAT, AVG"),
        ({"students": STUDENTS[: STUDENTS.index("S + ")]}, {}, "no row whose `model` begins with"),
    ],
)
def test_teachers_that_cannot_be_compared(files, changes, options, words):
    paths = files(**changes)
    with pytest.raises(ResultError, match=words):
        compare_teachers(
            read_results([paths["students"]]), read_results([paths["teachers"]]), **options
        )


def test_scores_meet_their_granularity(files):
    paths = files()
    found = compare_granularities(read_results([paths["chunked"]]), paths["levels"], teacher="A")
    assert [(one.guidance, one.chunks, one.iou, one.ios, one.score) for one in found] == [
        ("Random", 8, 0.9, 0.95, 1.5),
        ("Teacher", 8, 0.9, 0.95, 2.5),
        ("Teacher", 16, 0.7, 0.8, 3.5),
        ("Teacher", None, 0.98, 1, 5.5),
    ]


@pytest.mark.parametrize(
    ("changes", "teacher", "words"),
    [
        ({}, None, "levels.csv: has several teachers; name one: A, B"),
        ({}, "C", "levels.csv: no teacher C; it has A, B"),
        ({}, "B", "levels.csv: no row of 16 chunks, which .*chunked.csv, row 4 needs"),
        ({"levels": "a,b\n"}, "A", "levels.csv: no column `teacher`; expected what"),
        ({"levels": "teacher,chunks,iou,ios\n"}, None, "levels.csv: a header without rows"),
        ({"levels": LEVELS.replace("0.7", "x")}, "A", "levels.csv, row 3: expected numbers"),
        ({"chunked": CHUNKED.replace("16", "x")}, "A", "chunked.csv, row 4, chunks: expected a"),
        ({"chunked": STUDENTS}, "A", "chunked.csv, row 2: no column `guidance`"),
        ({"chunked": "guidance,chunks,SAT\nTeacher,8,-\n"}, "A", "row 2: no row has a score"),
    ],
)
def test_granularities_that_do_not_fit(files, changes, teacher, words):
    paths = files(**changes)
    with pytest.raises(ResultError, match=words):
        compare_granularities(read_results([paths["chunked"]]), paths["levels"], teacher=teacher)


@pytest.mark.parametrize("name", ["teachers", "gains"])
def test_students_are_drawn(command, files, tmp_path, capsys, name):
    paths = files(students=of_nine(STUDENTS), teachers=of_nine(TEACHERS))
    assert command(name, paths["students"], paths["teachers"], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (tmp_path / f"{name}.svg").read_bytes().startswith(b"<?xml")
    assert lines(tmp_path / f"{name}.csv")[:3] == [
        ["teacher", "method", "score", "gain", "teacher_score"],
        ["Unknown", "Ours", "16.5", "1.5", ""],
        ["TinyLlama-CPT", "KLD", "16.0", "1.0", "15.0"],
    ]
    assert [point["score"] for point in found["points"]] == [16.5, 16, 18, 14, 30]
    assert command(name, paths["students"], paths["teachers"], "--out", "x.pdf") == 2
    assert "--out: expected a file ending in .png or .svg" in capsys.readouterr().err
    two = files()  # columns, which are not the paper's average
    assert command(name, two["students"], two["teachers"]) == 2
    assert "no row whose `model` is TinyLlama-CPT has a score under AVG" in capsys.readouterr().err


def test_the_bars_are_the_scores(command, files):
    from vocagno.paper.figures.scores import draw_gains, draw_scores

    paths = files()
    found = compare_teachers(read_results([paths["students"]]), read_results([paths["teachers"]]))
    (axes,) = draw_scores(found).axes
    assert sorted(bar.get_height() for bar in axes.patches) == [14, 16, 16.5, 18, 30]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["Unknown", "TinyLlama-CPT\n15.0", "Qwen2.5-Math-\nInstruct\n85.0"]
    (axes,) = draw_gains(found).axes
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert drawn[:3] == [[[15, 3], [85, 15]], [[85, -1]], [[15, 1]]]
    assert {text.get_text() for text in axes.texts} == {"TinyLlama-CPT", "Qwen2.5-Math-Instruct"}


def test_granularities_are_drawn(command, files, tmp_path, capsys):
    paths = files(chunked=of_nine(CHUNKED))
    arguments = ("granularity-scores", paths["chunked"], paths["levels"], "--teacher", "A")
    assert command(*arguments, "--out", "g.png") == 0
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.splitlines() == [
        "guidance  chunks    IoU     IoS  AVG",
        "Random         8  90.0%   95.0%  1.5",
        "Teacher        8  90.0%   95.0%  2.5",
        "Teacher       16  70.0%   80.0%  3.5",
        "Teacher        -  98.0%  100.0%  5.5",
    ]
    assert lines(tmp_path / "g.csv")[-1] == ["Teacher", "", "0.98", "1.0", "5.5"]


def test_the_table_command(command, files, tmp_path, capsys):
    paths = files()
    assert command("table", paths["students"], "--out", "t.md", "--title", "Ours.") == 0
    captured = capsys.readouterr()
    assert captured.err.split() == ["t.md", "t.csv"]
    assert (tmp_path / "t.md").read_text() == "Ours.\n\n" + captured.out
    assert "| S + Qwen2.5-Math-Inst | Ours | **20.0** | **40.0** |" in captured.out
    assert command("table", paths["students"], "--out", "new") == 0
    assert (tmp_path / "new" / "students.csv").read_text() == (tmp_path / "t.csv").read_text()
    capsys.readouterr()
    assert command("table", paths["students"], "--out", ".") == 2
    assert "students.csv is read, and would be overwritten" in capsys.readouterr().err
    assert command("table", paths["students"], "--out", "t.pdf") == 2
    assert "--out: expected a file ending in .md or .csv, or a folder" in capsys.readouterr().err
    assert command("table", paths["students"], "--json") == 0
    row = json.loads(capsys.readouterr().out)["rows"][1]
    assert row["scores"] == {"GSM8K": 10, "SAT": 20}
    assert row["averages"] == {}  # of nine columns, of which this table has two
    assert paths["students"].read_text() == STUDENTS


def test_averages_that_do_not_follow_are_said(command, tmp_path, capsys):
    header, row, _ = of_nine("model,GSM8K,SAT*\nA,1,2\n").split("\n")
    (tmp_path / "t.csv").write_text(f"{header},AVG\n{row},2.5\n")
    assert command("table", "t.csv") == 0
    words = "t.csv, row 2 (A), column AVG: the file has 2.5, its results give 1.500\n"
    assert capsys.readouterr().err == words


PERCENTAGES = dict(zip(PAPER, range(10, 60, 5), strict=True))


@pytest.mark.parametrize(
    "tasks",
    [
        PAPER,
        (*PAPER, "math"),
        ("gsm8k", "svamp", "sat_math"),
        [name for name in PAPER if BENCHMARKS[name].column not in STARRED],
        [name for name in (*PAPER, "math") if name != "sat_math"],
    ],
)
def test_a_table_has_the_averages_of_the_run(command, tmp_path, capsys, tasks):
    """`math` is no column of the paper, and what lacks a benchmark is no average."""
    shares = {}
    for name in tasks:
        right = PERCENTAGES.get(name, 100)
        shares[name] = summary.share_right([k < right for k in range(100)])
    scores = {BENCHMARKS[name].column or name: 100 * share.value for name, share in shares.items()}
    (tmp_path / "r.json").write_text(json.dumps({"model": "m", "scores": scores}))
    assert command("table", "r.json", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    of_run = summary.averages(shares)
    assert row["averages"] == pytest.approx({n: 100 * s.value for n, s in of_run.items()})
    assert row["scores"] == scores
    assert command("table", "r.json", "--out", "t.md") == 0
    assert command("table", "t.csv") == 0  # read back: the same averages
    assert capsys.readouterr().err.split() == ["t.md", "t.csv"]


def test_averages_in_json_are_compared_only(command, tmp_path, capsys):
    def entry(**scores):
        (tmp_path / "r.json").write_text(json.dumps({"model": "m", "scores": scores}))
        return command("table", "r.json")

    whole = dict.fromkeys([BENCHMARKS[name].column for name in PAPER], 10)
    assert entry(**whole, AVG=10.5) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].endswith("| SAT* | AVG | AVG (w/o *) | AVG (w/o SAT) |")
    words = "r.json (m), column AVG: the file has 10.5, its results give 10.000\n"
    assert captured.err == words
    assert entry(**whole, AVG=10.0) == 0
    assert capsys.readouterr().err == ""
    assert entry(AVG=10.0) == 2
    assert "r.json: has averages only; expected results by benchmark" in capsys.readouterr().err
    assert entry(**whole, AVG9=10.0) == 2
    assert "r.json, AVG9: not an average; expected AVG, AVG (w/o *)" in capsys.readouterr().err


def test_the_papers_figures_are_what_it_says(tmp_path):
    """Headline: +46 % over naive pretraining and +33 % over ULD; chunks rise to 32, fall at 64."""
    tables = {n: read_results([shared("paper", f"table{n}.csv")]) for n in (1, 2, 4)}
    found = compare_teachers(tables[1], tables[4])
    best = {s.method: s.score for s in found.students if s.teacher == "Qwen2.5-Math-Instruct"}
    assert round(best["Ours"] / found.naive_score, 2) == 1.46
    assert round(best["Ours"] / best["ULD"], 2) == 1.33
    assert all(s.teacher_score is not None for s in found.students)
    levels = "teacher,chunks,iou,ios\n" + "".join(
        f"A,{level},1,1\n" for level in (8, 16, 32, 64, "token")
    )
    (tmp_path / "l.csv").write_text(levels)
    rows = compare_granularities(tables[2], tmp_path / "l.csv")
    score = {one.chunks: one.score for one in rows if one.guidance == "Teacher"}
    assert score[8] < score[16] < score[32] < score[None]
    assert score[64] < min(score[8], *(one.score for one in rows if one.guidance == "Random"))
