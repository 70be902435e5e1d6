"""Schedule, parameter groups, and what a factor on the loss does under Adam."""

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from conftest import tiny_llama
from vocagno.config import OptimizerConfig, TrainConfig
from vocagno.errors import ConfigError
from vocagno.training.optimization import build_optimizer, learning_rate, loss_scale


def test_the_schedule_by_hand():
    config = OptimizerConfig(lr=1.0, min_lr=0.1, warmup_steps=4)
    rates = [learning_rate(step, 13, config) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55)  # half way down
    assert rates[12] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[4:]))


def test_norms_are_not_decayed():
    model = tiny_llama(20)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3))
    decayed, others = optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in others["params"]} == {1}
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_the_scale_undoes_both_averages():
    assert loss_scale(num_processes=4, accumulation=2, count=10) == 0.8
    assert loss_scale(1, 1, 0) == 1  # nothing kept: a loss of 0 stays one


def test_an_uneven_cut_of_a_step_is_refused():
    config = TrainConfig(steps=1, global_batch=8, micro_batch=3)
    with pytest.raises(ConfigError, match=r"not a multiple of train\.micro_batch 3 x 2 processes"):
        config.accumulation(2)


def trained(factor, max_norm, eps=1e-30):
    """Weights after some steps on a loss with a factor, and the norms of the gradients."""
    model = tiny_llama(20)
    optimizer = build_optimizer(model, OptimizerConfig(lr=3e-3, eps=eps))
    ids = torch.arange(12)[None] % 7
    norms = []
    for _ in range(12):
        (model(input_ids=ids, labels=ids).loss * factor).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), norms


def test_adam_cancels_a_factor_on_the_loss_and_clipping_does_not():
    """What tells `normalize: tokens` from `selected` is a factor, the share of tokens kept."""
    nowhere = float("inf")
    weights, norms = trained(1.0, nowhere)
    doubled, _ = trained(2.0, nowhere)
    assert torch.equal(weights, doubled)  # a power of two, so to the last bit
    limit = 1.01 * max(norms)
    assert torch.equal(weights, trained(1.0, limit)[0])  # clips nothing here,
    assert not torch.equal(weights, trained(2.0, limit)[0])  # but some steps of twice the loss
