"""torchtitan's `Trainer` with `examples/megatron_loss.py`, next to a plain loop.

PYTHONPATH=benches:examples python -m bridges.torchtitan MATERIAL

torchtitan asks which accelerator there is, and takes CUDA if there is none. It is told that it is
the CPU; FSDP2 and the process group are those of its own start.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torchtitan.tools import utils

utils.device_type = "cpu"
utils.device_module = SimpleNamespace(
    current_device=lambda: 0,
    device_count=lambda: 1,
    empty_cache=lambda: None,
    get_device_name=lambda _: "CPU",
    get_device_properties=lambda _: SimpleNamespace(total_memory=1),
    memory_stats=lambda _: {},
    reset_peak_memory_stats=lambda: None,
    set_device=lambda _: None,
    synchronize=lambda: None,
)

from megatron_loss import guided_trainer
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from bridges.comparison import (
    ADAMW,
    LEARNING_RATE,
    LENGTH,
    MAX_NORM,
    ROWS,
    STEPS,
    Rows,
    Run,
    of_rows,
    report,
)
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.integrations.baked_files import BakedLosses


class Loader(BaseDataLoader):
    """The rows, with the weights of their labels next to the input."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        rows: Rows

    def __init__(self, config: Config, **_: Any) -> None:
        self.rows = config.rows

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        steps = zip(self.rows.labels(), self.rows.candidates(), strict=True)
        for (inputs_BT, labels_BT, weights_BT), (bucket_BTK, mass_BTK) in steps:
            streams = {"weight": weights_BT, "candidates": bucket_BTK, "candidate_mass": mass_BTK}
            yield {"input": inputs_BT, **streams}, labels_BT

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class NoTokenizer(BaseTokenizer):
    """The rows are ids."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    decode = get_vocab_size = encode


def tiny() -> ModelSpec:
    """Two layers of the debug model, with attention that a CPU computes without compiling."""
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def train(rows: Rows, table: BucketTable, folder: str) -> tuple[Run, torch.nn.Module]:
    """Trains. Returns the run, and a plain model with the weights that it started from."""
    config = Trainer.Config(
        model_spec=tiny(),
        dump_folder=folder,
        loss=CrossEntropyLoss.Config(),
        tokenizer=NoTokenizer.Config(),
        dataloader=Loader.Config(rows=rows),
        optimizer=default_adamw(lr=LEARNING_RATE, **ADAMW),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=0, decay_ratio=0.0, min_lr_factor=1.0
        ),
        training=TrainingConfig(
            local_batch_size=ROWS,
            seq_len=LENGTH,
            steps=STEPS,
            max_norm=MAX_NORM,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
    )
    config.debug.seed = 0
    trainer = guided_trainer(Trainer, table)(config)
    plain = config.model_spec.model.build()
    plain.init_weights()
    plain.load_state_dict(whole(trainer.model_parts[0]))
    losses: list[float] = []
    trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.append(loss)
    trainer.train()
    weights = whole(trainer.model_parts[0])
    trainer.close()
    return (losses, weights), plain


def whole(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights of a model, put together from all shards."""
    return {name: part.full_tensor().clone() for name, part in model.state_dict().items()}


def main() -> None:
    tokens = Path(sys.argv[1]) / "tokens.npy"
    rows, table = Rows.read(tokens), BakedLosses(tokens.with_suffix(".baked")).buckets()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 1, "RANK": 0}
    os.environ.update({name: str(value) for name, value in where.items()} | {"LOCAL_RANK": "0"})
    with tempfile.TemporaryDirectory() as folder:
        bridge, plain = train(rows, table, folder)
        permuted, _ = train(rows.permute(), table, folder)
    torch.distributed.destroy_process_group()
    report(
        "torchtitan",
        bridge,
        of_rows(plain, rows, table),
        permuted[0],
        compared="`guided_trainer(Trainer)` of the example, weights and `distill`: its `train`, "
        "FSDP2 on one process, its optimizer; the logged losses",
        differs="the device is a CPU, attention is `ScaledDotProductAttention`, no CUDA graphs",
    )


if __name__ == "__main__":
    main()
