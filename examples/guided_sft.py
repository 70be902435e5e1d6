"""Guides TRL's `SFTTrainer` on conversations (tried with trl 1.16).

python examples/guided_sft.py STUDENT TEACHER conversations.jsonl out

STUDENT and TEACHER: models with chat templates; the student's marks what the assistant writes
(`{% generation %}`). A line of conversations.jsonl: {"messages": [{"role": ..., "content": ...}]}
"""

import sys

import torch
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from vocagno import TokenSpans
from vocagno.guidance import (
    DataCollatorWithTeacherLoss,
    GuidanceConfig,
    GuidedTrainer,
    add_teacher_loss,
)
from vocagno.models.weights import causal_model, largest_input
from vocagno.teacher import Teacher, TextReader
from vocagno.teacher.scorer import TransformersScorer


class GuidedSFTTrainer(GuidedTrainer, SFTTrainer):
    """An SFTTrainer that trains on the tokens that the teacher chooses."""


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    student, teacher, conversations, output = sys.argv[1:]
    tokenizers = [AutoTokenizer.from_pretrained(name) for name in (student, teacher)]
    spans = TokenSpans(tokenizers[1])
    model = causal_model(teacher, "TEACHER")
    # Beyond its positions a model gives losses that are wrong, and no error.
    context = min(2048, largest_input(model.config) or 2048)
    loaded = Teacher(
        TransformersScorer(model, batch_tokens=8192, width=context),
        TextReader(spans, spans.prefix_ids, context=context, min_context=context // 4),
    )
    guidance = GuidanceConfig(top_fraction=0.6)
    dataset = add_teacher_loss(
        load_dataset("json", data_files=conversations, split="train"),
        tokenizers[0],
        loaded,
        guidance,
        teacher_tokenizer=tokenizers[1],
        max_length=1024,
    )
    trainer = GuidedSFTTrainer(
        causal_model(student, "STUDENT", dtype=torch.float32),  # refuses files that lack weights
        SFTConfig(
            output,
            max_steps=20,
            per_device_train_batch_size=4,
            learning_rate=5e-5,
            bf16=torch.cuda.is_available(),
            dataset_kwargs={"skip_prepare_dataset": True},
            report_to=[],
        ),
        guidance=guidance,
        train_dataset=dataset,
        data_collator=DataCollatorWithTeacherLoss(guidance),
        processing_class=tokenizers[0],
    )
    trainer.train()
    trainer.save_model(output)
