"""Guides a loop of one's own in torch. Rows and scores as for `guided_trainer.py`:

python examples/plain_loop.py STUDENT rows scores out
"""

import sys
from pathlib import Path

import torch

from vocagno import TokenSpans
from vocagno.data.rows import RowStore
from vocagno.guidance import (
    GuidanceConfig,
    GuidedCollator,
    check_coverage,
    language_head,
    selective_cross_entropy,
)
from vocagno.models.weights import causal_model
from vocagno.teacher import MatchedScores, ScoreStore

if len(sys.argv) != 5:
    sys.exit(__doc__)
student, rows_folder, scores_folder, output = sys.argv[1:]
rows = RowStore(Path(rows_folder))
if rows.manifest.made_from["tokenizer"] != TokenSpans(student).fingerprint:
    sys.exit(f"{rows_folder}: made with another tokenizer than that of {student}; prepare it again")
model = causal_model(student, "STUDENT", dtype=torch.float32).train()
guidance = GuidanceConfig(top_fraction=0.4)  # the rule of the paper
collate = GuidedCollator(
    MatchedScores(ScoreStore(Path(scores_folder)), rows),
    guidance,
    seq_len=rows.manifest.made_from["seq_len"],
)
head = language_head(model)  # proved once; wrong losses are refused
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
order = torch.Generator().manual_seed(0)
for step in range(20):
    batch = collate([rows[int(i)] for i in torch.randint(len(rows), (4,), generator=order)])
    counts = batch["facts"].counts  # with several processes: added up over all of them
    check_coverage(counts, guidance)  # stops where the teacher has few losses
    hidden = model.base_model(input_ids=batch["input_ids"]).last_hidden_state
    loss, metrics = selective_cross_entropy(
        hidden, head, batch["labels"], batch["teacher_loss"], guidance, reduction="mean"
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = metrics.weights_BT.sum() / (batch["labels"] >= 0).sum()
    covered = counts.shares.get("coverage", 0)
    print(f"step {step + 1}: loss {loss.item():.3f}, trained on {kept:.0%}, covered {covered:.0%}")
model.save_pretrained(output)
