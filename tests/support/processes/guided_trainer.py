"""Three steps of a `GuidedTrainer` on eight rows; the main process prints its log.

python guided_trainer.py OUTPUT
"""

import json
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from vocagno.guidance import DataCollatorWithTeacherLoss, GuidanceConfig, GuidedTrainer
from vocagno.guidance.batch import TokenCounts, made_for

guidance = GuidanceConfig(top_fraction=0.4, min_coverage=0.5)
generator = torch.Generator().manual_seed(0)
rows = [
    {
        "input_ids": (ids := torch.randint(0, 50, (12,), generator=generator)),
        "labels": ids,
        "teacher_loss": torch.rand(12, generator=generator) * 8,
        "made_for": made_for(guidance, ""),
        "token_counts": TokenCounts(with_text=11, mapped=11 - number, scorable=11, scored=9),
    }
    for number in range(4)
] * 2
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
trainer = GuidedTrainer(
    LlamaForCausalLM(LlamaConfig(vocab_size=50, num_attention_heads=2, **sizes)),
    TrainingArguments(
        sys.argv[1],
        max_steps=3,
        per_device_train_batch_size=4 // int(os.environ.get("WORLD_SIZE", "1")),
        logging_steps=2,  # the last step is logged at the end
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    guidance=guidance,
    train_dataset=rows,
    data_collator=DataCollatorWithTeacherLoss(guidance),
)
trainer.train()
if trainer.is_world_process_zero():
    print("log", json.dumps(trainer.state.log_history))
