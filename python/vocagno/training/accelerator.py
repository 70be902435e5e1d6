"""Starting on Accelerate, and small numbers shared among processes without touching the device."""

import os
from datetime import timedelta
from typing import Any

import accelerate
import torch
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    ProjectConfiguration,
)
from torch.distributed.fsdp import MixedPrecisionPolicy

from vocagno.config.options import Config
from vocagno.errors import ConfigError
from vocagno.models.loading import has_apple_gpu
from vocagno.training.monitoring import check_trackers


def start(config: Config) -> accelerate.Accelerator:
    """The accelerator of a run, after checking that the processes found each other."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config.train.accumulation(world)  # says if the batch cannot be dealt out
    if world > 1 and config.teacher.device_map is not None:
        raise ConfigError(
            f"teacher.device_map: each of the {world} processes would spread its own teacher over "
            "all devices; start one process, or omit it"
        )
    _check_precision(config)
    check_trackers(config.train.log_with)
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=config.train.collective_timeout))
    # Gradients are views of the buckets that DDP sends, not copies.
    in_buckets = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = accelerate.Accelerator(
        cpu=has_apple_gpu(),
        mixed_precision="bf16" if config.train.precision == "bf16" else "no",
        kwargs_handlers=[timeout, in_buckets],
        log_with=list(config.train.log_with) or None,
        project_config=ProjectConfiguration(str(config.output), str(config.output / "trackers")),
    )
    if world != accelerator.num_processes:
        raise ConfigError(
            f"WORLD_SIZE is {world}, but Accelerate sees {accelerator.num_processes} process(es): "
            "each would train separately. On CPU start them with "
            f"`ACCELERATE_USE_CPU=true torchrun --nproc_per_node {world} train.py ...`"
        )
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and "FSDP" not in str(
        accelerator.distributed_type
    ):
        raise ConfigError(
            f"FSDP was asked for, but Accelerate runs as {accelerator.distributed_type.value}; "
            "it needs a GPU"
        )
    if config.teacher.shard and "FSDP" not in str(accelerator.distributed_type):
        raise ConfigError(
            f"teacher.shard: needs FSDP2, but Accelerate runs as "
            f"{accelerator.distributed_type.value}; use shard: false, or an FSDP2 configuration"
        )
    accelerator.gradient_accumulation_steps = config.train.accumulation(world)
    if accelerator.distributed_type == DistributedType.FSDP:
        set_up_fsdp(accelerator.state.fsdp_plugin, config)
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        set_up_deepspeed(accelerator.state.deepspeed_plugin.deepspeed_config, config, world)
    return accelerator


def _check_precision(config: Config) -> None:
    """Refuses a precision that is not to be had, or another one than the launcher was told."""
    precision = config.train.precision
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", precision):
        raise ConfigError(
            f"train.precision is {precision}, but the launcher asks for mixed precision in "
            f"{launched}; set train.precision to bf16, or the launcher's mixed_precision to no"
        )
    on_cuda = precision == "bf16" and torch.cuda.is_available()
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"train.precision: {torch.cuda.get_device_name()} has no bfloat16; use fp32"
        )


def set_up_fsdp(plugin: Any, config: Config) -> None:
    """Shards weights in bfloat16 where that is the precision, and nothing else: what goes into a
    forward pass and comes out of it (losses that are ranked, sums, counts) keeps its type, and
    gradients are added up in float32.

    Raises: ConfigError for FSDP1.
    """
    if plugin.fsdp_version != 2:
        raise ConfigError("fsdp_version: 1 is not supported; see configs/accelerate/fsdp2.yaml")
    low = torch.bfloat16 if config.train.precision == "bf16" else None
    plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=torch.float32 if low else None, cast_forward_inputs=False
    )


def set_up_deepspeed(settings: dict[str, Any], config: Config, num_processes: int) -> None:
    """Fills DeepSpeed's own configuration from ours.

    Raises: ConfigError for a setting of DeepSpeed's that contradicts ours, naming both.
    """
    for name, instead in (("optimizer", "optimizer.*"), ("scheduler", "optimizer.warmup_steps")):
        if name in settings:
            raise ConfigError(f"DeepSpeed's `{name}` is not supported: omit it, see {instead}")
    if config.optimizer.skip_nonfinite:
        raise ConfigError("optimizer.skip_nonfinite: DeepSpeed steps by itself; use false")
    if settings.get("fp16", {}).get("enabled") is True:
        raise ConfigError("DeepSpeed's `fp16` is not supported: set train.precision to bf16")
    limit = config.optimizer.max_grad_norm
    ours = {
        "gradient_clipping": 0.0 if limit is None else limit,
        "gradient_accumulation_steps": config.train.accumulation(num_processes),
        "train_micro_batch_size_per_gpu": config.train.micro_batch,
    }
    for name, value in ours.items():
        if settings.get(name, "auto") not in ("auto", value, 1):  # 1: what Accelerate fills in
            raise ConfigError(
                f"DeepSpeed's `{name}` is {settings[name]}, but this run has {value}: omit it, "
                "or give it as auto"
            )
        settings[name] = value
