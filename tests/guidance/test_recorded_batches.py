"""Batches and losses as they were recorded: no rewriting of the collator or of a loss changes them.

All inputs are drawn by NumPy. What no processor can change (ids, numbers, weights, counts) is
compared exactly, as a hash of its bytes; losses and gradients to 1e-6 and 1e-5. After a change that
is meant: `python tests/guidance/test_recorded_batches.py`, with tests/support on PYTHONPATH.
"""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import cut_rows, join_documents
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.guidance.collator import Collator
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import SameRows, ScoresInOrder
from vocagno.models.head import LanguageHead
from vocagno.models.losses import TeacherStates
from vocagno.teacher.score_store import DocumentScores
from vocagno.tokens.token_spans import TokenizedTexts

RECORDED = Path(__file__).with_name("recorded_batches.json")
VOCABULARY, HIDDEN, SEQ_LEN = 50, 8, 24
NO_QUOTA = {"top_fraction": None}
RULES = {
    "default": {},
    "paper": {"top_fraction": 0.4},
    "paper, mean": {"top_fraction": 0.4, "unmapped": "mean", "scope": "micro_batch"},
    "groups": {"unit": "group", "max_threshold": 0.0, **NO_QUOTA},
    "lines of groups": {"unit": "group", "max_threshold": 1.0, "window_max_loss": 0.5},
    "lines of tokens": {"unit": "token", "window_max_loss": 0.5},
    "chunks": {"method": "chunk", "chunks": 4, "top_fraction": 0.5},
    "alm": {"method": "alm"},
    "distill": {"method": "distill"},
    "distill everywhere": {"method": "distill", "distill_where": "all"},
    "rho1": {"method": "rho1", "top_fraction": 0.4},
    "kld": {"method": "kld"},
    "uld": {"method": "uld"},
    "cpt": {"method": "cpt"},
}


def side(rng, sizes):
    """Tokens of texts of these lengths: ids, spans and where each text begins."""
    spans, cu_seqlens = [], [0]
    for size in sizes:
        cuts = np.flatnonzero(np.append(rng.random(size - 1) < 0.4, True)) + 1
        spans.append(np.stack([np.append(0, cuts[:-1]), cuts], 1))
        cu_seqlens.append(cu_seqlens[-1] + len(cuts))
    joined = np.concatenate(spans).astype(np.int32)
    ids = rng.integers(3, VOCABULARY, len(joined), np.int32)
    return TokenizedTexts(ids, joined, np.array(cu_seqlens), np.ones(len(sizes), bool))


def batch_of(rule, isolate):
    """The rows of six texts, some of them prompts, collated under a rule."""
    rng, sizes = np.random.default_rng(0), [40, 3, 95, 60, 1, 33]
    student, teacher = side(rng, sizes), side(rng, sizes)
    if rule.method == "rho1":
        teacher = student
    nll = rng.exponential(1, len(teacher.ids)).astype(np.float16)
    nll[rng.random(len(nll)) < 0.05] = np.nan
    parts = map(teacher.text, range(len(sizes)))
    documents = [DocumentScores(teacher.spans[part], nll[part]) for part in parts]
    rows = cut_rows(join_documents(student, 0, (1,), 2, [0, 0, 30, 0, 0, 33]), SEQ_LEN)
    ends = np.arange(VOCABULARY) % 7 == 0
    data = DataConfig(train="", seq_len=SEQ_LEN, isolate=isolate)
    # Buckets are of tokenizers, so the columns of candidates are drawn here.
    made_for = replace(rule, method="alm", distill_where="surer") if rule.needs_candidates else rule
    scores = SameRows() if rule.needs_distributions else ScoresInOrder(documents)
    return rng, Collator(None if rule.method == "cpt" else scores, made_for, data, ends)(rows)


def with_drawn(rng, batch, rule):
    """A batch with candidates, or with the states of a teacher, if the rule needs them."""
    labels = batch.labels_BT
    if rule.needs_candidates:
        bucket = rng.permuted(np.tile(np.arange(-2, 10), (*labels.shape, 1)), axis=-1)[..., :3]
        bucket = torch.from_numpy(bucket.clip(-1).astype(np.int32))
        bucket[..., 1:][bucket[..., 1:] == bucket[..., :1]] = -1
        mass = torch.from_numpy(rng.random((*labels.shape, 3)).astype(np.float32) / 3)
        entropy = torch.from_numpy(rng.random((*labels.shape, 1)).astype(np.float32) * 8)
        ids, begins = torch.arange(VOCABULARY), torch.arange(0, VOCABULARY + 1, 5)
        return replace(
            batch,
            candidates=bucket,
            candidate_mass=mass.masked_fill(bucket < 0, 0),
            candidate_entropy=entropy,
            buckets=BucketTable(ids, begins, [3], (1.0,), VOCABULARY, "drawn"),
        )
    if rule.needs_distributions:
        states, weight = (rng.normal(size=(n, HIDDEN)) for n in (30, VOCABULARY))
        head = LanguageHead(torch.from_numpy(weight).float())
        partner = torch.from_numpy(rng.integers(-1, 30, labels.shape))
        states = TeacherStates(torch.from_numpy(states).float(), head, partner)
        return replace(batch, teacher_states=states)
    return batch


def recorded(name, isolate=False):
    """What is compared of a rule: hashes, and numbers."""
    rule = GuidanceConfig(**RULES[name])
    rng, batch = batch_of(rule, isolate)
    exact = {
        column: sha256(np.ascontiguousarray(value)).hexdigest()[:16]
        for column, value in sorted(vars(batch).items())
        if isinstance(value, torch.Tensor) and (column == "weight" or not value.is_floating_point())
    }
    batch = with_drawn(rng, batch, rule)
    states = rng.normal(size=(*batch.labels_BT.shape, HIDDEN)).astype(np.float32)
    weight = rng.normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    hidden, weight = (torch.from_numpy(array).requires_grad_() for array in (states, weight))
    output = method_of(rule).loss(hidden, LanguageHead(weight), batch)
    output.loss.backward()
    numbers = [output.loss, hidden.grad.norm(), weight.grad.norm(), batch.teacher_loss.nansum()]
    kept = sha256(output.weights_BT.numpy()).hexdigest()[:16]
    return {
        "exact": exact | {"kept": kept, "counts": list(batch.counts)},
        "numbers": [float(number.detach()) for number in numbers],
    }


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_batch_and_its_loss_are_as_recorded(name, isolate):
    expected = json.loads(RECORDED.read_text())[f"{name}{', isolated' * isolate}"]
    record = recorded(name, isolate)
    assert record["exact"] == expected["exact"]
    assert record["numbers"] == pytest.approx(expected["numbers"], rel=1e-5)
    assert record["numbers"][0] == pytest.approx(expected["numbers"][0], rel=1e-6)


if __name__ == "__main__":
    cases = [(name, isolate) for name in RULES for isolate in (False, True)]
    lines = [
        f"{json.dumps(name + ', isolated' * isolate)}: {json.dumps(recorded(name, isolate))}"
        for name, isolate in cases
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
