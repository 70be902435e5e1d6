"""Studies: what is run, measured once, and compared seed by seed."""

import json
import math
import subprocess

import pytest

torch = pytest.importorskip("torch")

import yaml

from research.study.__main__ import main
from research.study.carrying_out import carry_out, measured_so_far
from research.study.comparison import Spread, compared, markdown
from research.study.measured import Measured, write_runs
from research.study.plan import Plan, read_plan, slug
from runs import with_research
from vocagno.errors import ConfigError, InputError
from warm_python import executable

pytestmark = pytest.mark.slow


def test_a_study_of_real_runs(tmp_path, plan_file, capsys):
    out = tmp_path / "study"
    path = plan_file(
        seeds=[3],
        before={"reference": {"config": str(tmp_path / "run.yaml"), "guidance.method": "cpt"}},
        variants={
            "cpt": {"guidance.method": "cpt"},
            "again": {
                "teacher.model": "{out}/before/reference/final",
                "teacher.tokenizer": str(tmp_path / "none.json"),
            },
        },
        tables={"methods": ["cpt"]},
    )
    # The reference is trained before what needs it, whose tokenizer is missing.
    assert main([str(path), "--out", str(out)]) == 2
    message = capsys.readouterr().err
    assert "again-3: training ended with status 2: error: " in message
    assert "none.json: " in message
    assert "log.txt)" in message
    assert (out / "before" / "reference" / "final").is_dir()
    plan = read_plan(
        plan_file(
            seeds=[3], variants={"cpt": {"guidance.method": "cpt"}}, tables={"methods": ["cpt"]}
        )
    )
    (run,) = measured_so_far(plan, out, {})
    assert run.variant == "cpt"
    assert run.seed == 3
    assert run.confidence is None
    assert run.trained_on == 1.0
    assert 400 < run.tokens <= 2 * 8 * 32
    assert 1 < run.cpu_seconds < 300
    assert 100 < run.peak_memory_mib < 10_000
    assert 3 < run.held_out_loss < 8
    assert json.loads((out / "runs" / "cpt-3" / "measured.json").read_text())["seed"] == 3


def test_what_is_measured_is_not_done_again(tmp_path, plan_file, trained):
    plan, out = read_plan(plan_file()), tmp_path / "study"
    first = carry_out(plan, out, {}, show=False)
    assert trained == ["cpt-0", "cpt-1", "top-20-0", "top-20-1"]
    (out / "runs" / "cpt-1" / "measured.json").unlink()
    again = carry_out(plan, out, {}, show=False)
    assert trained[4:] == ["cpt-1"]
    # It had been begun before: what it cost in all is not known.
    assert [run.cpu_seconds for run in first] == [10.0, 11.0, 11.0, 12.0]
    assert [run.cpu_seconds for run in again] == [10.0, None, 11.0, 12.0]
    assert [run.held_out_loss for run in again] == [1.0, 1.1, 0.5, 0.6]


def test_tables_and_figures(tmp_path, plan_file, trained, capsys):
    out = tmp_path / "study"
    command = [str(plan_file()), "--out", str(out)]
    assert main([*command, "--report"]) == 2
    assert "no run of" in capsys.readouterr().err
    assert main(command) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].startswith("| methods | seeds | held-out loss | difference from |")
    # Losses 1.0, 1.1 and 0.5, 0.6; processor times 11 / 10 and 12 / 11.
    assert "| cpt | 2 | 1.0500 ± 0.0707 | - | 40.0% | - | 100 |" in table
    assert (
        "| top 20 % | 2 | 0.5500 ± 0.0707 | cpt: -0.5000 ± 0.0000 | 40.0% | 1.10 | 100 |" in table
    )
    assert (out / "methods.svg").read_text().count("<svg") == 1
    lines = (out / "runs.csv").read_text().splitlines()
    assert lines[0] == (
        "variant,seed,held_out_loss,exact_answers,trained_on,tokens,cpu_seconds,peak_memory_mib"
    )
    assert lines[4].startswith("top 20 %,1,0.6,,0.4,100,12.0,100.0")
    assert main([*command, "--report", "--json", "--to", str(tmp_path / "docs")]) == 0
    for name in ("tables.md", "runs.csv", "methods.svg"):
        assert (tmp_path / "docs" / name).read_bytes() == (out / name).read_bytes()
    found = json.loads(capsys.readouterr().out)
    assert [run["variant"] for run in found["runs"]] == ["cpt", "cpt", "top 20 %", "top 20 %"]
    assert len(trained) == 4


def test_a_part_of_a_plan(tmp_path, plan_file, trained, capsys):
    """Named variants, and those that they are compared with; the rest may follow later."""
    more = {"top 10 %": {}, "top 30 %": {"against": "top 10 %"}, "top 40 %": {}}
    given = yaml.safe_load(plan_file().read_text())["variants"] | more
    tables = {"methods": list(given), "others": ["top 40 %"]}
    path, out = plan_file(variants=given, tables=tables), tmp_path / "study"
    command = [str(path), "--out", str(out), "--seeds", "1"]
    assert main([*command, "--only", "top 30 %"]) == 0
    assert set(trained) == {"cpt-1", "top-10-1", "top-30-1"}
    assert "others" not in capsys.readouterr().out
    assert main(command) == 0
    assert len(trained) == 5
    assert "| top 40 % | 1 |" in capsys.readouterr().out
    assert main([*command, "--only", "top 50 %"]) == 2
    assert "--only: top 50 % is none of the variants" in capsys.readouterr().err


def test_only_seeds_that_both_have_are_compared():
    plan = Plan(
        config="unused",
        baseline="a",
        tables={"t": ["a", "b", "c", "d"]},
        variants={"a": {}, "b": {}, "c": {"against": "b"}, "d": {}},
    )
    runs = [
        measured("a", 0, 1.0),
        measured("a", 1, 2.0),
        measured("b", 1, 1.5),
        measured("b", 2, 9.0),
        measured("c", 2, 10.0, exact_answers=0.25),
    ]
    rows = compared(plan, runs, ["a", "b", "c", "d"])
    assert [row.variant for row in rows] == ["a", "b", "c"]
    assert [row.against for row in rows] == [None, "a", "b"]
    assert rows[1].difference == Spread((-0.5,))
    assert rows[2].difference == Spread((1.0,))
    assert rows[2].exact_answers == Spread((25.0,))
    assert math.isnan(rows[2].difference.deviation)
    text = markdown("t", rows).splitlines()
    assert text[3] == "| b | 2 | 5.2500 ± 5.3033 | a: -0.5000 | - | 40.0% | - | - |"
    assert text[4] == "| c | 1 | 10.0000 | b: +1.0000 | 25.0 | 40.0% | - | - |"


def test_names_do_not_break_the_table():
    plan = Plan(config="unused", baseline="a|b", tables={}, variants={"a|b": {}, "c\nd": {}})
    rows = compared(plan, [measured(name, 0, 1.0) for name in plan.variants], plan.variants)
    lines = markdown("title | two", rows).splitlines()
    assert lines[0].startswith(r"| title \| two | seeds |")
    assert lines[2].startswith(r"| a\|b | 1 |")
    assert lines[3].startswith(r"| c d | 1 | 1.0000 | a\|b: +0.0000 |")


def test_seeds_that_diverged_are_shown_as_such():
    for values in ((math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf)):
        assert Spread(values).worded(".4f") == "nan ± nan"


def measured(variant, seed, loss, exact_answers=None):
    return Measured(variant, seed, loss, exact_answers, 0.4, 100, None, None)


def test_cells_are_quoted(tmp_path):
    write_runs(tmp_path / "runs.csv", [measured("uld, aligned", 0, 1.0)])
    assert '"uld, aligned",0,1.0' in (tmp_path / "runs.csv").read_text()


def test_names_become_folders():
    assert slug("uld, aligned") == "uld-aligned"
    assert slug("top 20 %") == "top-20"
    assert slug("lambda 0.5") == "lambda-0.5"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"baseline": "naive"}, "baseline: naive is none of the variants"),
        ({"tables": {"methods": ["cpt", "x"]}}, "methods: x is none of the variants"),
        ({"seeds": []}, "seeds: expected at least one"),
        ({"seeds": [1, 1]}, "seeds: twice the same"),
        ({"sedes": [1]}, "sedes"),
        ({"noise": [0.5]}, "noise: only with assets: quickstart"),
        ({"tokenizers": {"runs": {"vocabulary": 300}}}, "tokenizers: runs: cannot be the name"),
        ({"tokenizers": {"a b": {"vocabulary": 300}}}, "tokenizers: a b: cannot be the name"),
        ({"tokenizers": {"small": {}}}, "vocabulary"),
        ({"confidence": -1}, "confidence: negative"),
        ({"questions_every": 2}, "questions_every: expected at least 1 step, and `questions`"),
        ({"noise": [1.5], "assets": "quickstart"}, "noise: not in"),
        ({"variants": {"cpt": {"against": "x"}, "top 20 %": {}}}, "cpt: against: x is none of"),
        ({"variants": {"cpt": {"config": "x"}, "top 20 %": {}}}, "config: is for runs under"),
        ({"before": {"cpt-0": {}}}, "has the name of a variant's run"),
        (
            {"variants": {"cpt": {}, "top 20 %": {}, "top, 20": {}}},
            "variants: 'top 20 %' and 'top, 20' both become the folder top-20; rename one",
        ),
        ({"variants": {"cpt": {}, "数学": {}}}, "variants: '数学': leaves no name for its folder"),
        ({"before": {"cpt": {}}}, "variants: 'cpt' and 'cpt' both become the folder cpt"),
        ({"before": {"..": {}}}, "variants: '..': leaves no name for its folder"),
        (
            {"tables": {"A b": ["cpt"], "a/b": ["cpt"]}},
            "tables: 'A b' and 'a/b' both become the figure a-b; rename one",
        ),
        (
            {"tables": {"数学": ["cpt"]}},
            "tables: '数学': leaves no name for its figure; use",
        ),
    ],
)
def test_plans_that_make_no_sense(plan_file, parts, message):
    with pytest.raises(ConfigError, match=message):
        read_plan(plan_file(**parts))


def test_options_are_checked_before_the_first_run(tmp_path, plan_file, trained, capsys):
    wrong = {"cpt": {"guidance.method": "cpt"}, "top 20 %": {"guidance.top_fractoin": 0.2}}
    command = [str(plan_file(variants=wrong)), "--out", str(tmp_path / "study")]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "top-20-0: " in message
    assert "top_fractoin" in message
    assert trained == []
    assert main([str(plan_file()), "--out", str(tmp_path), "--set", "steps"]) == 2
    assert "--set: expected NAME=VALUE" in capsys.readouterr().err
    assert main([str(tmp_path / "none.yaml"), "--out", str(tmp_path)]) == 2
    assert "no such file; expected the plan of a study" in capsys.readouterr().err


def test_options_for_all_runs_win(tmp_path, plan_file):
    plan = read_plan(plan_file(common={"train.steps": 3, "guidance.top_fraction": 0.7}))
    extra = {"train.steps": "4", "guidance.top_fraction": "0.6"}
    for run in plan.runs(tmp_path, extra).variants:
        steps, fraction = (
            run.arguments[run.arguments.index(name) + 1]
            for name in ("--train.steps", "--guidance.top_fraction")
        )
        assert steps == "4"  # before the plan's `common`, behind what a variant is about
        assert fraction == ("0.6" if run.variant == "cpt" else "0.2")


def test_a_run_without_held_out_text_is_refused(tmp_path, plan_file, trained):
    plan = read_plan(plan_file(common={"data.validation": None}))
    with pytest.raises(ConfigError, match=r"cpt-0: data\.validation: needed"):
        carry_out(plan, tmp_path / "study", {}, show=False)
    missing = read_plan(plan_file(questions=str(tmp_path / "none.jsonl")))
    with pytest.raises(InputError, match=r"questions: .*none\.jsonl: no such file"):
        carry_out(missing, tmp_path / "study", {}, show=False)
    assert trained == []


def test_runs_of_another_plan_are_refused(tmp_path, plan_file):
    """By real configurations, of one step."""
    out = tmp_path / "study"
    few = {"seeds": [0], "common": {"train.steps": 1}}
    assert main([str(plan_file(**few)), "--out", str(out)]) == 0
    for changed in (
        {**few, "common": {"train.steps": 2}},
        {
            **few,
            "variants": {
                "cpt": {"guidance.method": "cpt"},
                "top 20 %": {"guidance.top_fraction": 0.3},
            },
        },
    ):
        for arguments in ([], ["--report"]):
            command = [str(plan_file(**changed)), "--out", str(out), *arguments]
            assert main(command) == 2
    plan = read_plan(plan_file(**few))
    assert len(measured_so_far(plan, out, {})) == 2
    with pytest.raises(ConfigError, match=r"cpt-0: train\.steps is 3, but .* holds a run with 1"):
        measured_so_far(read_plan(plan_file(seeds=[0])), out, {"train.steps": "3"})


def test_runs_before_others_may_need_one_another(tmp_path, plan_file, trained):
    chain = {
        "first": {"guidance.method": "cpt"},
        "other": {"guidance.method": "cpt"},
        "second one": {"teacher.model": "{out}/before/first/final"},
        "third": {"student.model": "{out}/before/second-one/final", "student.architecture": None},
    }
    out = tmp_path / "study"
    plan = read_plan(plan_file(seeds=[0], before=chain))
    stages = plan.runs(out, {}).stages()
    names = [[run.name for run in stage] for stage in stages]
    assert names == [["first", "other"], ["second-one"], ["third"], ["cpt-0", "top-20-0"]]
    third = stages[2][0].arguments
    model = third[third.index("--student.model") + 1]
    assert model == f"{out}/before/second-one/final"
    carry_out(plan, out, {}, show=False)
    assert trained == [name for stage in names for name in stage]
    for name, options in (
        ("second one", {"teacher.model": "{out}/before/third/final"}),  # stands below it
        ("first", {"teacher.model": "{out}/before/first/final"}),
    ):
        wrong = read_plan(plan_file(before={**chain, name: options}))
        with pytest.raises(ConfigError, match="no such run under `before`, or not above"):
            wrong.runs(out, {})


def test_two_processes_share_a_study(tmp_path, plan_file):
    """Each run is trained by one of them."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.executable = {executable()!r}\n"
        "from research.study import carrying_out\n"
        "train = carrying_out.train\n"
        "def counted(run):\n"
        "    with open(run.folder / 'count', 'a') as file:\n"
        "        file.write('x')\n"
        "    return train(run)\n"
        "carrying_out.train = counted\n"
        "from research.study.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    out = tmp_path / "study"
    command = [executable(), str(script), str(plan_file()), "--out", str(out)]
    processes = [
        subprocess.Popen(command, env=with_research(), stdout=subprocess.DEVNULL) for _ in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    names = ("cpt-0", "cpt-1", "top-20-0", "top-20-1")
    counts = {file.parent.name: file.read_text() for file in out.glob("runs/*/count")}
    assert counts == dict.fromkeys(names, "x")


@pytest.mark.parametrize(
    ("name", "num_seeds"), [("quickstart", 3), ("math", 3), ("guidance", 5), ("noise", 3)]
)
def test_the_plans_of_the_project_are_plans(tmp_path, name, num_seeds):
    from pathlib import Path

    folder = Path(__file__).parents[2]
    plan = read_plan(folder / "configs" / "study" / f"{name}.yaml")
    compared_somewhere = {variant for table in plan.tables.values() for variant in table}
    assert compared_somewhere == set(plan.variants)
    assert len(plan.seeds) == num_seeds
    for run in plan.runs(tmp_path, {}):
        arguments = [str(part) for part in run.arguments]
        arguments[1] = str(folder / arguments[1])
        from vocagno.training.configuration import parse

        config = parse([*arguments, "--output", str(run.folder)])
        assert config.train.seed == (100 if run.seed is None else run.seed)
