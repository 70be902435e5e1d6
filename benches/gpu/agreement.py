"""The same training on a CPU in float32 and on the device in bfloat16: losses step by step, and how
often both choose the same tokens under the same weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu.gauge import autocast, drawn_model
from gpu.material import Material
from gpu.part import main
from gpu.sizes import Sizes
from guided_steps import GUIDED, materials
from vocagno.config.options import DataConfig, OptimizerConfig
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.batches import Collator
from vocagno.models.loading import local_device
from vocagno.training.step import GuidedStudent, build_optimizer

OPTIMIZER = OptimizerConfig(lr=1e-3)


@dataclass(frozen=True)
class Side:
    """A student on one device, in one precision."""

    student: GuidedStudent
    optimizer: torch.optim.Optimizer
    device: torch.device
    precision: str

    def step(self, batch: GuidedBatch) -> tuple[float, Tensor]:
        """The mean loss of the kept tokens, and which these are."""
        counts = batch.counts._asdict()
        output = self.read(batch)
        (output.loss / counts["kept"]).backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(output.loss.detach()) / counts["kept"], output.weights_BT.cpu()

    def read(self, batch: GuidedBatch) -> Any:
        """A forward pass."""
        counts = batch.counts._asdict()
        with autocast(self.precision, self.device):
            return self.student(**batch.to(self.device).inputs(), num_kept=counts["kept"])


def _side(fields: dict[str, Any], device: torch.device, precision: str) -> Side:
    model = drawn_model(fields, torch.float32).cpu()
    student = GuidedStudent(model, GUIDED).to(device)
    return Side(student, build_optimizer(student, OPTIMIZER, device), device, precision)


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    made = Material(folder, sizes.few)
    rows, scores = materials(made.options(seq_len=sizes.small_length), folder)
    data = DataConfig(train="", seq_len=sizes.small_length)
    collator = Collator(scores, GUIDED, data)
    fields = sizes.small | {"vocab_size": sizes.few.student_ids}
    cpu, device = torch.device("cpu"), local_device()
    left, right = _side(fields, cpu, "fp32"), _side(fields, device, "bf16")
    right.student.load_state_dict(left.student.state_dict())
    losses, same = [], []
    for step in range(sizes.steps):
        places = [(step * sizes.small_rows + i) % len(rows) for i in range(sizes.small_rows)]
        batch = collator([rows[place] for place in places])
        (mine, _), (theirs, _) = left.step(batch), right.step(batch)
        losses.append((mine, theirs))
        if step % max(1, sizes.steps // 10) == 0:
            same.append(_same_choices(left, right, batch))
    mine, theirs = np.array(losses).T
    last = slice(-max(1, sizes.steps // 10), None)
    yield {
        "what": "agreement",
        "steps": sizes.steps,
        "left": "cpu, fp32",
        "right": f"{device.type}, bf16",
        "first_loss": float(mine[0]),
        "largest_difference": float(np.abs(theirs / mine - 1).max()),
        "last_losses": [float(mine[last].mean()), float(theirs[last].mean())],
        "same_choices": round(float(np.mean(same)), 5),
    }


def _same_choices(left: Side, right: Side, batch: GuidedBatch) -> float:
    """Of the tokens that one side keeps, how many the other keeps under the same weights."""
    own = {name: value.clone() for name, value in right.student.state_dict().items()}
    right.student.load_state_dict(left.student.state_dict())
    with torch.no_grad():
        kept = [side.read(batch).weights_BT.cpu() > 0 for side in (left, right)]
    right.student.load_state_dict(own)
    return float((kept[0] & kept[1]).sum() / kept[0].sum())


if __name__ == "__main__":
    main(measure)
