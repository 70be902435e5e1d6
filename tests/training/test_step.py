"""Schedule, parameter groups, the state of the optimizer, and compiled layers under DDP."""

from contextlib import nullcontext
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from runs import metrics, train_here
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import OptimizerConfig, TrainConfig
from vocagno.errors import ConfigError
from vocagno.models.loading import graphs_stay_whole
from vocagno.training import loop
from vocagno.training.step import (
    GuidedStudent,
    Stepper,
    build_optimizer,
    learning_rate,
    loss_scale,
    settle_optimizer,
)


def test_the_schedule_by_hand():
    config = OptimizerConfig(lr=1.0, min_lr=0.1, warmup_steps=4)
    rates = [learning_rate(step, 13, config) for step in range(13)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.55)  # half way down
    assert rates[12] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[4:]))


def test_other_schedules_by_hand():
    settings = {"lr": 1.0, "min_lr": 0.2, "warmup_steps": 2}

    def rates(steps, **options):
        config = OptimizerConfig(**settings, **options)
        return [round(learning_rate(step, steps, config), 6) for step in range(steps)]

    assert rates(5, schedule="constant") == [0.5, 1, 1, 1, 1]
    assert rates(7, schedule="linear") == [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2]
    assert rates(9, schedule="wsd") == [0.5, 1, 1, 1, 1, 1, 1, 0.6, 0.2]
    # A decay that would begin in the warm-up begins behind it.
    assert rates(3, schedule="wsd") == rates(3, schedule="linear")


def test_norms_are_not_decayed():
    model = tiny_llama(20)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3))
    decayed, undecayed = optimizer.param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.3, 0.0)
    assert {p.ndim for p in undecayed["params"]} == {1}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(list(model.parameters()))


def test_the_scale_undoes_both_averages():
    assert loss_scale(num_processes=4, accumulation=2, count=10) == 0.8
    assert loss_scale(1, 1, 0) == 1  # nothing kept: a loss of 0 stays one


def test_an_uneven_cut_of_a_step_is_refused():
    config = TrainConfig(steps=1, global_batch=8, micro_batch=3)
    with pytest.raises(ConfigError, match=r"not a multiple of train\.micro_batch 3 x 2 processes"):
        config.accumulation(2)


@pytest.mark.slow
def test_a_step_is_divided_by_the_tokens_that_normalize_names(tmp_path, config):
    """Both gradients are one sum, divided by the predicted tokens or by the kept ones."""
    entries = {}
    for name in ("tokens", "selected"):
        options = {"guidance": {"normalize": name}, "train": {"steps": 1, "log_every": 1}}
        assert train_here(config(output=str(tmp_path / name), **options)) == 0
        (entries[name],) = metrics(tmp_path / name)[0]
    kept = entries["tokens"]["kept_fraction"]
    assert 0.3 < kept < 0.6
    expected = kept * entries["selected"]["grad_norm"]
    assert entries["tokens"]["grad_norm"] == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def one_process():
    """A process group that holds this process alone."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ddp_does_not_cut_the_graphs_of_layers(one_process):
    """Buckets of less than a layer, as they are for a large model."""
    from torch.nn.parallel import DistributedDataParallel

    num_graphs = {}
    for scope in (nullcontext, graphs_stay_whole):
        torch._dynamo.reset()
        model, graphs = tiny_llama(20, hidden_size=256, intermediate_size=512), []

        def backend(module, _, graphs=graphs):
            graphs.append(module)
            return module.forward

        for layer in model.model.layers:
            layer.compile(backend=backend)
        student = DistributedDataParallel(
            GuidedStudent(model, GuidanceConfig(top_fraction=0.4)), bucket_cap_mb=1.1
        )
        ids = torch.arange(24).view(2, 12) % 7
        with scope():
            student(ids, ids, torch.rand(2, 12)).loss.backward()
        num_graphs[scope] = len(graphs)
    assert num_graphs == {nullcontext: 4, graphs_stay_whole: 2}
    assert torch._dynamo.config.optimize_ddp  # for others in this process


@pytest.mark.slow
def test_a_compiled_run_does_not_cut_its_graphs_for_ddp(config, monkeypatch):
    seen, step = [], Stepper.step

    def watched(self, *arguments, **options):
        seen.append(torch._dynamo.config.optimize_ddp)
        return step(self, *arguments, **options)

    monkeypatch.setattr(Stepper, "step", watched)
    monkeypatch.setattr(loop, "compile_layers", lambda model: seen.append("compiled"))
    assert train_here(config(train={"steps": 1, "compile": True})) == 0
    assert seen == ["compiled", False]
    assert torch._dynamo.config.optimize_ddp


def test_on_cuda_one_kernel_updates_all_weights():
    model = tiny_llama(20)
    for device, expected in ((None, None), ("cpu", None), ("cuda", True)):
        place = None if device is None else torch.device(device)
        optimizer = build_optimizer(model, OptimizerConfig(), place)
        assert [group["fused"] for group in optimizer.param_groups] == [expected] * 2


@pytest.mark.parametrize(("device", "fused"), [("cuda", True), ("cpu", None)])
def test_a_loaded_state_is_put_where_the_updates_want_it(device, fused):
    """Saved with the other implementation; fake tensors of a GPU that need not be there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = torch.nn.Linear(2, 2, device=device)
        optimizer = build_optimizer(model, OptimizerConfig(), torch.device(device))
        elsewhere = "cpu" if fused else "cuda"
        for parameter in model.parameters():
            optimizer.state[parameter] = {"step": torch.ones((), device=elsewhere)}
        for group in optimizer.param_groups:
            group["fused"] = None if fused else True
        settle_optimizer(optimizer, torch.device(device))
        counts = [optimizer.state[parameter]["step"] for parameter in model.parameters()]
    assert {count.device.type for count in counts} == {device}
    assert [group["fused"] for group in optimizer.param_groups] == [fused] * 2
