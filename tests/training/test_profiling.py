"""Traces of training steps."""

import gzip
import json

import pytest

pytest.importorskip("accelerate")

from runs import train_here
from vocagno.config.options import TrainConfig
from vocagno.errors import ConfigError


def test_the_steps_that_are_asked_for_are_traced(tmp_path, config):
    assert train_here(config(train={"steps": 6, "profile_steps": 2})) == 0
    (trace,) = (tmp_path / "run" / "profile").iterdir()
    assert trace.name == "process-0.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = [one["name"] for one in events if one.get("name", "").startswith("ProfilerStep")]
    assert sorted(set(steps)) == ["ProfilerStep#2", "ProfilerStep#3"]
    assert any("aten::" in str(one.get("name")) for one in events)


def test_without_it_nothing_is_written(tmp_path, config):
    assert train_here(config(train={"steps": 1})) == 0
    assert not (tmp_path / "run" / "profile").exists()


def test_a_negative_number_is_refused():
    with pytest.raises(ConfigError, match=r"train\.profile_steps must be at least 0"):
        TrainConfig(steps=1, profile_steps=-1)
