"""Runs that differ in one option: what is read of them, drawn, and refused."""

import json

import pytest
import yaml

from corpora import write_corpus
from families import TEXTS
from result_files import lines
from run_folders import CONFIG, training, validation, write_run
from vocagno.paper.paper_averages import AVERAGED
from vocagno.paper.sweeps import read_sweep
from vocagno.training.run_log import RunError


@pytest.fixture
def swept(tmp_path):
    """Makes the folder of a run, with options by their full names."""

    def make(name, loss=3.0, scores=None, **options):
        config = json.loads(json.dumps(CONFIG))
        for option, value in options.items():
            section, _, key = option.partition("__")
            config[section][key] = value
        folder = write_run(tmp_path / name, training(4, 4.0), validation(4, loss))
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        if scores:
            result = {"model": name, "scores": scores}
            (folder / "results.json").write_text(json.dumps(result))
        return folder

    return make


def test_runs_of_one_value_are_one_point(swept):
    runs = [
        swept("a", 3.0, guidance__top_fraction=0.6),
        swept("b", 2.0, train__seed=1),
        swept("c", 2.5, train__seed=2),
        swept("d", 1.0, teacher__model="runs/x/cpt/final"),
    ]
    found = read_sweep(runs, "guidance.top_fraction")
    assert [(run.teacher, run.seed, run.x, run.y) for run in found.runs] == [
        ("A", 0, 0.6, 3.0),
        ("A", 1, 0.4, 2.0),
        ("A", 2, 0.4, 2.5),
        ("cpt", 0, 0.4, 1.0),
    ]
    assert [(p.teacher, p.x, p.mean, p.lowest, p.highest, p.runs) for p in found.points] == [
        ("A", 0.4, 2.25, 2.0, 2.5, 2),
        ("A", 0.6, 3.0, 3.0, 3.0, 1),
        ("cpt", 0.4, 1.0, 1.0, 1.0, 1),
    ]


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({"model": "/m/qwen/base"}, {"model": "/m/llama/base"}, ["qwen/base", "llama/base"]),
        ({"model": "m/base"}, {"model": "base"}, ["m/base", "base"]),
        ({"model": "runs/a/final"}, {"model": "other/a/final"}, ["runs/a", "other/a"]),
        ({"model": "runs/a/final"}, {"model": "runs/a"}, ["runs/a/final", "runs/a"]),
        (
            {"model": "org/A", "gguf_file": "Q4.gguf"},
            {"model": "org/A", "gguf_file": "Q8.gguf", "batch_tokens": 64},
            ["A, gguf_file Q4.gguf", "A, gguf_file Q8.gguf"],
        ),
        ({"scores": "oracle"}, {"scores": ["x/a", "x/b"]}, ["A, scores oracle", "A, scores ['x/a"]),
        ({"model": None, "scores": "x/a"}, {"model": None}, ["a", "none"]),
        ({}, {"context": 512}, ["A, context 2048", "A, context 512"]),
        ({}, {"batch_tokens": 64, "requests": 4}, ["A", "A"]),
        ({}, {"tensor_parallel": True}, ["A", "A"]),
        ({"model": "runs/a/final"}, {"model": "./runs/a/final/"}, ["a", "a"]),
    ],
)
def test_other_teachers_are_other_points(swept, first, second, names):
    """And their names tell them apart."""
    runs = [
        swept(name, loss, **{f"teacher__{option}": value for option, value in teacher.items()})
        for name, loss, teacher in (("a", 2.0, first), ("b", 4.0, second))
    ]
    found = read_sweep(runs, "guidance.top_fraction")
    for run, name in zip(found.runs, names, strict=True):
        assert run.teacher.startswith(name)
    assert len(found.points) == len({run.teacher for run in found.runs}) == len(set(names))


def test_an_option_of_the_teacher_that_is_swept_names_no_teacher(swept):
    runs = [swept("a", teacher__context=256), swept("b", teacher__context=512)]
    found = read_sweep(runs, "teacher.context")
    assert [(point.teacher, point.x) for point in found.points] == [("A", 256), ("A", 512)]


def test_a_score_instead_of_the_loss_and_the_usual_weight(swept):
    runs = [
        swept(
            name,
            scores=dict.fromkeys(AVERAGED, score),
            guidance__method="uld",
            guidance__distillation_weight=weight,
        )
        for name, score, weight in (("a", 6, None), ("b", 7, 1.5))
    ]
    found = read_sweep(runs, "guidance.distillation_weight", quantity="AVG")
    assert [(point.x, point.mean) for point in found.points] == [(0.5, 6), (1.5, 7)]


@pytest.mark.parametrize(
    ("options", "asked", "words"),
    [
        ({"optimizer__lr": 1e-4}, {}, r"b: optimizer\.lr is 0\.0001, but 0\.001 in .*a; the runs"),
        ({"guidance__method": "cpt"}, {}, "b: guidance.method is 'cpt', but 'vocagno' in"),
        ({}, {"option": "guidance.top"}, "a: has no option guidance.top; expected one as"),
        ({}, {"option": "student.model"}, "a: student.model is 'S'; expected a number"),
        ({}, {"quantity": "AVG"}, "a: no results.json in it, from which AVG would come"),
        ({"teacher__modle": "A"}, {}, "config.yaml: not the configuration of a run"),
        ({"guidance__top": 1}, {}, "config.yaml: not the configuration of a run"),
    ],
)
def test_runs_that_cannot_be_compared(swept, options, asked, words):
    runs = [swept("a"), swept("b", **options)]
    with pytest.raises(RunError, match=words):
        read_sweep(runs, **{"option": "guidance.top_fraction", **asked})


def test_folders_that_hold_no_such_run(swept, tmp_path):
    run = swept("a")
    with pytest.raises(RunError, match="given twice"):
        read_sweep([run, run], "train.steps")
    with pytest.raises(RunError, match=r"none: no config\.yaml in it"):
        read_sweep([tmp_path / "none"], "train.steps")
    (run / "metrics.jsonl").write_text(json.dumps(training(4, 4.0)) + "\n")
    with pytest.raises(RunError, match=r"a: no validation loss; give the run data\.validation"):
        read_sweep([run], "train.steps")
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(RunError, match=r"config\.yaml: not the configuration"):
        read_sweep([run], "train.steps")


def test_a_sweep_is_drawn(command, swept, tmp_path, capsys):
    runs = [swept("a"), swept("b", 2.5, train__seed=1), swept("c", 2.0, guidance__top_fraction=0.6)]
    assert command("sweep", *runs, "--option", "guidance.top_fraction") == 0
    assert capsys.readouterr().out.splitlines() == [
        "teacher  guidance.top_fraction  validation_loss  lowest  highest  runs",
        "A                          0.4           2.7500  2.5000   3.0000     2",
        "A                          0.6           2.0000  2.0000   2.0000     1",
    ]
    assert len(lines(tmp_path / "sweep.csv")) == 4
    from vocagno.paper.figures.scores import draw_sweep

    (axes,) = draw_sweep(read_sweep(runs, "guidance.top_fraction")).axes
    assert axes.lines[0].get_xydata().tolist() == [[0.4, 2.75], [0.6, 2.0]]
    assert axes.get_ylabel() == "validation loss (nats per token)"


@pytest.mark.slow
def test_a_sweep_of_real_runs(command, tmp_path, tokenizer_files, teacher_model):
    pytest.importorskip("torch")
    from runs import train_here, write_config

    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    runs = []
    for fraction in (0.4, 0.8):
        runs.append(tmp_path / f"run-{fraction}")
        path = write_config(
            tmp_path,
            corpus,
            tokenizer_files,
            teacher_model,
            data={"validation": str(corpus)},
            guidance={"top_fraction": fraction},
            train={"steps": 2},
            output=str(runs[-1]),
        )
        assert train_here(path) == 0
    assert command("sweep", *runs, "--option", "guidance.top_fraction") == 0
    points = read_sweep(runs, "guidance.top_fraction").points
    assert [(point.x, point.teacher) for point in points] == [
        (fraction, teacher_model.name) for fraction in (0.4, 0.8)
    ]
