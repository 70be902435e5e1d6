"""LitGPT's `pretrain` on a token file with baked weights, next to a plain loop.

PYTHONPATH=benches python -m bridges.litgpt MATERIAL

LitGPT gives its loss only logits and labels. `WeightedRows` hands out the rows of a batch and keeps
their weights for the loss, which stands in the place of LitGPT's `chunked_cross_entropy`.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import litgpt.pretrain as pretrain
import torch
from litgpt import GPT, Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bridges.comparison import (
    ADAMW,
    LEARNING_RATE,
    LENGTH,
    MAX_NORM,
    ROWS,
    STEPS,
    VOCABULARY,
    Rows,
    Run,
    of_rows,
    report,
    weighted_mean,
)

ITS_LOSS = pretrain.chunked_cross_entropy


class WeightedRows(IterableDataset):
    """The batches of the token file, in its order; the DataLoader has no workers."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.weights_BT = rows, torch.empty(0)

    def __iter__(self) -> Iterator[Tensor]:
        for ids_BT, weights_BT in zip(self.rows.ids_SBT, self.rows.weights_SBT, strict=True):
            self.weights_BT = weights_BT[:, 1:]
            yield ids_BT

    def loss(self, logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """LitGPT's own loss where it validates and where it counts operations."""
        if not logits.requires_grad or logits.is_meta:
            return ITS_LOSS(logits, targets, **options)
        return weighted_mean(logits, targets, self.weights_BT.to(logits.device))


class Data(DataModule):
    def __init__(self, dataset: WeightedRows) -> None:
        super().__init__()
        self.dataset = dataset

    def connect(self, **_: Any) -> None:
        pass

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset.rows.ids_SBT, batch_size=None)


def trained(config: Config, start: Path, rows: Rows) -> Run:
    dataset = WeightedRows(rows)
    pretrain.chunked_cross_entropy = dataset.loss
    with tempfile.TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        out = Path(name)
        pretrain.setup(
            "ours",
            config,
            out,
            "32-true",
            start,
            data=Data(dataset),
            train=TrainArgs(
                save_interval=None,
                log_interval=1,
                global_batch_size=ROWS,
                micro_batch_size=ROWS,
                max_tokens=STEPS * ROWS * LENGTH,
                max_norm=MAX_NORM,
                min_lr=LEARNING_RATE,
                lr_warmup_steps=0,
            ),
            eval=EvalArgs(interval=10 * STEPS, max_iters=2, final_validation=False),
            optimizer={
                "class_path": "torch.optim.AdamW",
                "init_args": ADAMW | {"lr": LEARNING_RATE},
            },
            devices=1,
            logger_name="csv",
        )
        (logged,) = out.rglob("metrics.csv")
        losses = [float(line["loss"]) for line in csv.DictReader(logged.open())]
        # LitGPT's file has its DataLoader, too, which only a pickle of our own may have.
        saved = torch.load(out / "final" / "lit_model.pth", weights_only=False)
        return losses, saved["model"]


def main() -> None:
    rows = Rows.read(Path(sys.argv[1]) / "tokens.npy")
    config = Config(
        name="tiny",
        block_size=LENGTH,
        padded_vocab_size=VOCABULARY,
        n_layer=2,
        n_head=4,
        n_embd=32,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=64,
        rotary_percentage=1.0,
        parallel_residual=False,
    )
    torch.manual_seed(0)
    model = GPT(config)
    with tempfile.TemporaryDirectory() as start:
        torch.save(model.state_dict(), Path(start) / "lit_model.pth")
        theirs, (permuted, _) = (trained(config, Path(start), r) for r in (rows, rows.permuted()))
    report(
        "litgpt",
        theirs,
        of_rows(model, rows),
        permuted,
        compared="`litgpt.pretrain.setup` with a compiled model; the logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
