"""The configuration of a run: read from files and options, and kept in the folder of the run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vocagno.config.arguments import new_parser, read_arguments
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import Config
from vocagno.errors import ConfigError, InputError
from vocagno.system.files import atomic_file, write_json

if TYPE_CHECKING:
    from vocagno.training.inputs import Inputs

_KEPT = "config.yaml"
"""The file in the output folder that holds the whole configuration."""
_MATERIALS = "materials.json"
"""The file in the output folder that holds the hashes of texts, tokenizers and teacher."""

_MAY_CHANGE = {
    "data": {"cache", "max_refused", "num_workers", "rows"},
    "eval": {"batch_size", "data", "every", "limit", "new_tokens", "tasks"},
    "guidance": {"min_coverage"},
    "hub_private_repo": {""},
    "output": {""},
    "push_to_hub": {""},
    "resume": {""},
    "teacher": {"batch_tokens", "device_map", "scores", "shard"},
    "train": {
        *("checkpoint_every", "eval_every", "log_every", "sample_every", "keep_checkpoints"),
        *("collective_timeout", "compile", "gradient_checkpointing"),
        *("log_with", "project"),
    },
}
"""Options by section that may change when a run resumes: they decide how it is carried out, not
what it learns. `keep_inputs` compares the content of stores."""


def add_options(parser: Any) -> None:
    """Adds the options of a run to a parser."""
    parser.add_argument("--config", action="config", help="YAML file; later options override it")
    parser.add_class_arguments(Config, fail_untyped=True)
    # `GuidanceConfig` replaces null by what the rule or method wants. As a default of the parser
    # such a value would stay when another rule or method is named.
    as_written = {f"guidance.{field.name}": field.default for field in fields(GuidanceConfig)}
    parser.set_defaults(as_written)


def add_command(parser: Any) -> None:
    """Train a student under a teacher, as configured by YAML files and options."""
    add_options(parser)
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="estimate tokens, bytes, memory and hours from a sample and a short burst, and train "
        "nothing",
    )


def parse(arguments: Sequence[str]) -> Config:
    """The configuration in a command line.

    Raises: ConfigError for an option that is unknown, missing or wrong (`read_arguments`).
    """
    return as_config(read_arguments(_parser_of_files(), arguments))


@cache
def _parser_of_files() -> Any:
    """The parser of all configurations of a process: making it takes longer than using it."""
    parser = new_parser(prog="vocagno train")
    add_options(parser)
    return parser


def as_config(options: Any) -> Config:
    """The configuration that the parsed options of `add_options` make."""
    return Config(**{field.name: options[field.name] for field in fields(Config)})


def kept_config(output: Path) -> Config:
    """The configuration of the run in a folder.

    Raises: InputError if the folder holds no run; ConfigError for a configuration that is wrong.
    """
    kept = output / _KEPT
    if not kept.is_file():
        raise InputError(f"{output}: no {_KEPT}; expected the `output` of a run")
    try:
        return parse(["--config", str(kept)])
    except ConfigError as error:
        raise ConfigError(f"{kept}: {error}") from error


def check_same_run(config: Config) -> bool:
    """True if this run was begun in the output folder. Raises: ConfigError if another run was."""
    # A run that failed before its first step leaves a configuration, but nothing to be consistent
    # with: it may be begun again with other options.
    if not (config.output / _KEPT).is_file() or not is_begun(config.output):
        return False
    now, before = config.as_options(), kept_config(config.output).as_options()
    for name, value in before.items():
        # Unless tokens are ranked in the pieces of a step, these may have another size.
        is_cut = name == "train.micro_batch" and config.guidance.scope != "micro_batch"
        section, _, option = name.partition(".")
        may_change = option in _MAY_CHANGE.get(section, ())
        is_same = _as_compared(name, value) == _as_compared(name, now.get(name))
        if not (is_same or is_cut or may_change):
            raise ConfigError(
                f"{name} is {now.get(name)}, but {config.output} holds a run with {value}; "
                "choose another `output`, or delete that one"
            )
    return True


def _as_compared(name: str, value: Any) -> Any:
    """The form of an option's value that must be equal in a resumed run.

    Of mappings of corpora the order counts, too: that of `data.train` decides which rows a step
    reads, and the first one of `data.validation` is the one whose losses a study compares. The
    folders of further teachers' scores do not count, because stores may have moved: `keep_inputs`
    compares their content.
    """
    if name in ("data.train", "data.validation") and isinstance(value, dict):
        return list(value.items())
    if name == "teacher.also" and value:
        return [{key: part for key, part in also.items() if key != "scores"} for also in value]
    return value


def keep_config(config: Config, *, write: bool) -> None:
    """Writes the configuration to the output folder, unless this run was begun in it.

    Args: write: False on all processes but one; these only check.
    Raises: ConfigError if another run was begun in the folder.
    """
    if not check_same_run(config) and write:
        text = yaml.safe_dump(_plain(asdict(config)), allow_unicode=True, sort_keys=False)
        with atomic_file(config.output / _KEPT) as file:
            file.write(text.encode())


def keep_inputs(config: Config, inputs: "Inputs", *, write: bool) -> None:
    """Writes the identities of text, tokenizers and teacher to the output folder.

    Args: write: False on all processes but one; these only check.
    Raises: ConfigError if the run there was begun with other inputs under the same names.
    """
    now = inputs.made_from()
    if not check_facts(config, now) and write:
        write_json(config.output / _MATERIALS, now)


def check_facts(config: Config, now: Mapping[str, Mapping[str, Any]]) -> bool:
    """Compares inputs with those of a run that was begun in the output folder.

    Args: now: facts of inputs, or of some of them (`Inputs.made_from`).
    Returns: True if a run was begun there.
    Raises: ConfigError if it was begun with other inputs under the same names.
    """
    if not (config.output / _MATERIALS).is_file() or not is_begun(config.output):
        return False
    before = kept_inputs(config.output)
    for name, values in now.items():
        # Runs that were begun earlier did not note their held-out rows.
        old_values = before.get(name, values if name.startswith("held-out rows") else {})
        for key in {**old_values, **values}:
            if old_values.get(key) != values.get(key):
                raise ConfigError(
                    f"output: the run in {config.output} was made with another "
                    f"{key.replace('_', ' ')} of the {name}; choose another `output`, or "
                    "delete that one"
                )
    return True


def kept_inputs(output: Path) -> dict[str, dict[str, Any]]:
    """The facts about the inputs of the run in a folder (`Inputs.made_from`), by their names; empty
    if the run has not noted them yet. Raises: InputError for a damaged file."""
    path = output / _MATERIALS
    if not path.is_file():
        return {}
    try:
        inputs: dict[str, dict[str, Any]] = json.loads(path.read_bytes())
        return {name: dict(facts) for name, facts in inputs.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); take it from a copy of the run") from error


def run_identity(output: Path) -> str:
    """A hash of what a run was begun with: the options that may not change, and its inputs.

    Both are read from files that are written once, so it is the same each time that the run
    resumes, also in a later release. A checkpoint notes it, because weights of the same
    architecture fit any run.
    """
    options = yaml.safe_load((output / _KEPT).read_bytes())
    fixed = {}
    for section, values in options.items():
        may_change = _MAY_CHANGE.get(section, set())
        if isinstance(values, dict):
            fixed[section] = {k: v for k, v in values.items() if k not in may_change}
        elif not may_change:
            fixed[section] = values
    content = json.dumps([fixed, json.loads((output / _MATERIALS).read_bytes())])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def is_begun(output: Path) -> bool:
    """True if a run in the folder has come as far as its first step, and did not fail before."""
    return any((output / name).exists() for name in ("metrics.jsonl", "checkpoints", "final"))


def _plain(value: Any) -> Any:
    """A value made of the types of YAML: paths become text, tuples become lists."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value
