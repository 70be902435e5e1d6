"""Files of scores: what is read, averaged and written, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from imports import modules_after
from shared_data import shared
from vocagno.evaluation.result_tables import as_markdown, one_decimal, write_csv
from vocagno.evaluation.results import STARRED, ResultError, read_results

CSV = """model,method,GSM8K,MATH,TAB*,SAT*,AVG,AVG (w/o *)
S + A,Ours,10,5,20,30,16.3,7.5
S + A,ULD,9.0,-,21,30.0,-,-
S + B,Ours,10.04,7,,2,,8.5
"""


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    return read_results([write(tmp_path / "t.csv", CSV)])


def test_reading_needs_numpy_alone():
    code = (
        "import vocagno.evaluation.results, vocagno.evaluation.result_tables, "
        "vocagno.paper.comparisons"
    )
    assert not modules_after(code) & {"torch", "matplotlib", "yaml"}


def test_a_file_is_read(table):
    assert table.labels == ("model", "method")
    assert table.benchmarks == ("GSM8K", "MATH", "TAB", "SAT")
    assert table.starred == {"TAB", "SAT"}
    assert [result.percentages for result in table.results] == [
        {"GSM8K": 10, "MATH": 5, "TAB": 20, "SAT": 30},
        {"GSM8K": 9, "TAB": 21, "SAT": 30},
        {"GSM8K": 10.04, "MATH": 7, "SAT": 2},
    ]
    assert table.results[0].published == {"AVG": "16.3", "AVG (w/o *)": "7.5"}
    assert table.results[1].name == "S + A, ULD"


def test_averages_are_over_their_columns_and_need_them_all(table):
    first, second, third = table.results
    assert table.averages == ("AVG", "AVG (w/o *)", "AVG (w/o SAT)")
    assert [table.average(first, name) for name in table.averages] == [16.25, 7.5, 35 / 3]
    assert [table.average(second, name) for name in table.averages] == [None] * 3
    assert table.average(third, "AVG (w/o *)") == pytest.approx(8.52)
    assert table.value(third, "MATH") == 7
    assert table.value(third, "TAB") is None
    with pytest.raises(
        ResultError, match=r"AIME: no such column; expected one of GSM8K, MATH, .*AVG"
    ):
        table.value(first, "AIME")


def test_averages_that_leave_nothing_out_are_not_there(tmp_path):
    table = read_results([write(tmp_path / "t.csv", "model,GSM8K,MATH\nA,1,2\n")])
    assert table.averages == ("AVG",)


def test_averages_that_scores_do_not_give_are_named(tmp_path):
    text = CSV.replace("16.3", "16.4").replace("9.0,-", "9.0,1").replace("30.0,-", "30.0,15.25")
    (first, *more) = read_results([write(tmp_path / "t.csv", text)]).disagreements()
    path = tmp_path / "t.csv"
    assert first == (
        f"{path}, row 2 (S + A, Ours), column AVG: the file has 16.4, its results give 16.250"
    )
    assert not more  # 15.25 is right to two digits, 16.25 is 16.3 or 16.2
    text = CSV.replace("30.0,-", "30.0,15.0")
    (only,) = read_results([write(path, text)]).disagreements()
    assert only.endswith(
        "row 3 (S + A, ULD), column AVG: the file has 15.0, its results do not give one"
    )


def test_markdown_has_the_best_of_each_column_bold(table):
    assert as_markdown(table, title="T").splitlines() == [
        "T",
        "",
        "| model | method | GSM8K | MATH | TAB* | SAT* | AVG | AVG (w/o *) | AVG (w/o SAT) |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| S + A | Ours | **10.0** | 5.0 | 20.0 | **30.0** | **16.3** | 7.5 | **11.7** |",
        "| S + A | ULD | 9.0 | - | **21.0** | **30.0** | - | - | - |",
        "| S + B | Ours | **10.0** | **7.0** | - | 2.0 | - | **8.5** | - |",
    ]


def test_labels_do_not_break_the_table(tmp_path):
    table = read_results([write(tmp_path / "t.csv", "model,MATH\na|b,1\n")])
    assert r"| a\|b | **1.0** | **1.0** |" in as_markdown(table)


@pytest.mark.parametrize(
    ("value", "shown"), [(20.55, "20.6"), (20.45, "20.5"), (20.4499, "20.4"), (3, "3.0")]
)
def test_halves_go_up(value, shown):
    assert one_decimal(value) == shown


def test_what_is_written_is_read_back(table, tmp_path):
    write_csv(tmp_path / "again.csv", table)
    again = read_results([tmp_path / "again.csv"])
    assert [r.percentages for r in again.results] == [r.percentages for r in table.results]
    assert (again.labels, again.starred) == (table.labels, table.starred)
    assert again.disagreements() == []


def test_json_of_models_makes_the_same_table(table, tmp_path):
    paths = []
    for number, result in enumerate(table.results):
        scores = {
            **result.percentages,
            **dict.fromkeys(set(table.benchmarks) - result.percentages.keys()),
        }
        entry = {**result.labels, "scores": scores, "about": {"shots": 8}}
        paths.append(write(tmp_path / f"{number}.json", json.dumps(entry)))
    assert as_markdown(read_results(paths)) == as_markdown(table)
    entries = [json.loads(path.read_text()) for path in paths]
    assert as_markdown(read_results([write(tmp_path / "l.json", json.dumps(entries))])) == (
        as_markdown(table)
    )


def test_json_has_the_papers_order_and_stars(tmp_path):
    scores = {"AIME": 1, "SAT": 2.5, "MMLU-STEM": 3, "TAB": 4, "GSM8K": 5}
    entry = json.dumps({"model": "A", "scores": scores})
    table = read_results([write(tmp_path / "a.json", entry)])
    assert table.benchmarks == ("GSM8K", "TAB", "MMLU-STEM", "SAT", "AIME")
    assert table.starred == STARRED


def test_files_are_joined(table, tmp_path):
    more = {"model": "S + C", "seed": "1", "scores": {"MATH": 9, "SAT": 1}}
    paths = [tmp_path / "t.csv", write(tmp_path / "c.json", json.dumps(more))]
    joined = read_results(paths)
    assert joined.labels == ("model", "method", "seed")
    assert as_markdown(joined).splitlines()[-1] == (
        "| S + C |  | 1 | - | **9.0** | - | 1.0 | - | - | - |"
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (CSV, "", "t.csv: empty; expected a header and rows"),
        (CSV, "model,GSM8K\n", "t.csv: a header without rows"),
        ("GSM8K,MATH,TAB*,SAT*", "a,b,c,d", r"t.csv: no benchmark column \(GSM8K"),
        ("MATH", "GSM8K*", "t.csv: column GSM8K is there twice"),
        ("AVG (w/o *)", "AVG (all)", r"t.csv, column AVG \(all\): not an average; expected AVG,"),
        ("20,30", "20,30,40", "t.csv, row 2: 9 cells under 8 columns"),
        ("9.0", "nine", "t.csv, row 3, column GSM8K: expected a percentage .*, got 'nine'"),
        ("9.0", "nan", "t.csv, row 3, column GSM8K: expected a percentage .*, got 'nan'"),
        ("9.0", "101", "t.csv, row 3, column GSM8K: expected a percentage from 0 to 100"),
        ("ULD", "Ours", r"row 3: its labels \(S \+ A, Ours\) are the same as in .*t.csv, row 2"),
    ],
)
def test_csv_that_is_not_right_is_refused(tmp_path, before, after, words):
    assert before in CSV
    path = write(tmp_path / "t.csv", CSV.replace(before, after))
    with pytest.raises(ResultError, match=words):
        read_results([path])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "a.json: not JSON"),
        ("[]", "a.json: an empty list"),
        ("[1]", "a.json, entry 1: expected an object with `scores`"),
        ('{"model": "A", "scores": [1]}', "a.json: expected an object with `scores`"),
        ('{"scores": {"MATH": 1}}', "a.json: no label that names the model"),
        (
            '{"model": 3, "scores": {"MATH": 1}}',
            "a.json, model: expected a string as a label, got 3",
        ),
        ('{"model": "A", "scores": {"MATH": null}}', "a.json: no result in `scores`"),
        ('{"model": "A", "scores": {"MATH": "1"}}', "a.json, scores, MATH: expected a percentage"),
        ('{"model": "A", "scores": {"MATH": true}}', "a.json, scores, MATH: .*got True"),
        ('{"model": "A", "scores": {"MATH": -1}}', "a.json, scores, MATH: .*got -1"),
    ],
)
def test_json_that_is_not_right_is_refused(tmp_path, text, words):
    with pytest.raises(ResultError, match=words):
        read_results([write(tmp_path / "a.json", text)])


def test_stars_that_differ_are_refused(table, tmp_path):
    other = write(tmp_path / "o.csv", "model,TAB\nC,1\n")
    with pytest.raises(
        ResultError, match=r"o\.csv: column TAB has no star, but has one in .*t\.csv"
    ):
        read_results([tmp_path / "t.csv", other])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_papers_averages_follow_from_its_scores(number):
    """All of them: to the digit, if halves go up."""
    table = read_results([shared("paper", f"table{number}.csv")])
    assert table.disagreements() == []
    for result in table.results:
        for name, written in result.published.items():
            assert one_decimal(table.average(result, name)) == f"{float(written):.1f}"
    assert sum(len(result.published) for result in table.results) == (49, 27, 21, 6)[number - 1]


def test_the_example_of_the_page_is_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    (result,) = read_results([write(tmp_path / "a.json", example)]).results
    assert result.name == "S + Llemma, Ours"
    assert result.percentages == {"GSM8K": 8.1, "MATH": 5.2, "SAT": 34.4}
