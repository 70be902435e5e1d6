"""Plans of studies: what they name, and those that make no sense."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from research.study.carrying_out import carry_out
from research.study.plan import read_plan, slug
from vocagno.errors import ConfigError

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


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
        ({"seeds": [1, 1]}, "seeds: one is named twice"),
        ({"sedes": [1]}, "sedes"),
        ({"noise": [0.5]}, "noise: only with assets: quickstart"),
        ({"tokenizers": {"runs": {"vocabulary": 300}}}, "tokenizers: runs: cannot be the name"),
        ({"tokenizers": {"a b": {"vocabulary": 300}}}, "tokenizers: a b: cannot be the name"),
        ({"tokenizers": {"small": {}}}, "vocabulary"),
        ({"confidence": -1}, "confidence: expected 0 or more, got -1"),
        ({"questions_every": 2}, "questions_every: expected at least 1 step, and `questions`"),
        ({"noise": [1.5], "assets": "quickstart"}, "noise: not in"),
        ({"variants": {"cpt": {"against": "x"}, "top 20 %": {}}}, "cpt: against: x is none of"),
        ({"variants": {"cpt": {"config": "x"}, "top 20 %": {}}}, "config: is for runs under"),
        ({"before": {"cpt-0": {}}}, "has the name of a variant's run"),
        (
            {"variants": {"cpt": {}, "top 20 %": {}, "top, 20": {}}},
            "variants: 'top 20 %' and 'top, 20' both become the folder top-20; rename one",
        ),
        ({"before": {"cpt": {}}}, "variants: 'cpt' and 'cpt' both become the folder cpt"),
        ({"before": {"..": {}}}, "variants: '..': leaves no name for its folder"),
        ({"tables": {"数学": ["cpt"]}}, "tables: '数学': leaves no name for its figure; use"),
    ],
)
def test_a_contradictory_plan_names_its_entry(plan_file, parts, message):
    with pytest.raises(ConfigError, match=message):
        read_plan(plan_file(**parts))


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


def test_runs_before_others_may_need_one_another(tmp_path, plan_file, trained):
    chain = {
        "first": {"guidance.method": "cpt"},
        "other": {"guidance.method": "cpt"},
        "second one": {"teacher.model": "{out}/before/first/final"},
        "third": {"student.model": "{out}/before/second-one/final", "student.architecture": None},
    }
    plan = read_plan(plan_file(seeds=[0], before=chain))
    stages = plan.runs(tmp_path, {}).stages()
    names = [[run.name for run in stage] for stage in stages]
    assert names == [["first", "other"], ["second-one"], ["third"], ["cpt-0", "top-20-0"]]
    third = stages[2][0].arguments
    assert third[third.index("--student.model") + 1] == f"{tmp_path}/before/second-one/final"
    carry_out(plan, tmp_path, {}, show=False)
    assert trained == [name for stage in names for name in stage]
    for name, options in (
        ("second one", {"teacher.model": "{out}/before/third/final"}),  # stands below it
        ("first", {"teacher.model": "{out}/before/first/final"}),
    ):
        wrong = read_plan(plan_file(before={**chain, name: options}))
        with pytest.raises(ConfigError, match="no such run under `before`, or not above"):
            wrong.runs(tmp_path, {})


def test_some_variants_bring_only_the_earlier_runs_that_they_need(plan_file):
    """A study of one student trained teachers that nothing read, for twenty minutes."""
    chain = {"first": {}, "second one": {"student.model": "{out}/before/first/final"}}
    before = {**chain, "other": {}}
    variants = {"cpt": {}, "taught": {"teacher.model": "{out}/before/second-one/final"}}
    plan = read_plan(plan_file(before=before, variants=variants, tables={"all": [*variants]}))
    assert [*plan.only(["cpt"], {}).before] == []
    assert [*plan.only(["taught"], {}).before] == ["first", "second one"]
    of_all_runs = {"teacher.model": "{out}/before/other/final"}
    assert [*plan.only(["cpt"], of_all_runs).before] == ["other"]
    assert [*replace(plan, common=of_all_runs).only(["cpt"], {}).before] == ["other"]


def test_some_variants_bring_all_that_they_are_compared_with(plan_file):
    chain = {"cpt": {}, "a": {"against": "b"}, "b": {"against": "c"}, "c": {}, "d": {}}
    plan = read_plan(plan_file(variants=chain, tables={"all": [*chain]}))
    assert [*plan.only(["a"], {}).variants] == ["cpt", "a", "b", "c"]


OF_THREE_SEEDS = dict.fromkeys("quickstart math noise distributions gate".split(), 3)
PLANS = OF_THREE_SEEDS | {"guidance": 5, "filter": 3, "healing": 1, "real": 7}


@pytest.mark.parametrize(("name", "num_seeds"), PLANS.items())
def test_the_plans_of_the_project_are_plans(tmp_path, name, num_seeds):
    """A plan with one wrong variant trains none: that of the real models had one."""
    from vocagno.training.configuration import parse

    plan = read_plan(ROOT / "configs" / "study" / f"{name}.yaml")
    assert {variant for table in plan.tables.values() for variant in table} == set(plan.variants)
    assert len(plan.seeds) == num_seeds
    for run in replace(plan, seeds=plan.seeds[:1]).runs(tmp_path, {}):  # others differ in the seed
        arguments = [str(part) for part in run.arguments]
        arguments[1] = str(ROOT / arguments[1])
        config = parse([*arguments, "--output", str(run.folder)])
        assert config.train.seed == (100 if run.seed is None else run.seed)
