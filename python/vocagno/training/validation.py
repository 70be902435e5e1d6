"""The student's loss on held-out text."""

import time
from collections.abc import Mapping
from typing import Any

import accelerate
import torch

from vocagno.config.train import TrainConfig
from vocagno.data.rows import RowStore, WithEmpty
from vocagno.guidance.collator import Collator, loader
from vocagno.guidance.totals import LossSums
from vocagno.system.collectives import HostSum
from vocagno.training.sampler import ValidationBatches


def validate(
    student: Any,
    held_out: Mapping[str, RowStore],
    train: TrainConfig,
    collator: Collator,
    accelerator: accelerate.Accelerator,
    host_sum: HostSum,
    num_workers: int = 0,
) -> dict[str, Any]:
    """The mean loss over all rows, dealt out to the processes: a line for `metrics.jsonl`. If there
    are several stores, `validation_losses` has that of each.

    Args:
        collator: without scores.
        num_workers: processes that load and collate.
    """
    started = time.monotonic()
    totals = torch.zeros(len(held_out), dtype=torch.float64, device=accelerator.device)
    counts = torch.zeros(len(held_out), dtype=torch.float64)
    student.eval()
    with torch.no_grad():
        for number, rows in enumerate(held_out.values()):
            batches = ValidationBatches(
                len(rows), train.micro_batch, accelerator.process_index, accelerator.num_processes
            )
            for batch in loader(WithEmpty(rows), batches, collator, num_workers):
                tensors = batch.to(accelerator.device)
                tensors.pop("teacher_loss")  # nothing is to be ranked
                totals[number] += LossSums(*student(**tensors).sums).nll
                counts[number] += batch.counts.predicted
    student.train()
    nll, tokens = host_sum(torch.stack([totals.cpu(), counts])).tolist()
    entry: dict[str, Any] = {"validation_loss": sum(nll) / max(1.0, sum(tokens))}
    if len(held_out) > 1:
        means = (loss / max(1.0, count) for loss, count in zip(nll, tokens, strict=True))
        entry["validation_losses"] = dict(zip(held_out, means, strict=True))
    return {
        **entry,
        "validation_tokens": int(sum(tokens)),
        "validation_seconds": round(time.monotonic() - started, 3),
    }
