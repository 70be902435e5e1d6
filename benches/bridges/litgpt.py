"""LitGPT's `pretrain` on a token file with baked weights and candidates, next to a plain loop.

PYTHONPATH=benches:examples python -m bridges.litgpt MATERIAL

LitGPT gives its loss only what the head returns, and labels. `GuidedRows` hands out the rows of a
batch and keeps their weights and candidates for the loss, which stands in the place of LitGPT's
`chunked_cross_entropy`. The head returns the hidden states: our loss makes the logits.
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
from megatron_loss import DISTILL
from torch import Tensor, nn
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
)
from vocagno.guidance.batch import GuidanceTensors
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.integrations.baked_files import BakedLosses

ITS_LOSS = pretrain.chunked_cross_entropy


class HiddenStates(nn.Linear):
    """A head that leaves its product to the loss."""

    def forward(self, states: Tensor) -> Tensor:
        return states


class GuidedGPT(GPT):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head.__class__ = HiddenStates
        if not self.lm_head.weight.is_meta:  # of a copy, whose operations LitGPT counts
            GuidedRows.head = self.lm_head


class GuidedRows(IterableDataset):
    """The batches of the token file, in its order; the DataLoader has no workers."""

    head: nn.Linear
    """The head of the model that trains."""

    def __init__(self, rows: Rows, table: BucketTable) -> None:
        self.rows, self.table = rows, table
        self.streams: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[Tensor]:
        rows = self.rows
        steps = zip(rows.ids_SBT, rows.labels(), rows.candidates(), strict=True)
        for ids_BT, (*_, weights_BT), (bucket_BTK, mass_BTK) in steps:
            self.streams = {
                "weight": weights_BT,
                "candidates": bucket_BTK,
                "candidate_mass": mass_BTK,
            }
            yield ids_BT

    def loss(self, states: Tensor, targets: Tensor, **options: Any) -> Tensor:
        """LitGPT's own loss where it validates and where it counts operations."""
        weight = self.head.weight
        if not states.requires_grad or states.is_meta:
            return ITS_LOSS(states @ weight.detach().to(states.device).T, targets, **options)
        # Candidates everywhere: the teacher's losses decide nothing.
        unread = torch.zeros(targets.shape)
        batch = GuidanceTensors(teacher_loss=unread, buckets=self.table, **self.streams)
        loss, _ = selective_cross_entropy(states, weight, targets, batch, DISTILL, reduction="mean")
        return loss


class Data(DataModule):
    def __init__(self, dataset: GuidedRows) -> None:
        super().__init__()
        self.dataset = dataset

    def connect(self, **_: Any) -> None:
        pass

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset, batch_size=None)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.dataset.rows.ids_SBT, batch_size=None)


def train(config: Config, start: Path, rows: Rows, table: BucketTable) -> Run:
    dataset = GuidedRows(rows, table)
    pretrain.GPT, pretrain.chunked_cross_entropy = GuidedGPT, dataset.loss
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
    tokens = Path(sys.argv[1]) / "tokens.npy"
    rows, table = Rows.read(tokens), BakedLosses(tokens.with_suffix(".baked")).buckets()
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
        bridge, (permuted, _) = (
            train(config, Path(start), r, table) for r in (rows, rows.permute())
        )
    report(
        "litgpt",
        bridge,
        of_rows(model, rows, table),
        permuted,
        compared="`litgpt.pretrain.setup` with a compiled model, weights and `distill`; the "
        "logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
