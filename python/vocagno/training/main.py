"""`vocagno train` and `accelerate launch train.py`: from the options to the exit status."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    ProjectConfiguration,
    set_seed,
)
from filelock import FileLock, Timeout
from torch.distributed.fsdp import MixedPrecisionPolicy

from vocagno.config.arguments import Command
from vocagno.config.options import Config
from vocagno.errors import ConfigError, require
from vocagno.guidance.methods import method_of
from vocagno.models.loading import has_apple_gpu
from vocagno.system.collectives import broadcast
from vocagno.system.hub import HubRepository, HubUnreachableError
from vocagno.system.signals import DONE, UNFINISHED, exit_status, terminable
from vocagno.training.configuration import (
    add_command,
    as_config,
    check_facts,
    keep_config,
    keep_inputs,
    run_identity,
)
from vocagno.training.monitoring import check_trackers
from vocagno.training.validation import check_benchmarks

# The numbers of options of glibc's `mallopt` (malloc.h), and their values.
_MALLOPT = (
    (-4, 0),  # M_MMAP_MAX: large tensors are part of the heap, too
    (-1, -1),  # M_TRIM_THRESHOLD: the heap never shrinks
    (-2, 64 * 1024 * 1024),  # M_TOP_PAD: bytes more than it needs, whenever it grows
)


def main(
    arguments: Sequence[str] | None = None,
    default_config: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Trains as configured. Returns: the exit status (`system.signals.exit_status`).

    Args:
        arguments: the words of the command line: `--config FILE`, `--optimizer.lr 1e-4` and so on.
        default_config: used if the words name neither a configuration (`--config`) nor a text
            (`--data`, `--data.train`, or a corpus of several: `--data.train.NAME`). A run on a text
            of one's own must not inherit a student, a teacher or a learning rate from it.
        prepare: makes what `default_config` needs; only called if it is used.
    """
    command, name = Command(add_command, carry_out), "vocagno train"
    words = list(sys.argv[1:] if arguments is None else arguments)

    def run() -> int:
        # `--data` takes a file or a mapping, in which a text may stand, too; of
        # `--data.train.NAME` the first two parts count.
        options = {".".join(word.partition("=")[0].split(".")[:2]) for word in words}
        if default_config is None or options & {"--config", "--data", "--data.train"}:
            return command(name, words)
        with_default = ["--config", str(default_config), *words]
        command.read_options(name, with_default)  # a mistake is found before anything is made
        print(f"no --config: taking {default_config}", file=sys.stderr)
        if prepare is not None:
            prepare()
        return command(name, with_default)

    return exit_status(run)


def carry_out(options: Any) -> dict[str, Any] | int:
    """Trains until the run is complete or stopped, or estimates it with `--dry_run`.

    Args: options: the parsed options of `add_command`.
    Returns: the exit status, or the estimate (`estimate.estimate_run`).
    """
    config = as_config(options)
    if not options.dry_run:
        return train(config)

    from vocagno.training.estimate import estimate_run

    with terminable():
        accelerator = start(config)
        check_benchmarks(config.eval, accelerator)
        return estimate_run(config, accelerator)


def train(config: Config) -> int:
    """Starts or resumes a run.

    Returns: the exit status: `DONE`, or `UNFINISHED` for a run that was stopped with its state
        saved.

    Raises: HubError if the final model is on disk, but not on the hub, or if the hub refuses the
        repository before the run.
    """
    accelerator, repository = start(config), None
    if accelerator.is_main_process and config.push_to_hub is not None:
        repository = HubRepository(config.push_to_hub, "model", config.hub_private_repo)
    with _lock(config.output) if accelerator.is_main_process else nullcontext():
        if repository is not None:
            try:  # a wrong name or token is found at once
                repository.create()
            except HubUnreachableError as error:
                print(f"warning: {error}; trying again after the last step", file=sys.stderr)
        if not _train(config, accelerator):
            return UNFINISHED
        if repository is not None:
            from vocagno.training.loop import final_folder

            print(f"pushed: {repository.push(final_folder(config.output))}", file=sys.stderr)
        return DONE


@contextmanager
def _lock(output: Path) -> Iterator[None]:
    """Locks the output folder; the system removes the lock with the process, even a killed one.

    Raises: ConfigError if another process trains in the folder.
    """
    output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"output: {output}: another process is training in it; choose another folder, or wait"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _train(config: Config, accelerator: accelerate.Accelerator) -> bool:
    """Checks the folder, resolves the inputs and trains. Returns: True if the run is complete."""
    from vocagno.training.checkpoint import latest_step
    from vocagno.training.inputs import resolve
    from vocagno.training.loop import Training, final_folder

    main_process = accelerator.is_main_process
    keep_config(config, write=main_process)
    # The first process decides: the folder may show the others an older state, or none.
    step = broadcast(latest_step(config.output / "checkpoints"))
    is_complete = broadcast(final_folder(config.output).is_dir())
    if config.resume == "never" and (step or is_complete):
        raise ConfigError(
            f"resume: never, but {config.output} holds a run at step {step}; choose another "
            "`output`, delete that one, or use resume: auto"
        )
    if is_complete:
        if main_process:
            print(f"already complete: {final_folder(config.output)}", file=sys.stderr)
        return True
    check_benchmarks(config.eval, accelerator)
    with terminable():
        check = partial(check_facts, config)  # a corpus that has grown, before it is scored
        inputs = resolve(config, accelerator.device, show_progress=main_process, check=check)
        keep_inputs(config, inputs, write=main_process)
        run = broadcast(run_identity(config.output) if main_process else "")
        training = Training(inputs, accelerator, run)
        set_seed(config.train.seed, device_specific=True)  # processes drop out different states
    complete = training.run()
    if main_process:
        done = f"complete: {final_folder(config.output)}"
        saved = "saved. Run the same command again to resume."
        print(done if complete else saved, file=sys.stderr)
    accelerator.end_training()
    return complete


def keep_freed_memory() -> None:
    """Tells the C library to keep the memory of freed tensors for those of the next step.

    Otherwise glibc returns each large tensor to the system when it is freed. The system clears all
    of its pages again for the next tensor, on one core, while the others wait. It holds for tensors
    of the main thread, which makes those of a step. A C library that is not glibc stays as it is.
    """
    # Windows has no handle of the process itself to look the function up in.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for number, value in _MALLOPT:
            mallopt(number, value)


def start(config: Config) -> accelerate.Accelerator:
    """The accelerator of a run, after checking that the processes have found each other.

    Raises: ConfigError for what this launch cannot run, before anything is scored: the method, the
        batch, the precision, the trackers, the kind of processes.
    """
    method_of(config.guidance)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config.train.accumulation(world)  # refuses a batch that cannot be divided
    require(
        world == 1 or config.teacher.device_map is None,
        f"teacher.device_map: each of the {world} processes would spread its own teacher over all "
        "devices; start one process, or omit it",
    )
    _check_precision(config)
    check_trackers(config.train.log_with)
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=config.train.collective_timeout))
    # Gradients are views of the buckets that DDP sends, not copies.
    bucket_views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    accelerator = accelerate.Accelerator(
        cpu=has_apple_gpu(),
        mixed_precision="bf16" if config.train.precision == "bf16" else "no",
        kwargs_handlers=[timeout, bucket_views],
        log_with=list(config.train.log_with) or None,
        project_config=ProjectConfiguration(str(config.output), str(config.output / "trackers")),
    )
    require(
        world == accelerator.num_processes,
        f"WORLD_SIZE is {world}, but Accelerate sees {accelerator.num_processes} process(es): "
        "each would train separately. On CPU start them with "
        f"`ACCELERATE_USE_CPU=true torchrun --nproc_per_node {world} train.py ...`",
    )
    is_fsdp = accelerator.distributed_type == DistributedType.FSDP
    runs_as = f"Accelerate runs as {accelerator.distributed_type.value}"
    require(
        is_fsdp or os.environ.get("ACCELERATE_USE_FSDP") != "true",
        f"FSDP was asked for, but {runs_as}; it needs a GPU",
    )
    require(
        is_fsdp or not config.teacher.shard,
        f"teacher.shard: needs FSDP2, but {runs_as}; use shard: false, or an FSDP2 configuration",
    )
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    accelerator.gradient_accumulation_steps = config.train.accumulation(world)
    if is_fsdp:
        set_up_fsdp(accelerator.state.fsdp_plugin, config)
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        set_up_deepspeed(accelerator.state.deepspeed_plugin.deepspeed_config, config, world)
    return accelerator


def _check_precision(config: Config) -> None:
    """Checks that device and launcher agree to `train.precision`. Raises: ConfigError if not."""
    precision = config.train.precision
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    require(
        launched in ("no", precision),
        f"train.precision is {precision}, but the launcher asks for mixed precision in {launched}; "
        "set train.precision to bf16, or the launcher's mixed_precision to no",
    )
    on_cuda = precision == "bf16" and torch.cuda.is_available()
    if on_cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ConfigError(
            f"train.precision: {torch.cuda.get_device_name()} has no bfloat16; use fp32"
        )


def set_up_fsdp(plugin: Any, config: Config) -> None:
    """Gives FSDP the precision of the run: shards of weights are bfloat16 if that is the precision.

    Nothing else is cast: the inputs and outputs of a forward pass (losses that are ranked, sums,
    counts) keep their types, and gradients are added up in float32.

    Raises: ConfigError for FSDP1.
    """
    if plugin.fsdp_version != 2:
        raise ConfigError("fsdp_version: 1 is not supported; see configs/accelerate/fsdp2.yaml")
    low = torch.bfloat16 if config.train.precision == "bf16" else None
    plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=torch.float32 if low else None, cast_forward_inputs=False
    )


def set_up_deepspeed(settings: dict[str, Any], config: Config, num_processes: int) -> None:
    """Fills DeepSpeed's settings from the run's. Raises: ConfigError for a contradiction."""
    for name, instead in (("optimizer", "optimizer.*"), ("scheduler", "optimizer.warmup_steps")):
        if name in settings:
            raise ConfigError(f"DeepSpeed's `{name}` is not supported: omit it, see {instead}")
    if settings.get("fp16", {}).get("enabled") is True:
        raise ConfigError("DeepSpeed's `fp16` is not supported: set train.precision to bf16")
    limit = config.optimizer.max_grad_norm
    required = {
        "gradient_clipping": 0.0 if limit is None else limit,
        "gradient_accumulation_steps": config.train.accumulation(num_processes),
        "train_micro_batch_size_per_gpu": config.train.micro_batch,
    }
    for name, value in required.items():
        if settings.get(name, "auto") not in ("auto", value, 1):  # 1: what Accelerate fills in
            raise ConfigError(
                f"DeepSpeed's `{name}` is {settings[name]}, but this run has {value}: omit it, "
                "or give it as auto"
            )
        settings[name] = value
