"""axolotl's `do_train` with the plugin of `examples/guided_axolotl.py`, next to a plain loop.

DO_NOT_TRACK=1 PYTHONPATH=benches:examples python -m bridges.axolotl MATERIAL

Without DO_NOT_TRACK axolotl tells its makers what it runs. The trainer shuffles its rows: the loop
takes the batches that the collator has made.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
from guided_axolotl import GuidedPlugin, collator
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from bridges.comparison import (
    ADAMW,
    LEARNING_RATE,
    LENGTH,
    MAX_NORM,
    ROWS,
    STEPS,
    VOCABULARY,
    Run,
    plain_loop,
    report,
    weighted_mean,
)

NAMES = "input_ids", "labels", "weight"


class Recording:
    """The plugin's collator, which keeps what it made, in the order of training."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        self.collate = collator(tokenizer, **options)
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, examples: Any) -> dict[str, Any]:
        batch = self.collate(examples)
        self.batches.append({name: batch[name].clone() for name in NAMES})
        return batch


class Watched(GuidedPlugin):
    """Keeps the trainer; axolotl has one plugin of a name for all its runs."""

    is_permuted = False
    trainer: Any

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        made = super().load_datasets(cfg, preprocess)
        if not Watched.is_permuted:
            return made
        draw = np.random.default_rng(0)
        permuted = made.train_dataset.map(lambda row: {"weight": draw.permutation(row["weight"])})
        return replace(made, train_dataset=permuted)

    def get_collator_cls_and_kwargs(self, cfg: Any, is_eval: bool = False) -> Any:
        return Recording, {}

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        Watched.trainer = trainer


def trained(material: Path, start: Path, is_permuted: bool) -> tuple[Run, list[dict[str, Tensor]]]:
    Watched.is_permuted = is_permuted
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "base_model": str(start),
            "datasets": [{"path": str(material / "corpus.jsonl"), "type": "completion"}],
            "plugins": [f"{Watched.__module__}.Watched"],
            "teacher_scores": str(material / "scores"),
            "sequence_len": LENGTH,
            "output_dir": folder,
            "max_steps": STEPS,
            "micro_batch_size": ROWS,
            "gradient_accumulation_steps": 1,
            "learning_rate": LEARNING_RATE,
            "lr_scheduler": "constant",
            "optimizer": "adamw_torch",
            "adam_beta1": ADAMW["betas"][0],
            "adam_beta2": ADAMW["betas"][1],
            "adam_epsilon": ADAMW["eps"],
            "weight_decay": ADAMW["weight_decay"],
            "max_grad_norm": MAX_NORM,
            "dataloader_num_workers": 0,  # or other processes would keep the batches
            "logging_steps": 1,
            "save_strategy": "no",
            "bf16": False,
            "fp16": False,
            "tf32": False,
        }
        settings = Path(folder) / "guided.yml"
        settings.write_text(yaml.safe_dump(options), encoding="utf-8")
        do_train(load_cfg(str(settings)), TrainerCliArgs())
    trainer = Watched.trainer
    found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    weights = dict(trainer.model.state_dict())
    return (found, weights), trainer.data_collator.batches[:STEPS]


def main() -> None:
    material = Path(sys.argv[1]).absolute()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    )
    with tempfile.TemporaryDirectory() as start:
        model.save_pretrained(start)
        AutoTokenizer.from_pretrained(material / "student").save_pretrained(start)
        theirs, batches = trained(material, Path(start), False)
        permuted, _ = trained(material, Path(start), True)

    def loss(input_ids: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return weighted_mean(model(input_ids).logits, labels, weight)

    ours = plain_loop(model, (lambda b=b: loss(**b) for b in batches))
    report(
        "axolotl",
        theirs,
        ours,
        permuted[0],
        compared="`do_train` with the plugin of the example, columns; the logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
