"""Fixtures of the tests of `python -m research.study`."""

import json

import pytest
import yaml


@pytest.fixture
def study_config(config, corpus):
    """Writes the configuration of a tiny run with held-out text; options are those of `train`."""
    return lambda **train: config(data={"validation": str(corpus)}, train=train)


@pytest.fixture
def plan_file(tmp_path, study_config):
    """Writes a plan over a tiny run; options override its parts."""
    config = study_config(steps=2)

    def write(**parts):
        variants = {"cpt": {"guidance.method": "cpt"}, "top 20 %": {"guidance.top_fraction": 0.2}}
        plan = {"config": str(config), "seeds": [0, 1], "baseline": "cpt", "variants": variants}
        plan["tables"] = {"methods": list(variants)}
        path = tmp_path / "plan.yaml"
        text = yaml.safe_dump(plan | parts, sort_keys=False)
        path.write_text(text)
        return path

    return write


def log_line(**entry):
    return json.dumps({"step": 2, "tokens": 100, "tokens_per_s": 10.0} | entry) + "\n"


@pytest.fixture
def trained(monkeypatch):
    """Stands for training; the runs that were trained, by name. A seed's loss is 1 + seed / 10, 0.5
    less if tokens are chosen."""
    from research.study import carrying_out

    names = []

    def train(run):
        names.append(run.name)
        seed = run.seed or 0
        loss = 1 + seed / 10 - 0.5 * ("cpt" not in run.name)
        lines = log_line(loss=9.0, kept_fraction=0.4) + log_line(validation_loss=loss)
        (run.folder / "metrics.jsonl").write_text(lines)
        return {"cpu_seconds": 10.0 + seed + ("cpt" not in run.name), "peak_memory_mib": 100.0}

    monkeypatch.setattr(carrying_out, "train", train)
    return names
