"""The student with its loss inside its forward pass, as wrappers that shard weights need it, and an
optimizer step: the counts of all processes, then forward and backward through each
micro-batch, the loss scaled by one count for the whole step, then the update by AdamW.

B: rows, T: tokens of a row.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import accelerate
import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vocagno.config.guidance import GuidanceConfig, as_naive
from vocagno.config.options import OptimizerConfig, TrainConfig
from vocagno.guidance.batches import Batch
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method, StudentOutput
from vocagno.guidance.tensors import GuidanceTensors, StudentSide, TokenCounts, check_guidance
from vocagno.models.head import (
    Head,
    base_of,
    head_of,
    hidden_states,
    language_head,
    own_head_of,
    without_wrapper,
)
from vocagno.models.own_head import OwnHead
from vocagno.system.collectives import HostSum
from vocagno.teacher.live import LiveTeacher
from vocagno.teacher.scorer import Pass
from vocagno.training.monitoring import StepRecord, Window

_DDP = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device | None = None
) -> torch.optim.Optimizer:
    """AdamW with weight decay only on matrices.

    Args:
        device: where the weights will be; on CUDA one kernel updates all of them (`fused`), which
            reads the state once and takes no copies of it. Default: not CUDA.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    return torch.optim.AdamW(groups, **options, fused=_is_fused(device))


def _is_fused(device: torch.device | None) -> bool | None:
    return True if device is not None and device.type == "cuda" else None


def settle_optimizer(optimizer: Any, device: torch.device) -> None:
    """After a checkpoint was loaded: torch's AdamW updates as `build_optimizer` chose for the
    device, with the counts of steps where that wants them.

    torch takes both from the checkpoint. Counts on a GPU that are wanted on the host would make it
    wait once for each parameter, in every step.
    """
    fused = _is_fused(device)
    for group in optimizer.param_groups:
        group["fused"] = fused
        for parameter in group["params"]:
            count = optimizer.state.get(parameter, {}).get("step")
            if isinstance(count, Tensor):
                place = parameter.device if fused else torch.device("cpu")
                optimizer.state[parameter]["step"] = count.to(place)


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Linear warm-up from near zero to `lr`, then as `config.schedule` says.

    Depends only on the step, so there is no schedule to save.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    first = config.warmup_steps  # of the decay
    if config.schedule == "wsd":
        first = max(first, steps - 1 - math.ceil(steps / 5))
    progress = min(1.0, max(0.0, step - first) / max(1, steps - 1 - first))
    left = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.min_lr + (config.lr - config.min_lr) * left


def loss_scale(num_processes: int, accumulation: int, count: int) -> float:
    """Factor on a micro-batch's summed loss, so that a step's gradient is that of sum / count.

    `count` is the one denominator of the step, over all its micro-batches and processes. Wrappers
    average gradients over processes and Accelerate's backward divides by the micro-batches of a
    step; this is the one place that undoes both.
    """
    return num_processes * accumulation / max(1, count)  # nothing kept: a loss of 0, not NaN


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of this process, and what a live teacher has to do for them."""

    batch: Batch
    passes: Sequence[Pass] = ()


@dataclass(eq=False)
class Stepper:
    """Takes optimizer steps with one student."""

    train: TrainConfig
    optimizer_config: OptimizerConfig
    method: Method
    accelerator: accelerate.Accelerator
    student: Any
    optimizer: Any
    live: LiveTeacher | None
    host_sum: HostSum
    is_teacher_shared: bool = False
    """Whether all processes hold one live teacher between them."""

    def step(
        self, step: int, micro_batches: Sequence[MicroBatch], window: Window, *, stop: bool
    ) -> bool:
        """Takes step number `step`; True if any process was told to stop."""
        guidance, num_processes = self.method.guidance, self.accelerator.num_processes
        local = torch.stack([micro.batch.counts.tensor() for micro in micro_batches])
        shared = self.host_sum(torch.cat([local.flatten(), torch.tensor([int(stop)])]))
        counts = TokenCounts(*shared[:-1].view_as(local).sum(0).tolist())
        is_mean_of_all = guidance.normalize == "tokens"
        denominator = counts.predicted if is_mean_of_all else counts.kept
        scale = loss_scale(num_processes, len(micro_batches), denominator)
        rate = learning_rate(step, self.train.steps, self.optimizer_config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums, row_sums = [], []
        for micro, num_passes in zip(
            micro_batches, self._numbers_of_passes(micro_batches), strict=True
        ):
            tensors = micro.batch.to(self.accelerator.device)
            if self.live is not None:
                with window.teacher_time.measured():
                    found = self.live.guide(micro.batch.live, tensors, micro.passes, num_passes)
                tensors = micro.batch.with_live_losses(tensors, found, self.method)
            with self.accelerator.accumulate(self.student):
                output = self.student(**tensors, num_kept=micro.batch.counts.kept)
                self.accelerator.backward(output.loss * scale)
            sums.append(output.sums)
            row_sums.append(output.nll_BT.sum(1))
        norm = self._update()
        total = torch.stack(sums).sum(0)
        window.records.append(StepRecord(step, counts, norm, total, row_sums))
        return bool(shared[-1] > 0)

    def _numbers_of_passes(self, micro_batches: Sequence[MicroBatch]) -> list[int]:
        """Of a live teacher for each micro-batch, on the process that has most if all hold one."""
        numbers = [len(micro.passes) for micro in micro_batches]
        if self.is_teacher_shared:
            numbers = self.host_sum.largest(torch.tensor(numbers)).tolist()
        return numbers

    def _update(self) -> Tensor:
        """Clips, steps, clears; the norm of the gradient before clipping."""
        settings = self.optimizer_config
        parameters = list(self.student.parameters())
        if settings.max_grad_norm is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        else:
            norm = self.accelerator.clip_grad_norm_(parameters, settings.max_grad_norm)
            norm = torch.as_tensor(0.0 if norm is None else norm)  # DeepSpeed: none, or a float
        self.optimizer.step()
        # Under DDP gradients are views of its buckets, which stay anyway. Given up, they would be
        # made again next to the buckets by the next step's first micro-batch.
        is_ddp = self.accelerator.distributed_type in _DDP
        self.optimizer.zero_grad(set_to_none=not is_ddp)
        return norm


class GuidedForward:
    """The guided forward pass of a causal language model. It holds none of its weights, so it
    serves copies of the model, too."""

    def __init__(
        self, model: Any, guidance: GuidanceConfig, targets: BucketTargets | None = None
    ) -> None:
        """Args: as `GuidedStudent`, but for the wrapper of PEFT."""
        head = language_head(model)
        if getattr(model.config.get_text_config(), "output_router_logits", False):
            warnings.warn(
                f"{type(model).__name__}: `output_router_logits` asks for a load-balancing loss of "
                "the experts, which guided training does not add; set it to false in its "
                "configuration",
                stacklevel=3,
            )
        # Only sizes: the weights are looked up in each pass, because wrappers replace them.
        sizes = head.vocabulary_size, head.hidden_size
        self._own_head: tuple[int, int] | None = sizes if isinstance(head, OwnHead) else None
        self.method: Method = method_of(guidance, targets)
        self._naive: Method = method_of(as_naive(guidance))

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        labels: Tensor,
        teacher_loss: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        is_naive: bool = False,
        **given: Any,
    ) -> StudentOutput:
        """Loss and metrics.

        Args: (B, T) each, as the collator gives them; `labels[:, i]` follows `input_ids[:, i]`.
            Without `teacher_loss`, and with `is_naive`, all tokens are kept and none is ranked.
            `given`: the other fields of `GuidanceTensors`.
        Raises: ValueError for tensors of another shape; ConfigError for those of other guidance.
        """
        method = self.method
        if is_naive or teacher_loss is None:
            method = self._naive
            teacher_loss = torch.full(labels.shape, torch.nan, device=labels.device)
        states_BTH = hidden_states(
            model, input_ids, attention_mask=attention_mask, position_ids=position_ids
        )
        if method.targets is not None:
            given["buckets"] = method.targets.table
        teacher = GuidanceTensors(teacher_loss=teacher_loss, **given)
        teacher.check(labels, method.guidance)
        if teacher.guidance is not None:
            check_guidance(teacher.guidance, method.guidance, "batch and student")
        return method.loss(StudentSide(states_BTH, self._head(model), labels), teacher)

    def _head(self, model: Any) -> Head:
        if self._own_head is None:
            return head_of(model)
        return own_head_of(model, *self._own_head)


class GuidedStudent(nn.Module):
    """A causal language model that returns the sum of the losses it is trained on."""

    def __init__(
        self, model: Any, guidance: GuidanceConfig, targets: BucketTargets | None = None
    ) -> None:
        """Args:
            model: of transformers; a `PeftModel` trains its adapters.
            targets: those of the collator, for `distill`.

        Raises: UnsupportedModelError if the logits of the model are not understood, or as
            `without_wrapper`.
        """
        super().__init__()
        self.model: Any = without_wrapper(model)
        self._guided: GuidedForward = GuidedForward(self.model, guidance, targets)
        # For Accelerate's FSDP: layers are sharded one by one; the head, which forward reads
        # itself, with the whole, and so is what shares parameters with it (BERT's embeddings).
        names = self.model._no_split_modules
        self._no_split_modules = names and sorted(set(names) - _classes_tied_to_head(self.model))

    @property
    def method(self) -> Method:
        return self._guided.method

    @method.setter
    def method(self, method: Method) -> None:
        self._guided.method = method

    def tie_weights(self) -> None:
        """Ties what the model's configuration ties; FSDP asks for it after loading."""
        self.model.tie_weights()

    def forward(self, *inputs: Any, **named: Any) -> StudentOutput:
        """Loss and metrics. Args: as `GuidedForward.__call__`, from `input_ids` on."""
        return self._guided(self.model, *inputs, **named)


def _classes_tied_to_head(model: Any) -> set[str]:
    """The names of the classes of all modules that share a parameter with the head."""
    base = base_of(model)
    heads = (child for child in model.children() if child is not base)
    of_head = {parameter for head in heads for parameter in head.parameters()}
    return {
        type(module).__name__
        for module in base.modules()
        if any(parameter in of_head for parameter in module.parameters())
    }
