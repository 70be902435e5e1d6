"""`vocagno curves`: the numbers, the errors, and that a figure comes out."""

import csv
import json
import sys
from pathlib import Path

import pytest

from imports import modules_after
from run_folders import training, validation, write_run
from vocagno.training.run_log import RunError, read_run, read_runs, write_csv


@pytest.fixture
def naive(tmp_path):
    entries = (
        training(2, 4.0),
        validation(2, 3.5),
        training(4, 3.0, speed=300.0),
        validation(4, 3.6),
    )
    return write_run(tmp_path / "runs" / "naive", *entries)


@pytest.fixture
def guided(tmp_path):
    """With lines of another kind, and validations between and behind its training lines."""
    return write_run(
        tmp_path / "runs" / "guided",
        {"step": 1, "slow_rows": [3]},
        training(4, 5.0, tokens=400, kept=0.5),
        validation(6, 2.5),
        training(8, 2.0, tokens=600, kept=0.25),
        validation(9, 2.25),
    )


@pytest.fixture
def drawing():
    pytest.importorskip("matplotlib", reason="the figures need matplotlib: vocagno[viz]")
    from vocagno.paper.figures.learning_curves import draw_learning_curves

    return draw_learning_curves


@pytest.fixture
def figures_run(drawing, tmp_path, monkeypatch):
    pytest.importorskip("jsonargparse")
    from vocagno.cli.app import main

    monkeypatch.chdir(tmp_path)
    return lambda *arguments: main(["curves", *map(str, arguments)])


def test_reading_needs_numpy_alone():
    assert not modules_after("import vocagno.training.run_log") & {"torch", "matplotlib"}


def test_what_a_run_comes_to(naive, guided):
    assert read_run(naive).as_dict() == {
        "run": "naive",
        "folder": str(naive),
        "steps": 4,
        "tokens": 400,
        "last_loss": 3.0,
        "last_validation_loss": 3.6,
        "best_validation_loss": 3.5,
        "mean_tokens_per_s": 150.0,  # 400 tokens in 2 + 2/3 s
    }
    run = read_run(guided)
    assert run.curve("loss") == ([400, 1000], [5.0, 2.0])
    assert run.curve("validation_loss") == ([700, 1150], [2.5, 2.25])
    assert run.curve("kept_fraction") == ([400, 1000], [0.5, 0.25])


def test_a_run_that_diverged_or_was_not_validated(tmp_path):
    found = read_run(write_run(tmp_path / "r", training(2, 4.0), training(4, float("nan"))))
    assert found.as_dict()["last_loss"] is None
    assert (
        found.as_dict()["last_validation_loss"] is found.as_dict()["best_validation_loss"] is None
    )
    assert len(found.curve("loss")[0]) == 2


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path):
    run = read_run(write_run(tmp_path / "r", training(2, 4.0), '{"step": 4, "lo', end=""))
    assert [point.step for point in run.points] == [2]
    whole = read_run(write_run(tmp_path / "w", training(2, 4.0), training(4, 3.0), end=""))
    assert [point.step for point in whole.points] == [2, 4]


def test_names_tell_the_runs_apart(tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("x/one/run", "x/two/run", "y/two/run", "x/other")]
    for folder in folders:
        write_run(folder, training(1, 1.0))
    names = [run.name for run in read_runs(folders)]
    assert names == ["one/run", "x/two/run", "y/two/run", "other"]
    monkeypatch.chdir(folders[3])
    (here,) = read_runs([Path()])
    assert here.name == "other"
    with pytest.raises(RunError, match="one: given twice"):
        read_runs([tmp_path / "one", tmp_path / "two", tmp_path / "one"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"step": 4, "lo'], "line 2: not JSON"),
        (["[" * 100_000], "line 2: not JSON"),
        (["[1]"], "line 2: expected an object, got a list"),
        ([{"loss": 1.0}], "line 2: has no `step`"),
        ([{"step": 4, "loss": "x"}], "line 2: loss: expected a number, got 'x'"),
        ([{"step": 4, "loss": 10**400}], r"line 2: loss: expected a number, got 10{39}\.\.\."),
        ([training(4, 1.0, tokens=-1)], "line 2: tokens: expected a whole number, 0 or more"),
        ([{"step": 4, "loss": 1.0}], "line 2: has `loss`, but no `kept_fraction`"),
        ([training(2, 3.0)], "line 2: step 2 with `loss` after step 2"),
        ([validation(4, 1.0), validation(3, 1.0)], "line 3: step 3 with `validation_loss` after"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(tmp_path, lines, words):
    folder = write_run(tmp_path / "r", training(2, 4.0), *lines)
    with pytest.raises(RunError, match=rf"r.metrics\.jsonl, {words}"):
        read_run(folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="none: no such folder"):
        read_run(tmp_path / "none")
    with pytest.raises(RunError, match=r"no metrics\.jsonl in it; expected the `output`"):
        read_run(tmp_path)
    with pytest.raises(RunError, match=r"metrics\.jsonl: no training line"):
        read_run(write_run(tmp_path / "r", validation(2, 3.0), {"step": 3}))


def test_the_numbers_as_csv(naive, guided, tmp_path):
    write_csv(tmp_path / "c.csv", read_runs([naive, guided]))
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["run", "step", "tokens", "loss", "validation_loss", "kept_fraction"],
        ["naive", "2", "200", "4.0", "3.5", "1.0"],
        ["naive", "4", "400", "3.0", "3.6", "1.0"],
        ["guided", "4", "400", "5.0", "", "0.5"],
        ["guided", "6", "700", "", "2.5", ""],
        ["guided", "8", "1000", "2.0", "", "0.25"],
        ["guided", "9", "1150", "", "2.25", ""],
    ]


def test_the_axes_hold_the_curves(drawing, naive, guided):
    runs = read_runs([naive, guided])
    figure, (losses, selected) = drawing(runs)
    assert figure.axes == [losses, selected]
    drawn = [line.get_xydata().T.tolist() for line in losses.lines]
    kinds = ("validation_loss", "loss")
    assert drawn == [list(run.curve(kind)) for run in runs for kind in kinds]
    shares = [line.get_xydata().T.tolist() for line in selected.lines]
    assert shares == [list(run.curve("kept_fraction")) for run in runs]
    colours = [line.get_color() for line in losses.lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert [line.get_color() for line in selected.lines] == colours[::2]
    assert [text.get_text() for text in losses.get_legend().get_texts()] == [
        "naive",
        "guided",
        "validation",
        "training",
    ]
    assert losses.get_ylabel() == "loss (nats per token)"
    assert selected.get_xlabel() == "predicted tokens"


def test_into_axes_of_another_figure(drawing, naive):
    from matplotlib.figure import Figure

    mine = Figure()
    axes = mine.subplots(1, 2)
    figure, drawn = drawing(read_runs([naive]), axes=axes)
    assert figure is mine
    assert drawn is axes
    assert len(axes[0].lines) == 2


def test_names_are_not_markup(drawing, tmp_path):
    names = ["_hidden", "a$x_1$", "n" * 100]
    runs = read_runs([write_run(tmp_path / name, training(1, 1.0)) for name in names])
    _, (losses, _) = drawing(runs)
    texts = [text.get_text() for text in losses.get_legend().get_texts()]
    assert texts[:2] == [" _hidden", r"a\$x_1\$"]
    assert texts[2].replace("\n", "") == "n" * 100


@pytest.mark.parametrize(
    ("count", "short"), [(0, "0"), (950, "950"), (2_500, "2.5k"), (20e6, "20M"), (15e9, "15B")]
)
def test_counts_on_the_axis(drawing, count, short):
    from vocagno.paper.figures.style import short_count

    assert short_count(count) == short


@pytest.mark.parametrize(("out", "magic"), [("new/a.PNG", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_figure_and_csv_are_written(figures_run, naive, guided, tmp_path, capsys, out, magic):
    assert figures_run(naive, guided, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (tmp_path / found["figure"]).read_bytes().startswith(magic)
    assert found["data"] == out.rsplit(".", 1)[0] + ".csv"
    assert (tmp_path / found["data"]).read_text().count("\n") == 7
    assert found["runs"] == [run.as_dict() for run in read_runs([naive, guided])]
    before = (tmp_path / out).read_bytes()
    assert figures_run(naive, guided, "--out", out) == 0
    assert (tmp_path / out).read_bytes() == before


def test_the_table(figures_run, naive, guided, tmp_path, capsys):
    unvalidated = write_run(tmp_path / "short", training(1000, 2.0, tokens=1_000_000))
    assert figures_run(naive, guided, unvalidated) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "run     steps     tokens    loss  validation  best validation  tokens/s",
        "naive       4        400  3.0000      3.6000           3.5000       150",
        "guided      9      1,150  2.0000      2.2500           2.2500       100",
        "short   1,000  1,000,000  2.0000           -                -       100",
    ]
    assert captured.err.split() == ["curves.svg", "curves.csv"]
    assert (tmp_path / "curves.svg").is_file()


def test_errors_of_the_command(figures_run, naive, tmp_path, capsys):
    assert figures_run(naive, "--out", "a.pdf") == 2
    assert (
        capsys.readouterr().err
        == "error: --out: expected a file ending in .png or .svg, got a.pdf\n"
    )
    assert figures_run(naive, tmp_path / "none") == 2
    assert "none: no such folder" in capsys.readouterr().err
    assert figures_run() == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.glob("curves.*"))


def test_without_matplotlib(naive, monkeypatch, capsys):
    pytest.importorskip("jsonargparse")
    from vocagno.cli.app import main

    for name in list(sys.modules):
        if name.startswith(("matplotlib", "vocagno.paper.figures")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["curves", str(naive)]) == 2
    words = "error: needs matplotlib: pip install 'vocagno[viz]'\n"
    assert capsys.readouterr().err == words
