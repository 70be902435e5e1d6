"""OLMo-core's `Trainer` on a raw token file with baked weights and candidates, and a plain loop.

PYTHONPATH=benches:examples python -m bridges.olmo_core MATERIAL

A batch of OLMo-core has the number of each of its rows. Row i of `NumpyFSLDataset` is the i-th run
of tokens in the file, so its weights and candidates are the same run of the baked streams.
"""

import sys
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron_loss import DISTILL, STREAMS
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig
from olmo_core.train.callbacks import Callback
from olmo_core.train.train_module import TransformerTrainModule
from torch import Tensor

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

WIDTH = LENGTH + 1
"""OLMo-core shifts inside a row: the last of its tokens has no label."""


class GuidedTrainModule(TransformerTrainModule):
    """Puts our loss, of OLMo-core's logits, over its own count of labels."""

    def __init__(
        self, tokens: np.ndarray, streams: list[Tensor], table: BucketTable, **options: Any
    ) -> None:
        """Args: streams: `weight`, `candidates` and `candidate_mass` of the tokens."""
        super().__init__(**options)
        self.tokens, self.streams = torch.from_numpy(tokens.astype(np.int64)), streams
        self.table = table
        self.seen = list[tuple[Tensor, ...]]()

    def train_batch(self, batch: dict[str, Any], dry_run: bool = False) -> None:
        places = torch.arange(batch["input_ids"].numel()).view(-1, WIDTH)
        if not dry_run:  # which is of a made-up batch
            places = batch["index"][:, None] * WIDTH + torch.arange(WIDTH)
            if not torch.equal(self.tokens[places], batch["input_ids"]):
                raise ValueError("a row's index is not its place in the token file")
            values = [stream[places] for stream in self.streams]
            self.seen.append((batch["input_ids"].clone(), *values))
        # The label of a token is the next one; the last of a row has none.
        labels = places.roll(-1, 1)
        batch |= {name: stream[labels] for name, stream in zip(STREAMS, self.streams, strict=True)}
        super().train_batch(batch, dry_run)

    def model_forward(self, input_ids: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        columns = {name: options.pop(name) for name in STREAMS}
        teacher = GuidanceTensors(
            teacher_loss=torch.zeros(labels.shape), buckets=self.table, **columns
        )
        output = super().model_forward(input_ids, labels, **options | {"return_logits": True})
        loss, _ = selective_cross_entropy(output.logits, None, labels, teacher, DISTILL)
        loss = loss / options["loss_div_factor"]
        return output._replace(loss=loss, ce_loss=loss.detach())


@dataclass
class Recording(Callback):
    losses: list[float] = field(default_factory=list)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if "train/CE loss" in metrics:  # step 0 has none
            self.losses.append(metrics["train/CE loss"])


def train(
    model: torch.nn.Module, tokens: Path, streams: list[Tensor], table: BucketTable
) -> tuple[Run, Rows]:
    with tempfile.TemporaryDirectory() as folder:
        dataset = NumpyFSLDatasetConfig(
            tokenizer=TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=2, pad_token_id=0),
            paths=[str(tokens)],
            dtype=NumpyDatasetDType.uint16,
            sequence_length=WIDTH,
            work_dir=folder,
        ).build()
        loader = NumpyDataLoaderConfig(global_batch_size=ROWS * WIDTH, seed=0).build(dataset)
        module = GuidedTrainModule(
            np.fromfile(tokens, np.uint16),
            streams,
            table,
            model=model,
            optim=AdamWConfig(lr=LEARNING_RATE, **ADAMW),
            rank_microbatch_size=ROWS * WIDTH,
            max_sequence_length=WIDTH,
            max_grad_norm=MAX_NORM,
        )
        start = deepcopy(module.model.state_dict())
        recording = Recording()
        trainer = TrainerConfig(
            save_folder=folder,
            max_duration=Duration.steps(STEPS),
            no_checkpoints=True,
            no_evals=True,
            callbacks={"recording": recording},
        ).build(module, loader)
        trainer.fit()
    weights = deepcopy(module.model.state_dict())
    model.load_state_dict(start)
    return (recording.losses, weights), Rows(*map(torch.stack, zip(*module.seen, strict=True)))


def main() -> None:
    tokens = Path(sys.argv[1]) / "raw.npy"
    baked = BakedLosses(tokens.with_suffix(".baked"))
    baked.check(tokens, whole=True)
    config = TransformerConfig.llama_like(
        d_model=32, n_layers=2, n_heads=4, vocab_size=VOCABULARY, hidden_size_multiple_of=32
    )
    torch.manual_seed(0)
    models = [config.build(init_device="cpu") for _ in range(2)]
    streams = [
        torch.from_numpy(baked.weights / np.float32(255)),
        torch.from_numpy(np.array(baked.candidates)),
        torch.from_numpy(baked.candidate_mass.astype(np.float32)),
    ]
    table, order = baked.buckets(), np.random.default_rng(0).permutation(len(baked))
    bridge, rows = train(models[0], tokens, streams, table)
    permuted, _ = train(models[1], tokens, [values[order] for values in streams], table)
    report(
        "ai2-olmo-core",
        bridge,
        of_rows(models[0], rows, table),
        permuted[0],
        compared="`Trainer.fit` with a `TransformerTrainModule`, rows by index, weights and "
        "`distill`; its `CE loss`",
        differs="the installed torch is newer than its requirement (< 2.14) allows",
    )


if __name__ == "__main__":
    main()
