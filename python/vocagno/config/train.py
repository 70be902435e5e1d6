"""Options of the loop: steps, batches, precision, logs, checkpoints."""

from dataclasses import dataclass, field
from typing import Literal

from vocagno.config.option_types import check_types
from vocagno.errors import require, require_at_least

_MOST_SEED = 2**31 - 1
"""NumPy takes 32 bits, and each process adds its number."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop."""

    steps: int
    """Optimizer steps of the whole run."""
    global_batch: int = 8
    """Rows of an optimizer step, over all processes."""
    micro_batch: int = 8
    """Rows of one forward pass of one process."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: mixed precision, with weights and losses in float32."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of layers, and compute the rest again in the backward pass."""
    compile: bool = False
    """Compile the decoder layers (torch.compile); equal ones share the result."""
    profile_steps: int = 0
    """Steps that torch.profiler traces, after two others, into `profile` in `output`; 0: none."""
    seed: int = 0
    """Of new weights and of the order of the rows."""
    log_every: int = 10
    eval_every: int = 100
    """Steps between validations; one more at the end."""
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    sample_every: int | None = None
    """Steps between pages that show what the teacher chose (`samples/step_N.html`); null: none."""
    log_with: list[Literal["tensorboard", "wandb", "trackio"]] = field(default_factory=list)
    """Trackers that get the lines of `metrics.jsonl`; each needs its own package."""
    project: str = "vocagno"
    """What the trackers call the runs that belong together."""
    spike_ratio: float = 1.5
    """A step's loss this many times that of the window before is logged with its documents."""
    collective_timeout: float = 1800.0
    """Seconds that a process waits for the others in a step before it stops. Benchmarks in training
    may take longer."""

    def __post_init__(self) -> None:
        check_types("train", self)
        batches = ("steps", "global_batch", "micro_batch")
        intervals = ("log_every", "eval_every", "checkpoint_every", "sample_every")
        require_at_least(1, "train", self, *batches, *intervals, "keep_checkpoints")
        require_at_least(0, "train", self, "seed", "profile_steps")
        require(
            self.seed <= _MOST_SEED, f"train.seed must be at most {_MOST_SEED}, got {self.seed}"
        )
        require(self.spike_ratio > 1, f"train.spike_ratio must be above 1, got {self.spike_ratio}")

    def accumulation(self, num_processes: int) -> int:
        """Forward passes of each process in one optimizer step."""
        rows = self.micro_batch * num_processes
        require(
            self.global_batch % rows == 0,
            f"train.global_batch {self.global_batch} is not a multiple of train.micro_batch "
            f"{self.micro_batch} x {num_processes} processes",
        )
        return self.global_batch // rows
