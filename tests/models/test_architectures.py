"""Every causal architecture of transformers: its losses and its gradients are its own, or it is
refused; and docs/models.md says which."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from architectures import (
    ARCHITECTURES,
    MISSING_PACKAGES,
    TRANSFORMERS,
    VOCABULARY,
    outcome_of,
    row,
    summary,
)
from vocagno.config.guidance import GuidanceConfig
from vocagno.models.head import hidden_states
from vocagno.models.losses import IGNORED, chunked_nll
from vocagno.training.step import GuidedStudent

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROWS, LENGTH, PADDING = 2, 24, 6


@pytest.fixture(autouse=True, scope="module")
def quiet():
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


def batch():
    """Ids, labels and teacher losses; the second row is padded at its end."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY - 8, (ROWS, LENGTH + 1), generator=generator)
    inputs, labels = ids[:, :-1].clone(), ids[:, 1:].clone()
    inputs[1, -PADDING:], labels[1, -PADDING:] = 0, IGNORED
    teacher = 4 + torch.rand(labels.shape, generator=generator)
    return inputs, labels, teacher.where(labels != IGNORED, torch.nan)


def own_nll(model, inputs, labels):
    """From the model's own logits, all at once; 0 where nothing is predicted."""
    logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.double().flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*its own code computes them")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_architecture_has_its_own_losses_or_is_refused(architecture):
    outcome = outcome_of(architecture)
    is_installed = importlib.util.find_spec(MISSING_PACKAGES.get(architecture, "?")) is not None
    if transformers.__version__.startswith(f"{TRANSFORMERS}.") and not is_installed:
        assert row(architecture, outcome) in PAGE.read_text().splitlines()
    if outcome.head is not None:
        check_losses(outcome.model, outcome.head)
        check_step(outcome.model)


def check_losses(model, head):
    inputs, labels, _ = batch()
    is_asked = labels != IGNORED
    with torch.no_grad():
        torch.manual_seed(2)
        expected = own_nll(model, inputs, labels)
        torch.manual_seed(2)
        states = hidden_states(model, inputs).flatten(0, 1)
        nll = chunked_nll(states, head, labels.flatten().clamp_min(0))
        torch.manual_seed(2)
        alone = own_nll(model, inputs[1:, :-PADDING], labels[1:, :-PADDING])
    asked = is_asked.flatten()
    assert expected[asked].std() > 1e-2  # else nothing is compared
    torch.testing.assert_close(nll[asked].double(), expected[asked], rtol=0, atol=1e-5)
    padded = expected.view(labels.shape)[1, :-PADDING]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-5)  # neither padding nor other rows


def check_step(model):
    """One optimizer step of a guided student, and its gradients from the model's own logits."""
    inputs, labels, teacher = batch()
    student = GuidedStudent(model, GuidanceConfig(top_fraction=0.5)).train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    torch.manual_seed(2)
    output = student(inputs, labels, teacher)
    output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    optimizer.zero_grad()
    torch.manual_seed(2)
    (own_nll(model, inputs, labels) * output.weights_BT.flatten()).sum().backward()
    largest = max(p.grad.norm() for p in model.parameters() if p.grad is not None)
    assert output.weights_BT.sum() == 21
    assert largest.isfinite()
    assert largest > 0
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        difference = (gradients.get(name, torch.zeros_like(expected)) - expected).norm()
        assert difference <= 1e-5 * largest + 1e-4 * expected.norm(), name
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert any(moved)
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_page_names_every_architecture():
    if not transformers.__version__.startswith(f"{TRANSFORMERS}."):
        pytest.skip(f"the page is about transformers {TRANSFORMERS}")
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in rows] == list(ARCHITECTURES)
    assert summary(rows) in PAGE.read_text().splitlines()
