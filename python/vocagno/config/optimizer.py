"""Options of the optimizer and of its learning rate."""

from dataclasses import dataclass
from typing import Literal

from vocagno.config.option_types import check_types
from vocagno.errors import require, require_at_least

Schedule = Literal["cosine", "linear", "wsd", "constant"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and the schedule of its learning rate."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """adamw: torch's; on CUDA one kernel updates all weights (`fused`). adamw_8bit: torchao's; its
    state has 2 bytes a weight, not 8; needs `vocagno[torchao]`, and a C++ compiler on CPU."""
    lr: float = 8e-5
    """Highest learning rate."""
    min_lr: float = 8e-6
    """Learning rate of the last step."""
    warmup_steps: int = 0
    """Steps in which the rate rises linearly to `lr`."""
    schedule: Schedule = "cosine"
    """After the warm-up, down to `min_lr`: half a cosine; a line (`linear`); `lr` until the last
    `decay_steps`, then a line (`wsd`: warm-up, stable, decay); or `lr` to the end (`constant`)."""
    decay_steps: int | None = None
    """Steps of the decay of `wsd`; default: a fifth of all steps."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    """Decoupled; of matrices only (not of norms and biases)."""
    max_grad_norm: float | None = 1.0
    """Clipping of the norm of the gradient of a step; null: none."""
    skip_nonfinite: bool = False
    """Skip and count steps with a NaN or infinite gradient, instead of stopping. Costs a device
    sync per step."""

    def __post_init__(self) -> None:
        check_types("optimizer", self)
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"optimizer.betas must be in [0, 1), got {self.betas}",
        )
        require_at_least(0, "optimizer", self, "eps", "weight_decay", "warmup_steps")
        require(
            self.decay_steps is None or self.schedule == "wsd",
            f"optimizer.decay_steps: of schedule wsd, not of {self.schedule}",
        )
        require(
            self.decay_steps is None or self.decay_steps > 0,
            f"optimizer.decay_steps must be positive, got {self.decay_steps}",
        )
        require(self.lr > 0, f"optimizer.lr must be positive, got {self.lr}")
        require(
            0 <= self.min_lr <= self.lr,
            f"optimizer.min_lr must be in [0, lr = {self.lr}], got {self.min_lr}",
        )
        require(
            self.max_grad_norm is None or self.max_grad_norm > 0,
            f"optimizer.max_grad_norm must be positive or null, got {self.max_grad_norm}",
        )
