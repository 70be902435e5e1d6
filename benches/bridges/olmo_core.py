"""OLMo-core's `Trainer` on a raw token file with baked weights, next to a plain loop.

PYTHONPATH=benches python -m bridges.olmo_core MATERIAL

A batch of OLMo-core has the number of each of its rows. Row i of `NumpyFSLDataset` is the i-th run
of tokens in the file, so its weights are the same run of the baked stream.
"""

import sys
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig
from olmo_core.train.callbacks import Callback
from olmo_core.train.train_module import TransformerTrainModule
from torch import Tensor
from torch.nn.functional import pad

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
from vocagno.integrations.baked_files import BakedLosses

WIDTH = LENGTH + 1
"""OLMo-core shifts inside a row: the last of its tokens has no label."""


class WeightedTrainModule(TransformerTrainModule):
    """Multiplies the loss of each label by its weight, over OLMo-core's own count of labels."""

    def __init__(self, tokens: np.ndarray, weights: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self.tokens, self.weights = map(torch.from_numpy, (tokens.astype(np.int64), weights))
        self.seen = list[tuple[Tensor, Tensor]]()

    def train_batch(self, batch: dict[str, Any], dry_run: bool = False) -> None:
        ids_BT, weights_BT = batch["input_ids"], torch.ones(batch["input_ids"].shape)
        if not dry_run:  # which is of a made-up batch
            places = batch["index"][:, None] * WIDTH + torch.arange(WIDTH)
            if not torch.equal(self.tokens[places], ids_BT):
                raise ValueError("a row's index is not its place in the token file")
            weights_BT = self.weights[places] / 255
            self.seen.append((ids_BT.clone(), weights_BT))
        batch["token_weights"] = pad(weights_BT[:, 1:], (0, 1))
        super().train_batch(batch, dry_run)

    def model_forward(self, input_ids: Tensor, labels: Tensor | None = None, **options: Any) -> Any:
        weights_BT = options.pop("token_weights")
        output = super().model_forward(input_ids, labels, **options | {"loss_reduction": "none"})
        losses = {name: getattr(output, name) * weights_BT for name in ("loss", "ce_loss")}
        return output._replace(**{name: loss.sum() for name, loss in losses.items()})


@dataclass
class Recording(Callback):
    losses: list[float] = field(default_factory=list)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if "train/CE loss" in metrics:  # step 0 has none
            self.losses.append(metrics["train/CE loss"])


def trained(model: torch.nn.Module, tokens: Path, weights: np.ndarray) -> tuple[Run, Rows]:
    with tempfile.TemporaryDirectory() as folder:
        dataset = NumpyFSLDatasetConfig(
            tokenizer=TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=2, pad_token_id=0),
            paths=[str(tokens)],
            dtype=NumpyDatasetDType.uint16,
            sequence_length=WIDTH,
            work_dir=folder,
        ).build()
        loader = NumpyDataLoaderConfig(global_batch_size=ROWS * WIDTH, seed=0).build(dataset)
        module = WeightedTrainModule(
            np.fromfile(tokens, np.uint16),
            weights,
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
    found = deepcopy(module.model.state_dict())
    model.load_state_dict(start)
    return (recording.losses, found), Rows(*map(torch.stack, zip(*module.seen, strict=True)))


def main() -> None:
    tokens = Path(sys.argv[1]) / "raw.npy"
    baked = BakedLosses(tokens.with_suffix(".baked"))
    baked.check(tokens, whole=True)
    config = TransformerConfig.llama_like(
        d_model=32, n_layers=2, n_heads=4, vocab_size=VOCABULARY, hidden_size_multiple_of=32
    )
    torch.manual_seed(0)
    models = [config.build(init_device="cpu") for _ in range(2)]
    weights = np.array(baked.weights)
    theirs, rows = trained(models[0], tokens, weights)
    permuted, _ = trained(models[1], tokens, np.random.default_rng(0).permutation(weights))
    report(
        "ai2-olmo-core",
        theirs,
        of_rows(models[0], rows),
        permuted[0],
        compared="`Trainer.fit` with a `TransformerTrainModule`, rows by index; its `CE loss`",
        differs="the installed torch is newer than its requirement (< 2.14) allows",
    )


if __name__ == "__main__":
    main()
