"""The plain loop with which `make bridges` compares other trainers."""

import pytest

torch = pytest.importorskip("torch")

from bridges.comparison import LEARNING_RATE, plain_loop


def test_the_plain_loop_takes_a_step_for_each_loss():
    """A loop over its own empty result took none, and compared no loss with the trainer's."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    losses, weights = plain_loop(model, [lambda: model.weight.sum()] * 3)
    # AdamW moves a weight whose gradient stays the same by the learning rate.
    assert losses == pytest.approx([1, 1 - LEARNING_RATE, 1 - 2 * LEARNING_RATE])
    assert weights["weight"].item() == pytest.approx(1 - 3 * LEARNING_RATE)
