"""The student with its loss, and the optimizer step.

`GuidedStudent` computes the loss in `forward`, because DDP and FSDP hook `forward`. `Stepper.step`
takes one optimizer step: add the token counts of all processes; run each micro-batch forward and
backward, its loss divided by one count over all processes and micro-batches, by default that of all
predicted tokens, dropped ones, too; clip; update. `GuidedTrainer` divides in the same way.

B: rows, T: tokens of a row, H: size of a hidden state.
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
from vocagno.guidance.batch import INPUTS, GuidedBatch, TokenCounts, check_guidance
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import with_live_losses
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method, StudentOutput
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
from vocagno.training.monitoring import StepRecord, Window

_DDP = (DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device | None = None
) -> torch.optim.Optimizer:
    """Makes an AdamW that decays matrices and leaves vectors (biases, norms) as they are.

    Args:
        device: where the weights will be. On CUDA one kernel updates all of them (`fused`): it
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
    """True on CUDA; elsewhere None, with which torch chooses by itself."""
    return True if device is not None and device.type == "cuda" else None


def settle_optimizer(optimizer: Any, device: torch.device) -> None:
    """Sets up torch's AdamW for this device again, after a checkpoint was loaded into it.

    Loading takes the kind of update (`fused`) and the place of the step counts from the checkpoint,
    which another device may have written. Without `fused` the counts belong on the host: on a GPU
    they would make the host wait once for each parameter, in every step.
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
    """The learning rate of a step: a linear warm-up from near zero to `lr`, then `config.schedule`.

    It depends only on the step, so a checkpoint needs no schedule.
    """
    # From step + 1: a rate of 0 would waste the first step.
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    decay_start = config.warmup_steps
    if config.schedule == "wsd":
        decay_start = max(decay_start, steps - 1 - math.ceil(steps / 5))
    # The last step, number steps - 1, trains at `min_lr`.
    progress = min(1.0, max(0.0, step - decay_start) / max(1, steps - 1 - decay_start))
    remainder = 1 - progress
    if config.schedule == "cosine":
        remainder = (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr + (config.lr - config.min_lr) * remainder


def loss_scale(num_processes: int, accumulation: int, count: int) -> float:
    """The factor on a micro-batch's summed loss that makes a step's gradient that of sum / count.

    `count` is the one denominator of the step, over all its micro-batches and processes. Wrappers
    average gradients over processes and Accelerate's backward divides by the micro-batches of a
    step; this is the one place that undoes both.
    """
    return num_processes * accumulation / max(1, count)  # nothing kept: a loss of 0, not NaN


@dataclass(eq=False)
class Stepper:
    """Takes the optimizer steps of one student."""

    train: TrainConfig
    optimizer_config: OptimizerConfig
    method: Method
    accelerator: accelerate.Accelerator
    student: Any
    """The `GuidedStudent`, wrapped by Accelerate."""
    optimizer: Any
    live_teacher: LiveTeacher | None
    host_sum: HostSum
    is_teacher_shared: bool = False
    """True if the processes hold one live teacher together (`teacher.shard`)."""

    def step(
        self, step: int, micro_batches: Sequence[GuidedBatch], window: Window, *, stop: bool
    ) -> bool:
        """Takes one optimizer step; True if any process got a signal to stop.

        Args:
            step: number of steps before this one.
            window: gets the record of the step, whose tensors stay on the device.
            stop: True if this process got a signal to stop.
        """
        guidance, num_processes = self.method.guidance, self.accelerator.num_processes
        # The counts come from the collator, so that the denominator is known before any forward
        # pass, and the host need not ask the device for it.
        local = torch.stack([batch.counts.tensor() for batch in micro_batches])
        # The signal travels with the counts: all processes stop after the same step, and a step
        # needs one sum over the hosts.
        shared = self.host_sum(torch.cat([local.flatten(), torch.tensor([int(stop)])]))
        counts = TokenCounts(*shared[:-1].view_as(local).sum(0).tolist())
        # `counts.kept` is exact wherever `normalize: selected` is allowed, else it may be a bound.
        is_mean_of_all = guidance.normalize == "tokens"
        denominator = counts.predicted if is_mean_of_all else counts.kept
        scale = loss_scale(num_processes, len(micro_batches), denominator)
        rate = learning_rate(step, self.train.steps, self.optimizer_config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums, row_sums = [], []
        passes = self._numbers_of_passes(micro_batches)
        # The sums of all micro-batches and processes are divided by one count. A mean of means
        # would weigh a token more in a micro-batch with few of them: 8 x 1 would not train as 1 x 8
        # does.
        for on_host, num_passes in zip(micro_batches, passes, strict=True):
            batch = on_host.to(self.accelerator.device)
            if self.live_teacher is not None:
                text, plan = batch.live_text, batch.passes
                with window.teacher_time.measure():
                    guided = self.live_teacher.guide(text, batch.inputs(), plan, num_passes)
                batch = with_live_losses(batch, guided, self.method)
            with self.accelerator.accumulate(self.student):
                output = self.student(**batch.inputs(), num_kept=batch.counts.kept)
                self.accelerator.backward(output.loss * scale)
            sums.append(output.sums)
            row_sums.append(output.nll_BT.sum(1))
        norm = self.update()
        total = torch.stack(sums).sum(0)
        window.records.append(StepRecord(step, counts, norm, total, row_sums))
        return bool(shared[-1] > 0)

    def _numbers_of_passes(self, micro_batches: Sequence[GuidedBatch]) -> list[int]:
        """The number of forward passes of a live teacher for each micro-batch.

        The processes take a shared teacher's passes together, so the largest number counts.
        """
        numbers = [len(batch.passes) for batch in micro_batches]
        # A process with fewer passes than the others would leave them waiting in a collective.
        if self.is_teacher_shared:
            numbers = self.host_sum.largest(torch.tensor(numbers)).tolist()
        return numbers

    def update(self) -> Tensor:
        """Clips the gradient, updates the weights and clears the gradient.

        Returns: the norm of the gradient before it was clipped.
        """
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
    """The guided forward pass of a causal language model.

    It holds none of the model's weights, so it serves copies of the model, too.
    """

    def __init__(
        self, model: Any, guidance: GuidanceConfig, targets: BucketTargets | None = None
    ) -> None:
        """Checks that the head is understood, and chooses the method.

        Args:
            model: a model of transformers, without the wrapper of PEFT.
            targets: the buckets of both vocabularies that the collator uses, for `distill`.
        Raises: UnsupportedModelError for a head that is not understood.
        """
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
        is_naive: bool = False,
        **columns: Any,
    ) -> StudentOutput:
        """Computes the loss and the metrics of one micro-batch.

        Args:
            input_ids, labels, ...: (B, T) each, from the collator; `labels[:, i]` follows
                `input_ids[:, i]`.
            teacher_loss: nats; without it all tokens are kept and none is ranked.
            is_naive: True treats the batch as if `teacher_loss` were missing.
            columns: other columns of `GuidedBatch`, by their names.
        Raises: TypeError for names that are no columns of the loss; ValueError for tensors of
            another shape; ConfigError for those of other guidance.
        """
        method = self.method
        if is_naive or teacher_loss is None:
            method = self._naive
            teacher_loss = torch.full(labels.shape, torch.nan, device=labels.device)
        if method.targets is not None:
            columns["buckets"] = method.targets.table
        # A misspelt column or one of the host would have no effect, without a word.
        if unknown := columns.keys() - set(INPUTS):
            raise TypeError(f"{', '.join(sorted(unknown))}: no columns of the student's loss")
        batch = GuidedBatch(labels=labels, teacher_loss=teacher_loss, **columns)
        if batch.piece is not None:  # or documents would see each other: `to` makes their mask
            batch = batch.to(labels.device)
        mask, positions = batch.attention_mask, batch.position_ids
        states_BTH = hidden_states(model, input_ids, attention_mask=mask, position_ids=positions)
        batch.check(labels, method.guidance)
        if batch.guidance is not None:
            check_guidance(batch.guidance, method.guidance, "batch and student")
        return method.loss(states_BTH, self._head(model), batch)

    def _head(self, model: Any) -> Head:
        """The head with the weights that it has now: sharding replaces them."""
        if self._own_head is None:
            return head_of(model)
        return own_head_of(model, *self._own_head)


class GuidedStudent(nn.Module):
    """A causal language model whose `forward` returns the sum of the losses it is trained on."""

    def __init__(
        self, model: Any, guidance: GuidanceConfig, targets: BucketTargets | None = None
    ) -> None:
        """Wraps a model.

        Args:
            model: a model of transformers; a `PeftModel` trains its adapters.
            targets: the buckets of both vocabularies that the collator uses, for `distill`.
        Raises: UnsupportedModelError if the logits of the model, or its wrapper, are not
            understood.
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
        """The method that chooses the tokens and computes the loss; it can be replaced."""
        return self._guided.method

    @method.setter
    def method(self, method: Method) -> None:
        self._guided.method = method

    def tie_weights(self) -> None:
        """Ties the weights that the model's configuration ties; FSDP calls it after loading."""
        self.model.tie_weights()

    def forward(self, *inputs: Any, **named: Any) -> StudentOutput:
        """Computes loss and metrics; the arguments are those of `GuidedForward.__call__` after
        `model`."""
        return self._guided(self.model, *inputs, **named)


def _classes_tied_to_head(model: Any) -> set[str]:
    """The names of the classes of all modules that share a parameter with the head."""
    base = base_of(model)
    heads = (child for child in model.children() if child is not base)
    head_parameters = {parameter for head in heads for parameter in head.parameters()}
    return {
        type(module).__name__
        for module in base.modules()
        if any(parameter in head_parameters for parameter in module.parameters())
    }
