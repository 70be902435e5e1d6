"""TRL's `SFTTrainer` with the columns of `add_teacher_loss`, next to a plain loop.

PYTHONPATH=benches python -m bridges.trl MATERIAL

The trainer shuffles its rows: the loop takes the batches that the collator has made.
"""

import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

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
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidanceConfig,
    GuidedTrainer,
    add_teacher_loss,
)
from vocagno.teacher import ScoreStore


class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
    """An SFTTrainer that trains on the tokens that the teacher chooses."""


class Recording(DataCollatorWithTeacherLoss):
    """Keeps what it made, in the order of training."""

    def __init__(self, guidance: GuidanceConfig) -> None:
        super().__init__(guidance)
        self.batches: list[dict[str, Any]] = []

    def __call__(self, examples: Any) -> dict[str, Any]:
        batch = super().__call__(examples)
        self.batches.append({name: batch[name].clone() for name in NAMES})
        return batch


NAMES = "input_ids", "labels", "weight"


def trained(
    model: torch.nn.Module, columns: Dataset, guidance: GuidanceConfig, tokenizer: Any
) -> tuple[Run, list[dict[str, Tensor]]]:
    recording = Recording(guidance)
    with tempfile.TemporaryDirectory() as folder:
        options = SFTConfig(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=ROWS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch",
            adam_beta1=ADAMW["betas"][0],
            adam_beta2=ADAMW["betas"][1],
            adam_epsilon=ADAMW["eps"],
            weight_decay=ADAMW["weight_decay"],
            max_grad_norm=MAX_NORM,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            gradient_checkpointing=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        trainer = GuidedSFTTrainer(
            model,
            options,
            guidance=guidance,
            train_dataset=columns,
            data_collator=recording,
            processing_class=tokenizer,
        )
        trainer.train()
    found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return (found, dict(trainer.model.state_dict())), recording.batches[:STEPS]


def main() -> None:
    folder, guidance = Path(sys.argv[1]), GuidanceConfig()
    tokenizer = AutoTokenizer.from_pretrained(folder / "student")
    texts = Dataset.from_json(str(folder / "corpus.jsonl"))
    scores = ScoreStore(folder / "scores")
    columns = add_teacher_loss(texts, tokenizer, scores, guidance, max_length=LENGTH)
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
    theirs, batches = trained(deepcopy(model), columns, guidance, tokenizer)
    draw = np.random.default_rng(0)
    others = columns.map(lambda row: {"weight": draw.permutation(row["weight"])})
    permuted, _ = trained(deepcopy(model), others, guidance, tokenizer)

    def loss(input_ids: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return weighted_mean(model(input_ids).logits, labels, weight)

    ours = plain_loop(model, (lambda b=b: loss(**b) for b in batches))
    report(
        "trl",
        theirs,
        ours,
        permuted[0],
        compared="`SFTTrainer` with `GuidedTrainer`, on its own batches; the logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
