"""The student's loss on held-out text."""

import time
from typing import Any

import accelerate
import torch

from vocagno.config.run import Config
from vocagno.data.rows import RowStore, WithEmpty
from vocagno.guidance.collator import COUNTS, Collator, loader
from vocagno.system.collectives import HostSum
from vocagno.training.sampler import ValidationBatches
from vocagno.training.student import SUMS


def validate(
    student: Any,
    rows: RowStore,
    config: Config,
    accelerator: accelerate.Accelerator,
    host_sum: HostSum,
) -> dict[str, Any]:
    """The mean loss over all rows, dealt out to the processes: a line for `metrics.jsonl`."""
    started = time.monotonic()
    batches = ValidationBatches(
        len(rows), config.train.micro_batch, accelerator.process_index, accelerator.num_processes
    )
    collator = Collator(None, config.guidance, config.data)
    total = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    count = 0
    student.eval()
    with torch.no_grad():
        for batch in loader(WithEmpty(rows), batches, collator, config.data.num_workers):
            tensors = batch.to(accelerator.device)
            tensors.pop("teacher_loss")  # nothing is to be ranked
            total += student(**tensors).sums[SUMS.index("nll")]
            count += int(batch.counts[COUNTS.index("predicted")])
    student.train()
    sums = host_sum(torch.stack([total.cpu(), torch.tensor(float(count)).double()]))
    return {
        "validation_loss": float(sums[0]) / max(1.0, float(sums[1])),
        "validation_tokens": int(sums[1]),
        "validation_seconds": round(time.monotonic() - started, 3),
    }
