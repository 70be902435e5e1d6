"""`vocagno train` and `accelerate launch train.py`: from the options to the exit status."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import set_seed
from filelock import FileLock, Timeout

from vocagno.config.arguments import check_gpu
from vocagno.config.options import Config
from vocagno.errors import ConfigError
from vocagno.system.collectives import agreed
from vocagno.system.hub import HubRepository, HubUnreachableError
from vocagno.system.signals import DONE, UNFINISHED, exit_status, terminable
from vocagno.system.terminal import in_columns
from vocagno.training.accelerator import start
from vocagno.training.configuration import as_config, keep_config, keep_inputs, parse_command

if TYPE_CHECKING:
    from accelerate import Accelerator


def main(
    arguments: Sequence[str] | None = None,
    default_config: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> int:
    """Trains as configured; the exit status (`system.exit_status`).

    Args:
        arguments: as on the command line: `--config FILE`, `--optimizer.lr 1e-4` and the like.
        default_config: used without `--config`.
        prepare: makes what `default_config` needs; only called if it is used.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if any(word.partition("=")[0] == "--config" for word in words):
        default_config = None

    def run() -> int:
        if default_config is None:
            return _carry_out(parse_command(words))
        options = parse_command(["--config", str(default_config), *words])
        print(f"no --config: taking {default_config}", file=sys.stderr)
        if prepare is not None:
            prepare()
        return _carry_out(options)

    return exit_status(run)


def _carry_out(options: Any) -> int:
    check_gpu(options)
    config = as_config(options)
    if not options.dry_run:
        return train(config)
    print(in_columns(dry_run(config, options.gpu)))
    return DONE


def dry_run(config: Config, gpu: str | None) -> dict[str, Any]:
    """What the run takes, as `estimate.estimate_run`."""
    from vocagno.training.estimate import estimate_run

    with terminable():
        return estimate_run(config, gpu)


def train(config: Config) -> int:
    """Starts or resumes a run; the exit status: done, or unfinished with its state saved.

    Raises: HubError if the final model is on disk, but not on the hub, or if the hub refuses the
        repository before the run.
    """
    accelerator = start(config)
    main_process = accelerator.is_main_process
    with _locked(config.output) if main_process else nullcontext():
        if main_process:
            _create_repository(config)
        if not _train(config, accelerator):
            return UNFINISHED
        if main_process:
            _push(config)
        return DONE


def _create_repository(config: Config) -> None:
    """Creates the repository of `push_to_hub`, so that a wrong name or token is found at once."""
    if (repository := _repository(config)) is not None:
        try:
            repository.create()
        except HubUnreachableError as error:
            print(f"warning: {error}; trying again after the last step", file=sys.stderr)


def _push(config: Config) -> None:
    from vocagno.training.loop import final_folder

    if (repository := _repository(config)) is not None:
        print(f"pushed: {repository.push(final_folder(config.output))}", file=sys.stderr)


def _repository(config: Config) -> HubRepository | None:
    if config.push_to_hub is None:
        return None
    return HubRepository(config.push_to_hub, "model", config.hub_private_repo)


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Refuses a folder in which another process trains. The lock goes with the process."""
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


def _train(config: Config, accelerator: "Accelerator") -> bool:
    from vocagno.training.checkpoint import latest_step
    from vocagno.training.inputs import resolve
    from vocagno.training.loop import Training, final_folder

    main_process = accelerator.is_main_process
    keep_config(config, write=main_process)
    step = agreed(latest_step(config.output / "checkpoints"))
    is_complete = agreed(final_folder(config.output).is_dir())
    if config.resume == "never" and (step or is_complete):
        raise ConfigError(
            f"resume: never, but {config.output} holds a run at step {step}; choose another "
            "`output`, delete that one, or use resume: auto"
        )
    if is_complete:
        if main_process:
            print(f"already complete: {final_folder(config.output)}", file=sys.stderr)
        return True
    with terminable():
        inputs = resolve(config, accelerator.device, show_progress=main_process)
        keep_inputs(config, inputs, write=main_process)
        training = Training(inputs, accelerator)
        set_seed(config.train.seed, device_specific=True)  # processes drop out different states
    complete = training.run()
    if main_process:
        done = f"complete: {final_folder(config.output)}"
        saved = "saved. Run the same command again to resume."
        print(done if complete else saved, file=sys.stderr)
    accelerator.end_training()
    return complete
