"""One optimizer step: the counts of all processes, then forward and backward through each
micro-batch, the loss scaled by one count for the whole step, then the update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import accelerate
import torch
from accelerate.utils import DistributedType
from torch import Tensor

from vocagno.config.optimizer import OptimizerConfig
from vocagno.config.train import TrainConfig
from vocagno.guidance.collator import Batch
from vocagno.guidance.methods.base import Method
from vocagno.guidance.totals import TokenCounts
from vocagno.system.collectives import HostSum
from vocagno.teacher.live import LiveTeacher
from vocagno.teacher.scorer import Pass
from vocagno.training.metrics import StepRecord, Window
from vocagno.training.optimizer import (
    gradient_norm,
    learning_rate,
    loss_scale,
    set_learning_rate,
)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of this process, and what a live teacher has to do for them."""

    batch: Batch
    passes: Sequence[Pass] = ()


class Stepper:
    """Takes optimizer steps with one student."""

    def __init__(
        self,
        train: TrainConfig,
        optimizer_config: OptimizerConfig,
        method: Method,
        accelerator: accelerate.Accelerator,
        student: Any,
        optimizer: Any,
        live: LiveTeacher | None,
        host_sum: HostSum,
        *,
        is_teacher_shared: bool = False,
    ) -> None:
        """`is_teacher_shared`: whether all processes hold one live teacher between them."""
        self.train = train
        self.optimizer_config = optimizer_config
        self.method = method
        self.is_teacher_shared = is_teacher_shared
        self.accelerator = accelerator
        self.student = student
        self.optimizer = optimizer
        self.live = live
        self.host_sum = host_sum
        self._is_ddp = accelerator.distributed_type in (
            DistributedType.MULTI_GPU,
            DistributedType.MULTI_CPU,
        )

    def step(
        self, step: int, micro_batches: Sequence[MicroBatch], window: Window, *, stop: bool
    ) -> bool:
        """Takes step number `step`; True if any process was told to stop."""
        guidance, num_processes = self.method.guidance, self.accelerator.num_processes
        local = torch.stack([micro.batch.counts.tensor() for micro in micro_batches])
        shared = self.host_sum(torch.cat([local.flatten(), torch.tensor([int(stop)])]))
        counts = TokenCounts.of(shared[:-1].view_as(local).sum(0))
        is_mean_of_all = guidance.normalize == "tokens"
        denominator = counts.predicted if is_mean_of_all else counts.kept
        scale = loss_scale(num_processes, len(micro_batches), denominator)
        rate = learning_rate(step, self.train.steps, self.optimizer_config)
        set_learning_rate(self.optimizer, rate)
        sums, row_sums = [], []
        for micro, num_passes in zip(
            micro_batches, self._numbers_of_passes(micro_batches), strict=True
        ):
            tensors = micro.batch.to(self.accelerator.device)
            given: dict[str, Any] = {}
            if self.live is not None:
                with window.teacher_time.measured():
                    given = self.live.guide(micro.batch.live, tensors, micro.passes, num_passes)
            with self.accelerator.accumulate(self.student):
                output = self.student(**(tensors | given), num_kept=micro.batch.counts.kept)
                self.accelerator.backward(output.loss * scale)
            sums.append(output.sums)
            row_sums.append(output.nll_BT.sum(1))
        norm, is_skipped = self._update()
        total = torch.stack(sums).sum(0)
        window.records.append(StepRecord(step, counts, norm, total, row_sums, is_skipped))
        return bool(shared[-1] > 0)

    def _numbers_of_passes(self, micro_batches: Sequence[MicroBatch]) -> list[int]:
        """Of a live teacher for each micro-batch, on the process that has most if all hold one."""
        numbers = [len(micro.passes) for micro in micro_batches]
        if self.is_teacher_shared:
            numbers = self.host_sum.largest(torch.tensor(numbers)).tolist()
        return numbers

    def _update(self) -> tuple[Tensor, bool]:
        """Clips, steps, clears; the norm of the gradient before clipping, and whether the step was
        skipped because that is NaN or infinite."""
        settings = self.optimizer_config
        parameters = list(self.student.parameters())
        if settings.max_grad_norm is None:
            norm = gradient_norm(parameters)
        else:
            norm = self.accelerator.clip_grad_norm_(parameters, settings.max_grad_norm)
            norm = torch.as_tensor(0.0 if norm is None else norm)  # DeepSpeed: none, or a float
        # Only a run that wants to leave steps out has to wait for the device to know.
        is_skipped = settings.skip_nonfinite and not bool(norm.isfinite())
        if not is_skipped:
            self.optimizer.step()
        # Under DDP gradients are views of its buckets, which stay anyway. Given up, they would be
        # made again next to the buckets by the next step's first micro-batch.
        self.optimizer.zero_grad(set_to_none=not self._is_ddp)
        return norm, is_skipped
