"""The student's loss on held-out text."""

import time
from typing import Any

import accelerate
import torch

from vocagno.config.run import TrainConfig
from vocagno.data.rows import RowStore, WithEmpty
from vocagno.guidance.collator import Collator, loader
from vocagno.guidance.totals import LossSums
from vocagno.system.collectives import HostSum
from vocagno.training.sampler import ValidationBatches


def validate(
    student: Any,
    rows: RowStore,
    train: TrainConfig,
    collator: Collator,
    accelerator: accelerate.Accelerator,
    host_sum: HostSum,
    num_workers: int = 0,
) -> dict[str, Any]:
    """The mean loss over all rows, dealt out to the processes: a line for `metrics.jsonl`.

    Args:
        collator: without scores.
        num_workers: processes that load and collate.
    """
    started = time.monotonic()
    batches = ValidationBatches(
        len(rows), train.micro_batch, accelerator.process_index, accelerator.num_processes
    )
    total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    count = 0
    student.eval()
    with torch.no_grad():
        for batch in loader(WithEmpty(rows), batches, collator, num_workers):
            tensors = batch.to(accelerator.device)
            tensors.pop("teacher_loss")  # nothing is to be ranked
            total += LossSums(*student(**tensors).sums).nll
            count += batch.counts.predicted
    student.train()
    sums = host_sum(torch.stack([total.cpu(), torch.tensor(float(count)).double()]))
    return {
        "validation_loss": float(sums[0]) / max(1.0, float(sums[1])),
        "validation_tokens": int(sums[1]),
        "validation_seconds": round(time.monotonic() - started, 3),
    }
