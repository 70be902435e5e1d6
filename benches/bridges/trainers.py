"""The common part of bridges to heirs of `transformers.Trainer`: model, options and batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from bridges.comparison import (
    ADAMW,
    LEARNING_RATE,
    MAX_NORM,
    STEPS,
    VOCABULARY,
    Run,
    plain_loop,
    weighted_mean,
)

NAMES = "input_ids", "labels", "weight"
"""The columns of a batch that the loss takes."""
OPTIONS: dict[str, Any] = {
    "max_steps": STEPS,
    "learning_rate": LEARNING_RATE,
    "adam_beta1": ADAMW["betas"][0],
    "adam_beta2": ADAMW["betas"][1],
    "adam_epsilon": ADAMW["eps"],
    "weight_decay": ADAMW["weight_decay"],
    "max_grad_norm": MAX_NORM,
    "logging_steps": 1,
    "save_strategy": "no",
    "bf16": False,
}
"""Options of `transformers.TrainingArguments`; others have another name in each trainer."""


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    )


def permute(columns: Dataset) -> Dataset:
    """Gives each row its weights in another order: the control, whose losses must differ."""
    draw = np.random.default_rng(0)
    return columns.map(lambda row: {"weight": draw.permutation(row["weight"])})


class Recording:
    """A collator that keeps what it made, in the order of training."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate
        self.batches: list[dict[str, Tensor]] = []

    def __call__(self, examples: Any) -> dict[str, Any]:
        batch: dict[str, Any] = self.collate(examples)
        self.batches.append({name: batch[name].clone() for name in NAMES})
        return batch


def of_trainer(trainer: Any) -> Run:
    """Returns the losses that a trainer has logged, and its weights."""
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, dict(trainer.model.state_dict())


def of_batches(model: LlamaForCausalLM, batches: Sequence[dict[str, Tensor]]) -> Run:
    """Runs the plain loop on what a collator has made."""

    def loss(input_ids: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return weighted_mean(model(input_ids).logits, labels, weight)

    return plain_loop(model, (lambda b=b: loss(**b) for b in batches[:STEPS]))
