"""Options of guidance: what names a rule, and what contradicts it."""

import math
from dataclasses import asdict

import pytest
import yaml

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.training.configuration import parse


def test_without_a_rule_lines_that_are_noise_are_dropped():
    assert GuidanceConfig() == GuidanceConfig(**LINES)
    assert not GuidanceConfig().keeps_quota
    assert GuidanceConfig().ignores_excess
    assert GuidanceConfig(unit="token") == GuidanceConfig(**LINES | {"unit": "token"})
    assert GuidanceConfig(window_max_loss=2.5) == GuidanceConfig(**LINES | {"window_max_loss": 2.5})


def test_a_limit_below_that_of_the_smoothing_warns():
    """8 bytes of 1 nat each make a short line noise on which the teacher loses nothing."""
    assert GuidanceConfig().warning is None
    assert GuidanceConfig(top_fraction=0.4).warning is None
    assert GuidanceConfig(window_max_loss=1.0).warning is None
    assert GuidanceConfig(method="cpt", window_max_loss=0.7).warning is None  # it drops nothing
    assert GuidanceConfig(method="kld").warning is None
    assert "kld trains on all tokens" in GuidanceConfig(method="kld", top_fraction=0.4).warning
    warning = GuidanceConfig(window_max_loss=0.7).warning
    assert warning.startswith("window_max_loss: 0.7 is below 1 nat a byte")


def test_a_rule_that_is_named_is_all_there_is():
    paper = GuidanceConfig(top_fraction=0.4)
    assert (paper.unit, paper.window, paper.keeps_quota) == ("token", None, True)
    threshold = GuidanceConfig(max_threshold=0.0)
    assert (threshold.unit, threshold.window, threshold.top_fraction) == ("token", None, None)
    lines = GuidanceConfig(method="rho1", window_max_loss=1.0)
    assert (lines.window, lines.top_fraction) == ("line", None)
    assert GuidanceConfig(window="line", window_max_loss=1.5).unit == "token"
    for method in ("rho1", "chunk"):
        assert GuidanceConfig(method=method) == GuidanceConfig(method=method, top_fraction=0.4)
    for method in ("rho1", "kld", "uld", "cpt"):
        assert GuidanceConfig(method=method).window is None


@pytest.mark.parametrize("rule", [{"max_threshold": -1}, {"top_fraction": 0.4}, {"unit": "group"}])
def test_a_window_of_lines_follows_from_its_limit(rule):
    named = GuidanceConfig(window="line", window_max_loss=1.5, **rule)
    assert GuidanceConfig(window_max_loss=1.5, **rule) == named


def test_an_option_that_names_a_rule_replaces_the_default_one(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("student: {model: S}\ndata: {train: c}\ntrain: {steps: 1}\noutput: o\n")
    for options in ({}, {"top_fraction": 0.4}, {"method": "rho1"}, {"max_threshold": -1.0}):
        words = [f"--guidance.{name}={value}" for name, value in options.items()]
        config = parse(["--config", str(file), "--teacher.model=T", *words])
        assert config.guidance == GuidanceConfig(**options)
        again = tmp_path / "again.yaml"
        again.write_text(yaml.safe_dump({"guidance": asdict(config.guidance)}))
        both = ["--config", str(file), "--config", str(again), "--teacher.model=T"]
        assert parse(both).guidance == config.guidance


LINES = {"unit": "group", "top_fraction": None, "window": "line", "window_max_loss": 2.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_threshold": math.nan}, "a finite number"),
        ({"unit": "group", "aggregation": "sum"}, "omit it"),
        ({"aggregation": "mean"}, "or give guidance.top_fraction"),
        ({"normalize": "selected"}, "give only guidance.top_fraction"),
        ({"window": "line"}, "guidance.window: needs guidance.window_max_loss"),
        ({"window": 3, "window_max_loss": 1.0}, "guidance.window: expected one of line, or null"),
        ({"scope": "step"}, "guidance.scope: expected one of sequence, micro_batch, got"),
        ({"max_threshold": 0.0, "normalize": "selected"}, "use tokens"),
        ({"method": "kld", "window_max_loss": 1.0}, "guidance.window_max_loss: is for gu"),
        ({"method": "chunk", "max_threshold": 0.0}, "is for guidance.method vocagno and rho1"),
        ({"method": "rho1", "unit": "group"}, "is for guidance.method vocagno"),
        ({"method": "rho1", "criterion": "excess_and_entropy", "max_threshold": 0.0}, "quota"),
        ({"method": "vocagno", "chunks": 8}, "guidance.chunks: is for guidance.method chunk, not"),
        ({"criterion": "excess_and_entropy"}, "guidance.criterion: is for guidance.method rho1"),
        ({"method": "kld", "pairing": "aligned"}, "guidance.pairing: is for guidance.method uld"),
        ({"distillation_weight": 1.0}, "for guidance.method kld, uld, alm and distill, not"),
        ({"method": "uld", "distillation_weight": -1.0}, "distillation_weight must be at least 0"),
        ({"method": "chunk", "chunks": 0}, "guidance.chunks must be at least 1, got 0"),
        ({"method": "chunk", "scope": "micro_batch"}, "guidance.scope: micro_batch: chunks are"),
        ({"method": "chunk", "normalize": "selected"}, "guidance.normalize: selected: how many"),
        ({"window_max_loss": -2.0}, "window_max_loss must be above 0 nats a byte, got -2.0"),
        ({"top_fraction": 0.0}, r"guidance\.top_fraction must be in \(0, 1\]"),
        ({"top_fraction": 1.5}, r"guidance\.top_fraction must be in \(0, 1\]"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GuidanceConfig(**options)


def test_the_weight_of_uld_is_the_papers_unless_it_is_given():
    assert GuidanceConfig(method="uld").weight_of_distance == 0.5
    assert GuidanceConfig(method="uld", distillation_weight=0.0).weight_of_distance == 0.0
