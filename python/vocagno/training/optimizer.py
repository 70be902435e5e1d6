"""AdamW, its schedule, and the scale that makes a step's gradient independent of its layout."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vocagno.config.optimizer import OptimizerConfig
from vocagno.errors import ConfigError


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, device: torch.device | None = None
) -> torch.optim.Optimizer:
    """AdamW with weight decay only on matrices.

    Args:
        device: where the weights will be; on CUDA one kernel updates all of them (`fused`), which
            reads the state once and takes no copies of it. Default: not CUDA.
    Raises: ConfigError without torchao, for `adamw_8bit`.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    if config.name == "adamw":
        return torch.optim.AdamW(groups, **options, fused=_is_fused(device))
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            "optimizer.name: adamw_8bit needs torchao: pip install 'vocagno[torchao]'"
        ) from error
    optimizer: torch.optim.Optimizer = AdamW8bit(groups, **options)
    return optimizer


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
        if "fused" not in group:  # of another optimizer
            continue
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
        first = max(first, steps - 1 - (config.decay_steps or math.ceil(steps / 5)))
    progress = min(1.0, max(0.0, step - first) / max(1, steps - 1 - first))
    left = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.min_lr + (config.lr - config.min_lr) * left


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # compiled into the update of torchao's
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def loss_scale(num_processes: int, accumulation: int, count: int) -> float:
    """Factor on a micro-batch's summed loss, so that a step's gradient is that of sum / count.

    `count` is the one denominator of the step, over all its micro-batches and processes. Wrappers
    average gradients over processes and Accelerate's backward divides by the micro-batches of a
    step; this is the one place that undoes both.
    """
    return num_processes * accumulation / max(1, count)  # nothing kept: a loss of 0, not NaN


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Norm of the gradient, where nothing is clipped."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
