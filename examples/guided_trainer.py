"""Guides `transformers.Trainer`. Rows and scores come from two commands:

vocagno prepare corpus.jsonl --seq_len 512 --tokenizer STUDENT --out rows
vocagno score corpus.jsonl --teacher.model TEACHER --out scores
python examples/guided_trainer.py STUDENT rows scores out
"""

import sys
from pathlib import Path

import torch
from transformers import TrainingArguments

from vocagno import TokenSpans
from vocagno.data.rows import RowStore
from vocagno.guidance import GuidanceConfig, GuidedCollator, GuidedTrainer
from vocagno.models.weights import causal_model
from vocagno.teacher import MatchedScores, ScoreStore

if len(sys.argv) != 5:
    sys.exit(__doc__)
student, rows_folder, scores_folder, output = sys.argv[1:]
rows = RowStore(Path(rows_folder))
tokenizer = TokenSpans(student)
if rows.manifest.made_from["tokenizer"] != tokenizer.fingerprint:  # ids that mean other tokens
    sys.exit(f"{rows_folder}: made with another tokenizer than that of {student}; prepare it again")
guidance = GuidanceConfig()  # lines that are noise to the teacher are dropped
collator = GuidedCollator(
    MatchedScores(ScoreStore(Path(scores_folder)), rows),
    guidance,
    seq_len=rows.manifest.made_from["seq_len"],
    line_ends=tokenizer.line_ends(),
)
trainer = GuidedTrainer(
    causal_model(student, "STUDENT", dtype=torch.float32),  # refuses files that lack weights
    TrainingArguments(
        output, max_steps=20, per_device_train_batch_size=4, learning_rate=5e-5, logging_steps=5
    ),
    guidance=guidance,
    train_dataset=rows,
    data_collator=collator,
)
trainer.train()
trainer.save_model(output)
