"""Loads, identifies, compiles and shards models."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from vocagno.config.options import StudentConfig
from vocagno.config.teacher import Dtype, TeacherConfig
from vocagno.errors import ConfigError, naming, require
from vocagno.models.head import base_of
from vocagno.models.weights import (
    causal_model,
    check_folder,
    largest_input,
    model_settings,
    rotary_settings,
)
from vocagno.system.files import digest, file_digest, write_json


def decoder_layers(model: Any, option: str) -> list[nn.Module]:
    """Lists the layers of a model, by the classes that it declares in `_no_split_modules`.
    Raises: ConfigError naming the option that needs them, for a model that declares none."""
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(f"{option}: {type(model).__name__} declares no layers; use false")
    return layers


def compile_layers(model: Any) -> None:
    """Compiles each decoder layer; equal layers are compiled once."""
    for layer in decoder_layers(model, "train.compile"):
        layer.compile()


@contextmanager
def graphs_stay_whole() -> Iterator[None]:
    """Stops DDP from splitting the graphs of compiled layers at its bucket boundaries.

    torch splits a model that is compiled as a whole, to overlap communication of gradients with
    their computation. Single layers are small enough for that; splitting them loses fusion.
    """
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield


def shard_over_processes(model: Any, device: torch.device) -> None:
    """Shards every layer over the processes; a layer is gathered while in use (FSDP2).

    Layers move to the device one at a time, so the device never holds all of them. The language
    head is not sharded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for layer in decoder_layers(model, "teacher.shard"):
        fully_shard(layer, mesh=mesh)
    # What belongs to no layer (the embedding, the last norm) is sharded as one unit with the base
    # model, and let go of again after its forward pass: torch keeps the outermost unit by default.
    base = base_of(model)
    fully_shard(base, mesh=mesh, reshard_after_forward=True)
    for child in model.children():
        if child is not base:
            child.to(device)  # weights shared with the base are already there


def checkpoint_activations(model: Any) -> None:
    """Has the decoder layers compute their activations again in the backward pass.
    Args: model: of transformers; releases before 5.23 call it gradient checkpointing only."""
    # Reentrant checkpoints give a layer no gradients if its input has none, as behind a frozen
    # embedding.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


_WEIGHTS = (".safetensors", ".bin", ".gguf", ".json")
"""Suffixes of the files that identify a model's weights. JSON holds its configuration, and the
index of weights in several files."""


def weights_identity(config: TeacherConfig, cache: Path, option: str = "teacher.model") -> str:
    """Identifies a model's weights: by a hub commit, or by a hash of its files (cached by their
    size and times).

    Args: option: the option that an error names.
    """
    name = cast("str", config.model)
    files = _weights_in_folder(config, option)
    if files is None:
        from transformers.utils import cached_file
        from transformers.utils.hub import extract_commit_hash

        file = config.gguf_file or "config.json"
        with naming(f"{option}: no folder {name}, and not found on the hub"):
            commit = extract_commit_hash(cached_file(name, file), None)
        return "/".join((f"{name}@{commit}", *([config.gguf_file] if config.gguf_file else [])))
    hashes = [_cached_digest(file.absolute(), cache) for file in files]
    return digest(*(str(file.relative_to(name)) for file in files), *hashes)


def _weights_in_folder(config: TeacherConfig, option: str) -> list[Path] | None:
    """Lists the weight files if the model is a folder; None if it is a name on the hub.
    Raises: ConfigError if the folder has none."""
    path = Path(cast("str", config.model))
    if not check_folder(str(path), option, config.gguf_file):
        return None
    names = [config.gguf_file] if config.gguf_file else _weight_files(path)
    files = [path / file for file in names]
    if missing := [file for file in files if not file.is_file()]:
        raise ConfigError(f"{option}: {missing[0]} does not exist")
    if not files:
        raise ConfigError(f"{option}: no weights in {path}")
    return files


def _weight_files(folder: Path) -> list[str]:
    """Lists the names of the files in a folder that identify its weights, sorted."""
    return sorted(
        file.name
        for file in folder.iterdir()
        # The tokenizer has a fingerprint of its own: what changes in its files changes no weights.
        if file.suffix in _WEIGHTS and not file.name.startswith(("tokenizer", "special_tokens"))
    )


def _cached_digest(file: Path, cache: Path) -> str:
    """Returns the hash of a file, from the cache unless the file has changed since."""
    stat = file.stat()
    # Other weights copied over these may keep the size and mtime, but not ctime.
    numbers = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    key = digest(str(file), *map(str, numbers))
    cached = cache / "weights" / f"{key}.json"
    if not cached.is_file():
        write_json(cached, file_digest(file))
    return cast("str", json.loads(cached.read_bytes()))


def torch_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Returns the type of a teacher's weights on a device."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return cast("torch.dtype", getattr(torch, dtype))


def local_device() -> torch.device:
    """Returns the device of this process: the accelerator with its local rank, or the CPU.

    A process started by a launcher makes it the current device, which kernels of other libraries
    use.
    """
    accelerator = torch.accelerator.current_accelerator()
    # A build of torch for CUDA names an accelerator also where there is no device.
    if accelerator is None or not torch.accelerator.is_available() or has_apple_gpu():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.accelerator.device_count():
        raise ConfigError(
            f"process {number} of this machine has no {accelerator.type} device: there are only "
            f"{torch.accelerator.device_count()}; start fewer processes"
        )
    if "LOCAL_RANK" in os.environ:
        torch.accelerator.set_device_index(number)
    return torch.device(accelerator.type, number)


def has_apple_gpu() -> bool:
    """Tells whether the accelerator is Apple's (`mps`). It is not used, because it has no float64,
    which our sums need."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == "mps"


def teacher_settings(config: TeacherConfig) -> Any:
    """Loads the transformers configuration of the teacher.
    Raises: ConfigError for a model that is not there or not loadable (`model_settings`)."""
    assert config.model is not None
    return model_settings(config.model, "teacher.model", config.gguf_file)


def check_context(
    config: TeacherConfig, length: int | None = None, option: str = "teacher.context"
) -> None:
    """Rejects a context that the teacher cannot read, or not alike in every batch, before its
    weights are loaded. Args: length: tokens per window, set by `option`; default:
    `teacher.context`."""
    settings, length = teacher_settings(config), length or config.context
    check_positions(settings, length, option, "teacher")
    rope = rotary_settings(settings)
    # transformers takes the factors of Phi-3 by the longest sequence of a batch.
    most = rope.get("original_max_position_embeddings", length)
    if rope.get("rope_type") == "longrope" and length > most:
        raise ConfigError(
            f"{option}: {length} tokens, but beyond {most} the teacher has other rotary "
            f"frequencies (longrope), by which losses would depend on what else is in the batch; "
            f"set {option} to at most {most}"
        )


def load_teacher(config: TeacherConfig, device: torch.device) -> Any:
    """Loads the teacher as a frozen causal language model, on a device or spread over several.

    For a GPU the weights are read directly onto it: a machine with eight GPUs does not need host
    memory for eight copies.
    """
    assert config.model is not None
    options: dict[str, Any] = {"dtype": torch_dtype(config.dtype, device)}
    if config.attention is not None:
        options["attn_implementation"] = config.attention
    if config.device_map is not None:
        options["device_map"] = config.device_map
    elif device.type == "cuda" and not (config.shard or config.tensor_parallel):
        options["device_map"] = {"": device}
    if config.tensor_parallel:
        from transformers.distributed import DistributedConfig

        processes = torch.distributed.get_world_size()
        options["distributed_config"] = DistributedConfig(tp_size=processes)
    model = causal_model(config.model, "teacher.model", gguf_file=config.gguf_file, **options)
    model = model.eval().requires_grad_(False)
    if config.shard:
        shard_over_processes(model, device)
    elif "device_map" not in options and not config.tensor_parallel:
        model = model.to(device)
    return model


def student_settings(
    config: StudentConfig, vocabulary_size: int, seq_len: int, **special_ids: int | None
) -> Any:
    """Loads or makes the transformers configuration of the model to train, without its weights.
    Args: special_ids: `eos_token_id` and `bos_token_id` of the tokenizer, for a new model.
    Raises: ConfigError for an unknown architecture, other special ids, too few ids or positions."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    if config.model is not None:
        settings = model_settings(config.model, "student.model")
        check_positions(settings, seq_len, "data.seq_len", "student")
        # Before the model is loaded, which is after hours of scoring. Some have more embeddings
        # than `vocab_size` says, so one without weights is asked.
        with torch.device("meta"), naming("student.model"):
            empty = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)](settings)
        check_vocabulary(empty, vocabulary_size, "student.")
        return settings
    # More ids than the tokenizer has are allowed: a vocabulary is often padded to a multiple.
    architecture: dict[str, Any] = {"vocab_size": vocabulary_size, **(config.architecture or {})}
    size = architecture["vocab_size"]
    require(
        isinstance(size, int),
        f"student.architecture.vocab_size: expected a number of tokens, got {size!r}; omit it",
    )
    if size < vocabulary_size:
        raise ConfigError(
            f"student.architecture.vocab_size {architecture['vocab_size']} is less than the "
            f"{vocabulary_size} ids of the tokenizer"
        )
    fields = {key: value for key, value in architecture.items() if key != "model_type"}
    for name, token_id in special_ids.items():
        if token_id is not None and fields.get(name, token_id) != token_id:
            raise ConfigError(
                f"student.architecture.{name} {fields[name]} is not the tokenizer's {token_id}; "
                "omit it"
            )
    # Defaults are ids of another tokenizer: answers would end there, and padding learns nothing.
    values = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")) | special_ids | fields
    with naming("student.architecture"):
        settings = AutoConfig.for_model(architecture["model_type"], **values)
    # transformers keeps any field that it is given. A misspelt one would be saved with the model
    # and change nothing.
    if unknown := [key for key in fields if key not in type(settings)().to_dict()]:
        kind = type(settings).__name__
        raise ConfigError(f"student.architecture.{unknown[0]}: not a field of {kind}")
    check_positions(settings, seq_len, "data.seq_len", "student")
    return settings


def load_student(config: StudentConfig, settings: Any, seed: int) -> Any:
    """Loads the model to train, with float32 weights, or makes a new one.
    Args: settings: `student_settings`, of which a new model is made."""
    from transformers import AutoModelForCausalLM

    if config.model is not None:
        # float32, whatever the files have: an update of a learning rate of 1e-5 is less than the
        # last bit of most weights in bfloat16. Mixed precision casts in the forward pass.
        return causal_model(config.model, "student.model", dtype=torch.float32)
    # Right before the weights are made: what was drawn before, by data or teachers, does not count.
    torch.manual_seed(seed)
    with naming("student.architecture"):
        return AutoModelForCausalLM.from_config(settings, dtype=torch.float32)


def set_eos(model: Any, eos_id: int) -> None:
    """Makes the token that ends documents in training the EOS of the configurations that are saved
    with a model. Its generations end there, and where they ended before: a chat model keeps its end
    of a turn."""
    for settings in (model.config, model.config.get_text_config()):
        if hasattr(settings, "eos_token_id"):
            settings.eos_token_id = eos_id
    if model.generation_config is not None:
        ends = model.generation_config.eos_token_id
        earlier_ends = ends if isinstance(ends, list) else [ends]
        other_ends = [end for end in earlier_ends if end not in (None, eos_id)]
        model.generation_config.eos_token_id = [eos_id, *other_ends] if other_ends else eos_id


def check_vocabulary(model: Any, vocabulary_size: int, section: str) -> None:
    """Rejects a tokenizer with more ids than the model has embeddings; warns of one with many
    fewer. Args: section: of the options, such as "teacher."; "" outside a configuration."""
    rows = model.get_input_embeddings().weight.shape[0]
    if rows < vocabulary_size:
        raise ConfigError(
            f"{section}tokenizer: {vocabulary_size} ids, but {section}model has {rows} embeddings: "
            "they do not belong together"
        )
    # Padded rows are usual; with less than half of them in use, the tokenizer may be another
    # model's.
    if vocabulary_size < rows / 2:
        print(
            f"warning: {section}tokenizer has {vocabulary_size:,} ids, but {section}model has "
            f"{rows:,} embeddings: is it the model's own?",
            file=sys.stderr,
        )


def check_positions(settings: Any, length: int, option: str, role: str) -> None:
    """Rejects sequences longer than the model's maximum."""
    limit = largest_input(settings)
    if limit is not None and length > limit:
        raise ConfigError(
            f"{option}: {length} tokens, but the {role} reads at most {limit}; set {option} to at "
            f"most {limit}"
        )
