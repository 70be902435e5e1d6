"""Whole runs under thresholds on groups: what is logged and said, resumed runs, live and stored."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vocagno
from method_runs import live_teacher, prepared
from runs import cut_back, metrics, same_weights, train_here
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig

GROUPS = {"unit": "group", "top_fraction": None, "max_threshold": 0.0}
LINES = {"unit": "group", "max_threshold": 1.0, "window_max_loss": 9.0}


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [GROUPS, LINES], ids=["threshold", "quota and lines"])
def test_a_run_logs_its_threshold_and_resumes_to_the_same_bits(tmp_path, config, guidance):
    path = config(guidance=guidance, train={"log_every": 1})
    assert train_here(path) == 0
    entries = metrics(tmp_path / "run")[0]
    for entry in entries:
        assert entry["threshold"] <= guidance["max_threshold"]
        assert 0.1 < entry["kept_fraction"] <= 1
        assert entry["unmapped"]["partial"] > 0  # rows of 32 tokens cut groups
        assert entry["coverage"] == 1
    if guidance is GROUPS:
        assert {entry["threshold"] for entry in entries} == {0.0}
    copy = cut_back(tmp_path / "run", tmp_path / "copy")
    assert train_here(path, "--output", copy) == 0
    assert same_weights(tmp_path / "run", copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guidance", "name"),
    [(GROUPS, "teacher_loss"), ({"unit": "token", "window_max_loss": 1.5}, "group_loss")],
    ids=["groups", "noise by groups"],
)
def test_a_live_teacher_s_losses_of_groups_are_those_of_its_tokens(
    tmp_path, tokenizer_files, teacher_model, guidance, name
):
    """Of each group the sum over the teacher's own tokens, found again from spans and texts."""
    rows, texts = prepared(tmp_path, tokenizer_files)
    line_ends = TokenSpans(tokenizer_files / "student.json").line_ends()
    arguments = texts, teacher_model, GuidanceConfig(**guidance)
    live, collator = live_teacher(*arguments, line_ends=line_ends)
    compared = 0
    for start in range(0, len(rows), 5):
        chosen = [rows[index] for index in range(start, min(start + 5, len(rows)))]
        batch, (sides, _) = collator(chosen), collator.align(chosen)
        plan = live.plan(batch.live_text)
        nll = live.guide(batch.live_text, {}, plan)[name]
        nll_M = live.token_losses(batch.live_text, plan).numpy()
        groups_BT = batch.groups if batch.line_groups is None else batch.line_groups
        assert torch.equal(nll.isnan(), groups_BT < 0)
        sizes = [len(row.ids) for row in chosen]
        student_spans = np.concatenate([row.spans for row in chosen])
        cuts = np.cumsum([0, *(n for row in chosen for n in row.num_tokens)])
        counts = sides.windowed.tokens.cu_seqlens
        groups = vocagno.groups(
            student_spans, sides.teacher_spans, student_cu_seqlens=cuts, teacher_cu_seqlens=counts
        )
        expected = {
            int(first): nll_M[a:b].sum() / (stop - first)
            for (first, stop), (a, b) in zip(groups.student, groups.teacher, strict=True)
        }
        before = np.cumsum([0, *sizes])
        for row, count in enumerate(sizes):
            for place in range(1, count):
                token = before[row] + place
                group = groups_BT[row, place - 1]
                if group >= 0 and token in expected:
                    assert float(nll[row, place - 1]) == pytest.approx(expected[token], rel=1e-4)
                    compared += 1
    assert compared > 200
