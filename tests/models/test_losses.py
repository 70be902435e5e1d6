"""The causal shift, and the sum of the losses that train."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.models.losses import causal_shift, teacher_guided_loss


def test_the_shift_by_hand():
    inputs, labels = causal_shift(np.array([[5, 6, 7]], np.int32))
    assert inputs.tolist() == [[5, 6]]
    assert labels.tolist() == [[6, 7]]


def test_a_dropped_infinite_loss_does_not_poison_the_sum():
    nll = torch.tensor([[float("inf"), 2.0]], requires_grad=True)
    loss = teacher_guided_loss(nll, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss == 2.0
    assert nll.grad.tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="differ"):
        teacher_guided_loss(nll, torch.ones(1, 3))
