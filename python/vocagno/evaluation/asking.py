"""Runs prompts through a model with lm-eval: greedy, with stop strings, without truncation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.evaluation.benchmarks import Benchmark, Examples, Item

NEW_TOKENS = 1024
"""Maximum length of an answer, as in the paper's harness."""
STOP = ("</s>", "\n\nQuestion:", "\n\nProblem:")
"""Strings that end an answer, as in the paper's harness."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An item with its prompt for one model."""

    item: Item
    prompt: str
    room: int
    """Maximum number of new tokens: the requested number, or what the context leaves."""


def load(
    model: str, *, dtype: str, device: str | None, gguf_file: str | None, batch_size: int
) -> Any:
    """Loads a model with its tokenizer for lm-eval.

    Raises: InputError for a model that cannot be loaded or has no tokenizer, or for a device that
        this machine lacks.
    """
    from lm_eval.models.huggingface import HFLM

    from vocagno.errors import naming
    from vocagno.models.loading import weights_options

    device = checked_device(device)
    folder = Path(model)
    if (
        gguf_file is None
        and folder.is_dir()
        and not any((folder / name).is_file() for name in _TOKENIZERS)
    ):
        raise InputError(
            f"{model}: a folder without a tokenizer ({', '.join(_TOKENIZERS)}); save the model's "
            "tokenizer there"
        )
    with naming(f"model {model}"):
        return HFLM(
            pretrained=model,
            dtype=dtype,
            device=device,
            batch_size=batch_size,
            **weights_options(gguf_file),
        )


def checked_device(device: str | None) -> str:
    """A device of this machine, by default CUDA or else the CPU.

    Raises: InputError for another name, for which lm-eval would silently take the default.
    """
    import torch

    devices = ["cpu"]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        kind = accelerator.type
        numbered = [f"{kind}:{index}" for index in range(torch.accelerator.device_count())]
        devices += [kind, *numbered] if kind in ("cuda", "mps") else numbered
    if device is None:
        return "cuda" if "cuda" in devices else "cpu"
    if device not in devices:
        raise InputError(
            f"--device {device}: not a device of this machine; expected {' or '.join(devices)}"
        )
    return device


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def fitted(
    lm: Any,
    benchmark: Benchmark,
    examples: Examples,
    items: Sequence[Item],
    *,
    new_tokens: int = NEW_TOKENS,
) -> list[Asked]:
    """Items with their prompts for a model, the longest prompts first.

    Raises: InputError if a prompt leaves no room for an answer in the model's context.
    """
    asked: list[tuple[int, Asked]] = []
    full: list[tuple[int, Asked]] = []
    for item in items:
        prompt = examples.prompt(benchmark, item.question)
        tokens = len(lm.tok_encode(prompt))
        room = min(new_tokens, lm.max_length - tokens)
        (asked if room > 0 else full).append((tokens, Asked(item, prompt, room)))
    if full:
        tokens, longest = max(full, key=lambda pair: pair[0])
        names = ", ".join(str(one.item.index) for _, one in full[:5])
        raise InputError(
            f"{benchmark.name}: {len(full):,} of {len(items):,} prompts, with {benchmark.shots} "
            f"worked examples, do not fit the model's context of {lm.max_length:,} tokens (idx "
            f"{names}{', ...' if len(full) > 5 else ''}; the longest, {longest.item.index}, has "
            f"{tokens:,} tokens); omit the benchmark"
        )
    return [one for _, one in sorted(asked, key=lambda pair: -pair[0])]


@contextmanager
def _as_asked(model: Any) -> Iterator[None]:
    """Ignores the model's own generation_config.json: a penalty, beams, another limit."""
    from transformers import GenerationConfig

    own = model.generation_config
    ends = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**ends)
    try:
        yield
    finally:
        model.generation_config = own


def answered(lm: Any, asked: Sequence[Asked], batch_size: int) -> Iterator[list[tuple[Asked, str]]]:
    """Completions in batches; the items of a batch have the same `room`."""
    from lm_eval.api.instance import Instance

    for room, alike in groupby(asked, key=lambda one: one.room):
        while batch := list(islice(alike, batch_size)):
            options = {"until": list(STOP), "max_gen_toks": room, "do_sample": False}
            requests = [
                Instance("generate_until", {}, (one.prompt, options), index)
                for index, one in enumerate(batch)
            ]
            with _as_asked(lm.model):
                found = lm.generate_until(requests, disable_tqdm=True)
            yield list(zip(batch, (text.strip() for text in found), strict=True))
