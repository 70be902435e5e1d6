"""Loads causal language models, and refuses files that lack weights of the configuration or hold
others.

transformers makes a missing weight at random and skips an unexpected one, with a table on
stderr. Losses of such a model look like losses.
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from vocagno.errors import ConfigError, naming
from vocagno.system.files import refuse_pointers

_GGUF_OPTIONS = {"teacher.model": "teacher.gguf_file", "model": "--gguf_file"}
"""Options that take a GGUF file, by the one that names its model."""
_WRAPPERS = {
    "_orig_mod.": "torch.compile: save `model._orig_mod`",
    "base_model.model.": "peft: save `model.merge_and_unload()`",
    "_fsdp_wrapped_module.": "FSDP: save its `state_dict`",
    "module.": "DDP or DeepSpeed: save `model.module`",
}
"""Parts of names that wrappers of a model add, and how it is saved without."""
# Masks and rotary frequencies, which old files hold and models now compute: GPT-2, GPT-J, GPT-Neo,
# CodeGen. Later releases of transformers know most of them.
_COMPUTED = re.compile(r"\.(inv_freq|causal_mask|masked_bias|(attn|attention)\.bias)$")
_SHOWN = 3


def check_folder(name: str, option: str, gguf_file: str | None = None) -> bool:
    """Returns True if `name` is the folder of a model, False if it is a name on the hub.

    Raises: ConfigError, for `option`, for a file or a path to nothing, and for a folder with GGUF
        files of which none is named.
    """
    path = Path(name)
    gguf_option = _GGUF_OPTIONS.get(option)
    ways_out = {
        True: f"name its folder, and the file with {gguf_option}",
        False: "make a folder of it by `vocagno unpack FILE --out FOLDER`, and name that",
    }
    # Each case is named here, as transformers takes a path to nothing for a name on the hub, and
    # answers that the name has a wrong form.
    if path.is_file():
        is_gguf = path.suffix == ".gguf"
        way_out = ways_out[gguf_option is not None] if is_gguf else "name its folder"
        raise ConfigError(f"{option}: {name} is a file, not the folder of a model; {way_out}")
    if not path.exists() and name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"{option}: no folder {name}")
    # A folder with a configuration may hold GGUF files, too: its own weights are read then.
    if not path.is_dir() or gguf_file is not None or (path / "config.json").exists():
        return path.is_dir()
    if files := sorted(file.name for file in path.glob("*.gguf")):
        way_out = f"name one with {gguf_option}" if gguf_option else ways_out[False]
        shown = ", ".join(files[:_SHOWN])
        raise ConfigError(f"{option}: {name} holds GGUF files ({shown}); {way_out}")
    return True


def check_no_adapter(name: str, option: str) -> None:
    """Raises: ConfigError for a model with adapter files, in a folder or on the hub. With peft
    installed, transformers applies them unasked, and a second time to weights that they are merged
    into; without it, it ignores them."""
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(name) is not None:
        raise ConfigError(
            f"{option}: {name} has an adapter (adapter_config.json), which is not applied; if its "
            "weights are merged already, move adapter_config.json and adapter_model.* away, else "
            "name a folder that peft's `merge_and_unload().save_pretrained(FOLDER)` has written"
        )


def model_settings(name: str, option: str, gguf_file: str | None = None) -> Any:
    """Loads the transformers configuration of a model, without its weights.
    Raises: ConfigError, for `option`, for a model that is not there; as `check_folder` and, for a
        folder, `check_no_adapter`."""
    from transformers import AutoConfig

    where = option
    if check_folder(name, option, gguf_file):
        check_no_adapter(name, option)
        folder = Path(name)
        if gguf_file is None and not (folder / "config.json").is_file():
            raise ConfigError(f"{option}: no config.json in {name}; is it the folder of a model?")
        weights = [folder / gguf_file] if gguf_file else sorted(folder.glob("*.safetensors*"))
        refuse_pointers([folder / "config.json", folder / "tokenizer.json", *weights], ConfigError)
    else:
        where = f"{option}: no folder {name}, and not found on the hub"
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    with naming(where):
        return AutoConfig.from_pretrained(name, **options)


def largest_input(settings: Any) -> int | None:
    """Returns the number of tokens that a model can read at once, by its configuration; None if
    there is no limit. Beyond it many models give wrong losses, and no error."""
    longest: int | None = getattr(settings.get_text_config(), "max_position_embeddings", None)
    return None if longest is None or longest < 0 else longest  # XLNet has -1


def rotary_settings(settings: Any) -> dict[str, Any]:
    """Returns the settings of a model's rotary embedding; empty if it has none."""
    return getattr(settings.get_text_config(), "rope_parameters", None) or {}


def causal_model(name: str, option: str, *, gguf_file: str | None = None, **options: Any) -> Any:
    """Loads a causal language model with the weights of its files: safetensors or GGUF, no pickle.

    Args:
        name: of a folder or on the hub.
        option: the option that names the model, for errors.
        options: arguments of transformers' `from_pretrained`.
    Raises: ConfigError for files that lack weights, or hold others; as `model_settings`.
    """
    from transformers import AutoModelForCausalLM

    settings = model_settings(name, option, gguf_file)
    # `model_settings` looks into folders only; this asks the hub, too.
    check_no_adapter(name, option)
    options |= {"use_safetensors": True} if gguf_file is None else {"gguf_file": gguf_file}
    is_folder = Path(name).is_dir()
    # Before they are loaded, where they are here already: old releases of transformers stop at such
    # weights with an error that does not name them.
    if gguf_file is None and is_folder:
        _check_scales(name, option, settings)
    with naming(option):
        # Shapes that differ are taken from the report, to name them with the other faults. Without
        # `ignore_mismatched_sizes`, transformers' error names that option as the remedy.
        model, report = AutoModelForCausalLM.from_pretrained(
            name, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        unexpected = {key for key in report["unexpected_keys"] if not _COMPUTED.search(key)}
        if gguf_file is not None:
            reader = _gguf_reader(name, gguf_file)
            unexpected = _unread_tensors(reader, model)
            _check_rotary_scaling(reader, gguf_file, model)
    missing = report["missing_keys"]
    if gguf_file is None and not is_folder:
        _check_scales(name, option, settings)
    if unexpected and gguf_file is None and getattr(model, "hf_quantizer", None) is not None:
        # Quantized formats store scales and the like next to the weights, under names that differ
        # from format to format.
        if scales := _inside_layers(unexpected, model):
            print(f"warning: {option}: not read from {name}: {_some(scales)}", file=sys.stderr)
        unexpected -= scales
    if wrong := _differences(missing, unexpected, report["mismatched_keys"]):
        raise ConfigError(
            f"{option}: the weights of {name} are not those of its configuration: "
            f"{'; '.join(wrong)}. {_remedy(missing, unexpected)}"
        )
    text = model.config.get_text_config()
    if getattr(text, "tie_word_embeddings", False) and not model.all_tied_weights_keys:
        # The file has a head of its own. lm-eval calls `tie_weights`, which would replace it.
        text.tie_word_embeddings = model.config.tie_word_embeddings = False
    return model


def _check_scales(name: str, option: str, settings: Any) -> None:
    """Checks that the files of a quantized model scale their float8 weights.

    Raises: ConfigError for weights that transformers would take for their values.
    """
    with naming(option):
        unscaled = _unscaled_weights(name)
    if not unscaled:
        return
    fault = f"{option}: {name} has {len(unscaled)} float8 weights without a scale"
    # The configuration says so also of a model that is dequantized while it is loaded.
    if hasattr(settings, "quantization_config"):
        raise ConfigError(
            f"{fault} ({_some(unscaled)}), which would be read as values up to 448; save the "
            "model again with its scales (`weight_scale_inv`)"
        )
    # A plain cast to float8 is one, and its configuration names no quantization.
    print(f"warning: {fault}; they are taken as they are", file=sys.stderr)


def _unscaled_weights(name: str) -> set[str]:
    """Finds the float8 weights of safetensors files that have no scale there. transformers does not
    report a scale as missing, and reads such a weight as if its scale were 1."""
    from safetensors import safe_open
    from transformers.utils import cached_file

    folder = Path(cached_file(name, "config.json")).parent  # of a model on the hub: its snapshot
    types: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            types |= {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
    # `weight_scale`, `weight_scale_inv`, `gate_up_proj_scale_inv`: the weight's name, and more. A
    # scale of the activations says nothing of the weight next to it.
    scaled = {key[: key.rindex("_scale")] for key in types if "_scale" in key}
    return {
        key
        for key, dtype in types.items()
        if dtype.startswith("F8") and "_scale" not in key and key not in scaled
    }


def _inside_layers(names: Collection[str], model: Any) -> set[str]:
    """Finds the names that belong to a layer of the model, like the scales of its weights."""
    layers = {name: layer for name, layer in model.named_modules() if name}
    filled = tuple(
        f"{name}." for name, layer in layers.items() if layer._parameters or layer._buffers
    )
    return {key for key in names if key.rpartition(".")[0] in layers or key.startswith(filled)}


def _differences(
    missing: Collection[str],
    unexpected: Collection[str],
    mismatched: Collection[tuple[str, Any, Any]],
) -> list[str]:
    """Describes each kind of difference between files and configuration that there is.

    Args: mismatched: name, shape in the file and shape of the model.
    """
    shapes = [f"{key} {tuple(had)}, not {tuple(made)}" for key, had, made in mismatched]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    return [f"{len(keys)} {kind} ({_some(keys)})" for kind, keys in kinds.items() if keys]


def _some(names: Collection[str]) -> str:
    """Joins the first names in alphabetical order, with dots if there are more."""
    return ", ".join(sorted(names)[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)


def _remedy(missing: Collection[str], unexpected: Collection[str]) -> str:
    """Returns a sentence that says how files with these faults are fixed."""
    for name in unexpected:
        for wrapper, way_out in _WRAPPERS.items():
            if name.replace(wrapper, "") in missing:
                return f"Their names have `{wrapper}` of {way_out}, or take it out of the names"
        ends = (name[place.end() :] for place in re.finditer(r"\.", name))
        if inner := next((end for end in ends if end in missing), None):
            return f"Take the prefix `{name.removesuffix(inner)}` out of the names"
    if missing and not unexpected and all(name.endswith("head.weight") for name in missing):
        return "The model was saved without its head: save one of AutoModelForCausalLM"
    return (
        "Missing ones would be random, unexpected ones skipped: save weights and configuration "
        "together, with save_pretrained"
    )


def _gguf_reader(name: str, gguf_file: str) -> Any:
    """Opens a GGUF file of a folder or of the hub."""
    from gguf import GGUFReader
    from transformers.utils import cached_file

    # It reads a vocabulary token by token, which takes seconds for a large one.
    return GGUFReader(cached_file(name, gguf_file))


def _unread_tensors(reader: Any, model: Any) -> set[str]:
    """Finds the tensors of a GGUF file that transformers skips without a report. Rotary factors,
    which it never reads, are for `_check_rotary_scaling`."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    sizes = {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    names = {tensor for tensor in sizes if not tensor.startswith("rope_f")}
    # Experts have other names in the file, so that what is skipped must show in the number, too.
    if sum(map(sizes.__getitem__, names)) <= sum(weight.numel() for weight in model.parameters()):
        return set()
    mapped: dict[str, str] = get_gguf_hf_weights_map(model, TensorProcessor())
    return names - mapped.keys()


def _check_rotary_scaling(reader: Any, gguf_file: str, model: Any) -> None:
    """Rejects a GGUF file whose rotary frequencies are scaled, if transformers has made a model in
    which they are not. llama.cpp keeps the scaling of Llama 3 in a tensor, and others in the
    metadata; transformers reads them for few architectures.
    """
    rope = rotary_settings(model.config)
    # Some models have one mapping for each kind of layer.
    kinds = [part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)]
    if any(kind not in (None, "default") for kind in kinds):
        return
    scaled = [
        str(tensor.name)
        for tensor in reader.tensors
        if tensor.name.startswith(("rope_freqs", "rope_factors")) and (tensor.data != 1).any()
    ]
    for key, field in reader.fields.items():
        if key.endswith(".rope.scaling.type") and field.contents() != "none":
            scaled.append(f"{key}: {field.contents()}")
    if scaled:
        raise ConfigError(
            f"{gguf_file} scales its rotary frequencies ({scaled[0]}), which transformers does not "
            "read from it: the model would be another one beyond the first tokens. Use the "
            "safetensors of the model that was converted"
        )
