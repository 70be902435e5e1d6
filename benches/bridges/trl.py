"""TRL's `SFTTrainer` with the columns of `add_teacher_loss`, next to a plain loop.

PYTHONPATH=benches python -m bridges.trl MATERIAL

The trainer shuffles its rows: the loop takes the batches that the collator has made.
"""

import sys
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from bridges.comparison import LENGTH, ROWS, Run, report
from bridges.trainers import OPTIONS, Recording, of_batches, of_trainer, permute, tiny_model
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidanceConfig,
    GuidedTrainer,
    add_teacher_loss,
)
from vocagno.teacher import ScoreStore


class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
    """An SFTTrainer that trains on the tokens that the teacher chooses."""


def train(
    model: torch.nn.Module, columns: Dataset, guidance: GuidanceConfig, tokenizer: Any
) -> tuple[Run, list[dict[str, Tensor]]]:
    recording = Recording(DataCollatorWithTeacherLoss(guidance))
    with tempfile.TemporaryDirectory() as folder:
        options = SFTConfig(
            folder,
            **OPTIONS,
            per_device_train_batch_size=ROWS,
            lr_scheduler_type="constant",
            optim="adamw_torch",
            report_to=[],
            use_cpu=True,
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
    return of_trainer(trainer), recording.batches


def main() -> None:
    folder, guidance = Path(sys.argv[1]), GuidanceConfig()
    tokenizer = AutoTokenizer.from_pretrained(folder / "student")
    texts = Dataset.from_json(str(folder / "corpus.jsonl"))
    scores = ScoreStore(folder / "scores")
    columns = add_teacher_loss(texts, tokenizer, scores, guidance, max_length=LENGTH)
    model = tiny_model()
    bridge, batches = train(deepcopy(model), columns, guidance, tokenizer)
    control, _ = train(deepcopy(model), permute(columns), guidance, tokenizer)
    report(
        "trl",
        bridge,
        of_batches(model, batches),
        control[0],
        compared="`SFTTrainer` with `GuidedTrainer`, on its own batches; the logged losses",
        differs="",
    )


if __name__ == "__main__":
    main()
