"""What a run does on other devices, on a machine that has none."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import Config, DataConfig, StudentConfig, TrainConfig
from vocagno.errors import ConfigError
from vocagno.guidance.batches import Batch
from vocagno.guidance.methods import method_of
from vocagno.guidance.tensors import TokenCounts
from vocagno.training import accelerator as accelerator_module
from vocagno.training.loop import Training


@pytest.mark.parametrize(("kind", "is_cpu"), [("mps", True), ("cuda", False), (None, False)])
def test_a_run_uses_no_gpu_of_apple(kind, is_cpu, tmp_path, monkeypatch):
    seen = []

    def noted(**options):
        seen.append(options["cpu"])
        raise ConfigError("started")

    found = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(accelerator_module.accelerate, "Accelerator", noted)
    config = Config(
        student=StudentConfig(model="unused"),
        data=DataConfig(train="unused"),
        train=TrainConfig(steps=1),
        guidance=GuidanceConfig(method="cpt"),
        output=tmp_path,
    )
    with pytest.raises(ConfigError, match="started"):
        accelerator_module.start(config)
    assert seen == [is_cpu]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", [(2, 4)]), ("cpu", [])])
def test_ranks_that_are_added_to_a_batch_are_pinned_too(device, pinned, monkeypatch):
    seen = []

    def pin(tensor):
        seen.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    training = Training.__new__(Training)
    training.method = method_of(GuidanceConfig(method="chunk", chunks=4, selection="random"))
    training.train, training.live = TrainConfig(steps=1), None
    training.accelerator = SimpleNamespace(device=torch.device(device))
    counts = TokenCounts(), np.zeros((2, len(TokenCounts._fields)), np.int64)
    micro = training._planned(Batch({"labels": torch.zeros(2, 8)}, *counts), range(2))
    assert micro.batch.tensors["chunk_rank"].shape == (2, 4)
    assert seen == pinned
