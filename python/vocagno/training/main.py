"""`accelerate launch train.py`: from the command line to the exit status."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate.utils import set_seed
from filelock import FileLock, Timeout

from vocagno._vocagno import SpanError
from vocagno.config.arguments import new_parser, read_arguments
from vocagno.config.run import Config
from vocagno.errors import ConfigError, InputError
from vocagno.system.collectives import agreed
from vocagno.system.files import appearing, write_json
from vocagno.system.signals import UNFINISHED, Terminated, terminable
from vocagno.training.accelerator import start

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vocagno.training.inputs import Inputs

_KEPT = "config.yaml"
"""The resolved configuration, in the output folder."""

# Options that may change when a run goes on: they decide how it is carried out, not what it is.
_FREE = (
    "data.cache",
    "data.num_workers",
    "eval.batch_size",
    "eval.data",
    "eval.every",
    "eval.limit",
    "eval.new_tokens",
    "eval.tasks",
    "guidance.min_coverage",
    "optimizer.skip_nonfinite",
    "output",
    "resume",
    "teacher.batch_tokens",
    "teacher.device_map",
    "teacher.shard",
    "train.checkpoint_every",
    "train.collective_timeout",
    "train.compile",
    "train.eval_every",
    "train.gradient_checkpointing",
    "train.head_loss",
    "train.keep_checkpoints",
    "train.log_every",
    "train.log_with",
    "train.project",
    "train.sample_every",
    "train.spike_ratio",
)


def main(
    arguments: Sequence[str] | None = None,
    default_config: Path | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> int:
    """Trains as configured; 0 if complete, 75 if stopped by SIGTERM (state saved), 2 for an error
    of the user's.

    Args:
        arguments: as on the command line: `--config FILE`, `--optimizer.lr 1e-4` and the like.
        default_config: used without `--config`.
        prepare: makes what `default_config` needs, given its folder; only called if it is used.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument.split("=")[0] == "--config" for argument in arguments):
        default_config = None
    if default_config is not None:
        arguments = ["--config", str(default_config), *arguments]
    try:
        config, resolved = parse(arguments)
        if default_config is not None:
            print(f"no --config: taking {default_config}", file=sys.stderr)
            if prepare is not None:
                prepare(default_config.parent)
        return UNFINISHED if not train(config, resolved) else 0
    except Terminated:  # before the first step
        print("SIGTERM: stopped; run again to go on", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        print("interrupted; what was saved stays, run again to go on", file=sys.stderr)
        return 130
    except (InputError, SpanError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def parse(arguments: Sequence[str]) -> tuple[Config, str]:
    """The configuration, and the same resolved as YAML.

    Raises: ConfigError for an unknown option or a value of the wrong kind.
    """
    parser = new_parser(prog="train.py", description=Config.__doc__)
    parser.add_argument("--config", action="config", help="YAML file; later options override it")
    parser.add_class_arguments(Config, fail_untyped=True)
    namespace, values = read_arguments(parser, arguments)
    values.pop("config", None)
    resolved = parser.dump(namespace.clone(), skip_unset=False)
    return Config(**dict(values.items())), resolved


def train(config: Config, resolved: str) -> bool:
    """Runs or goes on with a run; True if it is complete."""
    accelerator = start(config)
    main_process = accelerator.is_main_process
    with _alone(config.output) if main_process else nullcontext():
        return _train(config, resolved, accelerator)


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Refuses to train where another run is at it; the lock goes with the process."""
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


def _train(config: Config, resolved: str, accelerator: "Accelerator") -> bool:
    from vocagno.training.checkpoint import latest_step
    from vocagno.training.inputs import resolve
    from vocagno.training.loop import Training, final_folder

    main_process = accelerator.is_main_process
    _same_run(config, resolved, write=main_process)
    step = agreed(latest_step(config.output / "checkpoints"))
    is_complete = agreed(final_folder(config.output).is_dir())
    if config.resume == "never" and (step or is_complete):
        raise ConfigError(
            f"resume: never, but {config.output} holds a run at step {step}; choose another "
            "`output`, delete that one, or go on with resume: auto"
        )
    if is_complete:
        if main_process:
            print(f"already complete: {final_folder(config.output)}", file=sys.stderr)
        return True
    with terminable():
        inputs = resolve(config, accelerator.device, show_progress=main_process)
        _same_inputs(config, inputs, accelerator.num_processes, write=main_process)
        training = Training(inputs, accelerator)
        set_seed(config.train.seed, device_specific=True)  # processes drop out different states
    complete = training.run()
    if main_process:
        done = f"complete: {final_folder(config.output)}"
        print(done if complete else "saved; run again to resume", file=sys.stderr)
    accelerator.end_training()
    return complete


def kept_config(output: Path) -> Config:
    """The resolved configuration of the run in a folder.

    Raises: InputError if there is none.
    """
    kept = output / _KEPT
    if not kept.is_file():
        raise InputError(f"{output}: no {_KEPT}; expected the `output` of a run")
    return parse(["--config", str(kept)])[0]


def check_same_run(config: Config) -> bool:
    """Whether the output folder holds a run that was begun before.

    Raises: ConfigError if that has another configuration.
    """
    if not (config.output / _KEPT).is_file() or not _is_begun(config.output):
        return False
    now, before = config.as_options(), kept_config(config.output)
    for name, value in before.as_options().items():
        if name not in _free(config) and value != now.get(name):
            raise ConfigError(
                f"{name} is {now.get(name)}, but {config.output} holds a run with {value}; "
                "choose another `output`, or delete that one"
            )
    return True


def _is_begun(output: Path) -> bool:
    """Whether a run has come as far as its first step, and not failed before."""
    return any((output / name).exists() for name in ("metrics.jsonl", "checkpoints", "final"))


def _same_run(config: Config, resolved: str, *, write: bool) -> None:
    """Keeps the resolved configuration in the output folder; refuses to go on with another one."""
    if not check_same_run(config) and write:
        with appearing(config.output / _KEPT) as file:
            file.write(resolved.encode())


def _free(config: Config) -> tuple[str, ...]:
    """What may change: the cut of a step too, unless tokens are ranked in its pieces."""
    return _FREE if config.guidance.scope == "micro_batch" else (*_FREE, "train.micro_batch")


def _same_inputs(config: Config, inputs: "Inputs", num_processes: int, *, write: bool) -> None:
    """Refuses to resume with another text, tokenizer or teacher under the same names."""
    path = config.output / "materials.json"
    now = inputs.made_from()
    if config.guidance.scope == "step":
        micro_step = config.train.micro_batch * num_processes
        now["ranking"] = {"rows_of_a_micro-step": micro_step}
    if path.is_file() and _is_begun(config.output):
        before = json.loads(path.read_bytes())
        changed = [
            f"{key.replace('_', ' ')} of the {name}"
            for name, values in now.items()
            for key, value in values.items()
            if before.get(name, {}).get(key) != value
        ]
        if changed:
            raise ConfigError(
                f"output: the run in {config.output} was made with another {changed[0]}; choose "
                "another `output`, or delete that one"
            )
    elif write:
        write_json(path, now)
