"""A method of guidance is an object: nothing else asks which method a run has. So it may also be a
class of a user's own."""

import math
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from runs import TRAIN, cut_back, metrics, run, same_weights, train_here
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.guidance import MethodName as Name
from vocagno.errors import ConfigError
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidanceTensors,
    GuidedTrainer,
    count_kept,
    selective_cross_entropy,
)
from vocagno.guidance.batch import TokenCounts, made_for
from vocagno.guidance.methods import METHODS, method_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "vocagno"
ASKS = re.compile(
    r"(guidance|config)\.method\s*(==|!=|in\b|not in\b)|\.(selects|distils|is_random)\b"
)


def test_no_name_of_a_method_is_compared_elsewhere():
    lines = []
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] == "config" or place.parts[:2] == ("guidance", "methods"):
            continue
        lines += [f"{place}: {line}" for line in path.read_text().splitlines() if ASKS.search(line)]
    assert lines == []


def test_every_name_has_a_class_of_its_own():
    assert set(METHODS) == set(Name.__args__)
    assert len(set(METHODS.values())) == len(METHODS)


RULES = """
from vocagno.guidance.methods.matching import Distill
from vocagno.guidance.methods.selection import Chunk

class Towards(Distill):
    pass

number = 4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which has the rule of CONTRIBUTING.md in `my_rules.py`."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (rule,) = (block for block in blocks if "class Attainable" in block)
    (tmp_path / "my_rules.py").write_text(rule + RULES)
    (tmp_path / "my_broken.py").write_text("import no_such_module")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    sys.modules.pop("my_rules", None)


def attainable(nll, teacher, labels, fraction):
    """Its weights of a row, from its definition."""
    predicted = [i for i, label in enumerate(labels) if label >= 0]
    ranked = [i for i in predicted if teacher[i] < 2]
    ranked.sort(key=lambda i: (-nll[i], i))
    kept = ranked[: math.ceil(fraction * len(ranked))]
    kept += [i for i in predicted if math.isnan(teacher[i])]
    return [float(i in kept) for i in range(len(labels))]


def test_a_rule_of_ones_own_chooses(folder):
    guidance = GuidanceConfig(method="my_rules:Attainable", top_fraction=0.25)
    torch.manual_seed(0)
    labels = torch.randint(0, 9, (3, 40)).where(torch.rand(3, 40) < 0.8, -100)
    teacher = (4 * torch.rand(3, 40)).where(torch.rand(3, 40) < 0.8, torch.nan)
    hidden, head = torch.randn(3, 40, 8), torch.randn(9, 8)
    loss, metrics = selective_cross_entropy(hidden, head, labels, teacher, guidance)
    nll = torch.nn.functional.cross_entropy((hidden @ head.T).mT, labels, reduction="none")
    rows = zip(nll.tolist(), teacher.tolist(), labels.tolist(), strict=True)
    weights = torch.tensor([attainable(*row, 0.25) for row in rows])
    assert torch.equal(metrics.weights_BT, weights)
    assert 0 < weights.sum() < (labels >= 0).sum() / 2
    assert loss.item() == pytest.approx((nll * weights).sum().item(), rel=1e-5)
    with pytest.raises(ValueError, match="known only after the forward pass"):
        count_kept(teacher, labels, guidance)
    again = pickle.loads(pickle.dumps(method_of(guidance)))  # for the workers of a DataLoader
    chosen = again.choose(nll, labels, GuidanceTensors(teacher_loss=teacher))
    assert torch.equal(chosen.weights_BT, weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "attainable"}, r"expected one of vocagno, .*, cpt, or MODULE:CLASS"),
        ({"method": "my_rulez:Attainable"}, "No module named 'my_rulez'; start in the folder of"),
        ({"method": "my_broken:Rule"}, "my_broken:Rule: No module named 'no_such_module'"),
        ({"method": "my_rules:Attainible"}, "expected a class of my_rules that .*, got None"),
        ({"method": "my_rules:number"}, "derives from .*TokenSelection, got 4"),
        ({"method": "my_rules:Chunk"}, "derives from .*TokenSelection, got <class"),
        ({"method": "my_rules:Towards"}, "derives from .*TokenSelection, got <class"),
        ({"chunks": 4}, "guidance.chunks: is for guidance.method chunk, not my_rules:Attainable"),
        ({"normalize": "selected"}, "guidance.normalize: selected: only a quota"),
    ],
)
def test_what_is_no_rule_is_refused(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        method_of(GuidanceConfig(**{"method": "my_rules:Attainable"} | options))


@pytest.mark.parametrize("weight", ["-0.5", "1.5", "float('nan')"])
def test_a_rule_that_gives_no_shares_is_refused(folder, weight):
    """Below 0 a token would not train, and count in the loss that is reported."""
    rule = folder / "my_rules.py"
    rule.write_text(
        rule.read_text().replace("| included_BT).float()", f"| included_BT) * {weight}")
    )
    guidance = GuidanceConfig(method="my_rules:Attainable")
    labels, teacher = torch.arange(8).view(1, 8), torch.full((1, 8), 1.0)
    with pytest.raises(ValueError, match=r"its `choose` gives weights from .*; expected shares"):
        selective_cross_entropy(torch.randn(1, 8, 4), torch.randn(9, 4), labels, teacher, guidance)


@pytest.mark.slow
def test_a_trainer_by_a_rule_of_ones_own(folder):
    """Of nine predicted tokens the teacher predicts four well, and 0.4 of these are two."""
    from transformers import TrainingArguments

    guidance = GuidanceConfig(method="my_rules:Attainable")
    counts = TokenCounts(with_text=9, mapped=9, scorable=9, scored=9)
    columns = {"input_ids": np.arange(10), "labels": np.arange(10), "token_counts": counts}
    columns |= {"teacher_loss": np.float32([1, 3] * 5), "made_for": made_for(guidance, "")}
    options = {"use_cpu": True, "report_to": [], "save_strategy": "no", "logging_steps": 1}
    trainer = GuidedTrainer(
        tiny_llama(50),
        TrainingArguments(str(folder / "out"), max_steps=1, **options),
        guidance=guidance,
        train_dataset=[columns] * 8,
        data_collator=DataCollatorWithTeacherLoss(guidance),
    )
    trainer.train()
    assert trainer.state.log_history[0]["kept_fraction"] == 2 / 9


@pytest.mark.slow
def test_a_run_by_a_rule_of_ones_own(folder, config, capsys):
    """With a worker, a page, a card and a resume, by `train.py` as it is."""
    rule = folder / "my_rules.py"
    rule.write_text(rule.read_text().replace("2.0", "6.3"))  # this teacher knows nothing
    guidance = {"method": "my_rules:Attainable"}
    train = {"sample_every": 6, "checkpoint_every": 3}
    path = config("run", guidance=guidance, train=train, data={"num_workers": 1})
    assert train_here(path, "--guidance.method", "my_rulez:Attainable") == 2
    assert "No module named 'my_rulez'" in capsys.readouterr().err
    assert not (folder / "cache").exists()  # before anything is scored
    run(1, TRAIN, "--config", path)
    whole = folder / "run"
    for entry in metrics(whole)[0]:
        ranked = entry["kept_fraction"] * entry["tokens"] - sum(entry["unmapped"].values())
        assert 0.1 < ranked / entry["tokens"] < 0.4
    card = (whole / "final" / "README.md").read_text()
    assert "Trained on the student's hardest tokens, of those that the teacher pre" in card
    assert "| method | `my_rules:Attainable` |" in card
    assert "\n- Attainable\n" in card
    page = (whole / "samples" / "step_6.html").read_text()
    assert set(re.findall(r"(?:kept|dropped) \((\w+)\)", page)) == {"kept", "dropped"}
    resumed, changed = (cut_back(whole, folder / name) for name in ("resumed", "changed"))
    assert train_here(path, "--output", resumed) == 0
    assert same_weights(whole, resumed)
    rule.write_text(rule.read_text().replace("number = 4", "number = 5"))  # of the same module
    assert train_here(path, "--output", changed) == 2
    assert "was made with another source of the rule" in capsys.readouterr().err
