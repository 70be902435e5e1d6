"""Batches drawn at random, and losses on all logits."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.guidance import GuidanceTensors, Units, known_weights
from vocagno.models.head import LanguageHead
from vocagno.models.losses import IGNORED

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


def dense_logits(hidden, head):
    """In float64, straight from the definitions."""
    logits = hidden.double() @ head.weight_VH.double().T
    if head.bias_V is not None:
        logits = logits + head.bias_V.double()
    logits = logits * head.scale
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    return logits


def dense_losses(hidden, head, labels):
    logits = dense_logits(hidden, head)
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction="none"
    )
    return flat.view(labels.shape)


def check_close(leaves, expected, tolerance=1e-5):
    for leaf, reference in zip(leaves, expected, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert reference.grad.norm() > 0
        difference = (leaf.grad.double() - reference.grad.double()).norm() / reference.grad.norm()
        assert difference <= tolerance


def states(shape=(ROWS, LENGTH)):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, HIDDEN, generator=generator)


def with_gradients(hidden, head):
    """Returns copies that take gradients, and the list of those tensors."""
    hidden = hidden.clone().requires_grad_()
    weight = head.weight_VH.clone().requires_grad_()
    bias = None if head.bias_V is None else head.bias_V.clone().requires_grad_()
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    return hidden, LanguageHead(weight, bias, head.scale, head.softcap), leaves


def drawn_units(seed, rows=3, tokens=24):
    """Losses, groups and lines of a batch in which some tokens are padding or have no teacher. The
    numbers of groups jump, and say nothing but where a group ends."""
    rng = np.random.default_rng(seed)
    nll = rng.exponential(2, (rows, tokens)).astype(np.float32)
    labels = np.where(rng.random((rows, tokens)) < 0.1, IGNORED, 1)
    starts = rng.random((rows, tokens)) < 0.6
    starts[:, 0] = True
    groups = np.cumsum(starts).reshape(rows, tokens) - 1
    teacher, of_groups = rng.exponential(1, (2, groups.max() + 1)).astype(np.float32)[:, groups]
    broken = rng.random(groups.max() + 1) < 0.15
    for number in np.unique(groups):
        broken[number] |= (labels[groups == number] == IGNORED).any()
    teacher[broken[groups]] = of_groups[broken[groups]] = NAN
    groups = np.where(broken[groups], -1, rng.permutation(10**6)[groups])
    lines = np.cumsum(rng.random((rows, tokens)) < 0.2).reshape(rows, tokens)
    lines += np.arange(rows)[:, None]  # no line goes on in the next row
    sizes = rng.integers(1, 6, (rows, tokens), np.int32)
    arrays = (nll, teacher, labels, groups, lines, sizes, of_groups)
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    groups, lines, sizes, of_groups = tensors[3:]
    return *tensors[:3], Units(
        lines_BT=lines, bytes_BT=sizes, groups_BT=groups, group_loss_BT=of_groups
    )


def tensors_of(teacher, labels, units, config):
    """What a batch has for a rule."""
    weight = None
    if config.has_line_rule:
        weight = known_weights(teacher, labels, units, config)
    return GuidanceTensors(teacher_loss=teacher, weight=weight, groups=units.groups_BT)
