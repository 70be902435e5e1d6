"""Batches drawn at random, and losses on all logits."""

import pytest

from vocagno.models.head import LanguageHead

torch = pytest.importorskip("torch")


NAN = float("nan")


ROWS, LENGTH, HIDDEN, VOCABULARY = 3, 17, 8, 50


def batch(vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, vocabulary, (ROWS, LENGTH), generator=generator)
    labels[1, -4:] = -100
    teacher = torch.rand(ROWS, LENGTH, generator=generator) * 4
    teacher[:, ::5] = NAN
    return labels, teacher


def heads():
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=generator)
    bias = torch.randn(VOCABULARY, generator=generator)
    return {
        "weights": LanguageHead(weight),
        "bias": LanguageHead(weight, bias),
        "scale": LanguageHead(weight, None, 0.25),
        "soft cap": LanguageHead(weight, None, 1.0, 3.0),
        "all": LanguageHead(weight, bias, 1.5, 5.0),
    }


def dense_losses(hidden, head, labels):
    """In float64, straight from the definitions."""
    logits = hidden.double() @ head.weight_VH.double().T
    if head.bias_V is not None:
        logits = logits + head.bias_V.double()
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction="none"
    )
    return flat.view(labels.shape)


def check_close(ours, expected, tolerance=1e-5):
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.grad.dtype == mine.dtype
        assert theirs.grad.norm() > 0
        difference = (mine.grad.double() - theirs.grad.double()).norm() / theirs.grad.norm()
        assert difference <= tolerance


def states():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, LENGTH, HIDDEN, generator=generator)


def with_gradients(hidden, head):
    """Copies that take gradients, and a function that returns them."""
    hidden = hidden.clone().requires_grad_()
    weight = head.weight_VH.clone().requires_grad_()
    bias = None if head.bias_V is None else head.bias_V.clone().requires_grad_()
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    return hidden, LanguageHead(weight, bias, head.scale, head.softcap), leaves
