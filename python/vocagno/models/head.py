"""The language head of a causal model: its logits, a chunk at a time.

B: rows, T: tokens of a row, H: hidden size, V: vocabulary, C: tokens of a chunk.
"""

import itertools
import math
import threading
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vocagno.errors import InputError
from vocagno.models.batching import base_output, whole
from vocagno.models.own_head import OwnHead, agree, own_head, probe_ids, sees_later_tokens
from vocagno.models.weights import largest_input

CHUNK_ELEMENTS = 1 << 24
"""Logits per chunk on a CPU: 64 MiB in float32, unless `LEAST_ROWS` need more."""
CUDA_CHUNK_ELEMENTS = 1 << 26
"""Logits per chunk on a GPU. Larger chunks mean fewer products, and fewer additions to the gradient
of the weights."""
LEAST_ROWS = 256
"""Minimum number of tokens per chunk: with fewer, reading the weights limits the product."""
_MORE_ROWS = 32
"""A chunk on a CPU may be larger by 1 / `_MORE_ROWS` if that saves a chunk: each chunk, even a
small one, reads the weights and adds to their gradient."""
TILE_ROWS = 128
"""Rows of a product that a GPU computes together; the rows of a chunk are a multiple."""


ChunkEnds = Sequence[int] | NDArray[np.int64] | None
"""Places at which a chunk may end, increasing, the last one the number of rows; None for all."""


def chunk_rows(vocabulary_size: int, device: torch.device) -> int:
    """Returns the number of rows of logits per chunk on a device."""
    if device.type != "cuda":
        return max(LEAST_ROWS, CHUNK_ELEMENTS // vocabulary_size)
    rows = CUDA_CHUNK_ELEMENTS // vocabulary_size
    return max(LEAST_ROWS, rows - rows % TILE_ROWS)


def chunks(
    num_rows: int, vocabulary_size: int, device: torch.device, ends: ChunkEnds = None
) -> Iterator[slice]:
    """Yields the chunks of rows whose logits exist together: equal sizes on a CPU, whole tiles on a
    GPU.
    Args: ends: the rows before which a chunk may end (`ChunkEnds`). A chunk that contains none of
        them is made longer, up to the next one."""
    size = chunk_rows(vocabulary_size, device)
    # Equal chunks: 2,048 tokens in chunks of 341 would leave two for a seventh chunk, which reads
    # all of the weights as well.
    count = math.ceil(num_rows / (size + size // _MORE_ROWS))
    number_of = itertools.count(1)
    start = 0
    while start < num_rows:
        if device.type == "cuda":
            stop = min(start + size, num_rows)
        elif (stop := next(number_of) * num_rows // count) <= start:
            continue  # the previous chunk was longer
        if ends is not None:
            number = bisect_right(ends, stop)
            before = ends[number - 1] if number else 0
            # No end within this chunk: a group longer than a chunk is not cut, its chunk gets
            # longer.
            stop = int(before if before > start else ends[number])
        yield slice(start, stop)
        start = stop


class UnsupportedModelError(InputError):
    """The loss of a model cannot be computed from its hidden states by a known head."""


@dataclass(frozen=True, slots=True)
class LanguageHead:
    """A head that is one matrix product, from a causal language model's hidden states to logits."""

    weight_VH: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    """Factor on the logits (Cohere multiplies, Granite divides)."""
    softcap: float | None = None
    """tanh limits the logits to (-softcap, softcap) (Gemma 2)."""
    is_widened: bool = False
    """True if the weights are float32 copies of bfloat16 ones, so that rounding them back loses
    nothing."""

    @property
    def vocabulary_size(self) -> int:
        """The number of logits per state."""
        return self.weight_VH.shape[0]

    @property
    def hidden_size(self) -> int:
        """The size of a state."""
        return self.weight_VH.shape[1]

    @property
    def device(self) -> torch.device:
        """The device that states must be on."""
        return self.weight_VH.device

    @property
    def _is_bfloat16(self) -> bool:
        """True if the weights have the values of bfloat16, whatever their type is."""
        return self.is_widened or self.weight_VH.dtype == torch.bfloat16

    def logits(self, hidden_CH: Tensor, room: Tensor | None = None) -> Tensor:
        """Computes logits, (C, V) in float32: operands in the model's type, accumulated in float32.
        They are changed in place, so autograd must not be asked for their gradient, which
        `chunked_loss` computes.
        Args: room: memory from `room_for`. The logits are written there if it is large enough."""
        out = None
        if room is not None and len(hidden_CH) <= len(room):
            out = room[: len(hidden_CH)]
        if widens(hidden_CH, self.weight_VH):
            logits_CV = torch.mm(hidden_CH, self.weight_VH.T, out_dtype=torch.float32)
        else:  # operands of low precision are exact in float32
            is_exact = self._is_bfloat16 and multiplies_tiles(hidden_CH)
            with products_of_tiles() if is_exact else nullcontext():
                logits_CV = torch.mm(hidden_CH.float(), self.weight_VH.float().T, out=out)
        if self.bias_V is not None:
            logits_CV += self.bias_V.float()
        if self.scale != 1.0:
            logits_CV *= self.scale
        if self.softcap is not None:
            logits_CV.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits_CV

    def room_for(self, num_rows: int) -> Tensor | None:
        """Allocates memory for the logits of a chunk, which all chunks reuse that are not longer.
        None on a GPU, whose allocator caches memory; on a CPU new memory costs time in addition to
        the product that fills it."""
        if self.weight_VH.device.type != "cpu":
            return None
        size = chunk_rows(self.vocabulary_size, self.device)
        most = size + 2 * (size // _MORE_ROWS)  # twice: chunks that end at `ends` are uneven
        return torch.empty(min(num_rows, most), self.vocabulary_size, dtype=torch.float32)

    def for_chunks(self) -> "LanguageHead":
        """Returns a copy of the head whose weights are converted once for all chunks instead of in
        `logits`; the head itself if the device multiplies them as they are by states of their type.
        """
        is_converted = not widens(self.weight_VH, self.weight_VH)
        return self.as_type(torch.float32) if is_converted else self

    def as_type(self, dtype: torch.dtype) -> "LanguageHead":
        """Returns a copy of the head with weights of type `dtype`."""
        is_widened = self._is_bfloat16 and dtype == torch.float32
        return replace(self, weight_VH=self.weight_VH.to(dtype), is_widened=is_widened)

    def first(self, num_ids: int) -> "LanguageHead":
        """Returns a head that gives only the logits of the first `num_ids` ids."""
        bias_V = None if self.bias_V is None else self.bias_V[:num_ids]
        return replace(self, weight_VH=self.weight_VH[:num_ids], bias_V=bias_V)


Head = LanguageHead | OwnHead
"""Turns a causal language model's hidden states into logits."""


def _has_bfloat16_tiles() -> bool:
    """Tells whether this CPU multiplies tiles of bfloat16 into float32 (Intel AMX). False for a
    torch that does not report it, or has no option that makes oneDNN do so
    (`products_of_tiles`)."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    has_option = hasattr(torch.backends.mkldnn, "matmul")
    return has_option and bool(capabilities.get("amx_bf16"))


_HAS_BFLOAT16_TILES = _has_bfloat16_tiles()


def multiplies_tiles(operand: Tensor) -> bool:
    """Tells whether float32 products of such values may run as products of tiles of bfloat16,
    because the values are bfloat16 and the device is a CPU with AMX."""
    is_bfloat16 = operand.dtype == torch.bfloat16
    return _HAS_BFLOAT16_TILES and is_bfloat16 and operand.device.type == "cpu"


_tiles = threading.Lock()
_tiles_in_use: list[str] = []
"""The precision that torch had before, once for each block of `products_of_tiles` that is running
in any thread."""


@contextmanager
def products_of_tiles() -> Iterator[None]:
    """Lets oneDNN round the operands of float32 products to bfloat16; sums stay in float32.

    Operands whose values are bfloat16 lose nothing, and a product with 49,152 x 576 weights takes
    a third to a quarter of the time. torch has no CPU product of bfloat16 matrices with a float32
    result (`torch.mm` with `out_dtype`).

    The setting is of the whole process: products of other threads are rounded meanwhile, too. The
    last of several threads restores it.
    """
    products: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009  # untyped
    with _tiles:
        _tiles_in_use.append(_tiles_in_use[0] if _tiles_in_use else products.fp32_precision)
        products.fp32_precision = "bf16"
    try:
        yield
    finally:
        with _tiles:
            before = _tiles_in_use.pop()
            if not _tiles_in_use:
                products.fp32_precision = before


def widens(a: Tensor, b: Tensor) -> bool:
    """Tells whether the device multiplies these two into float32 (`torch.mm` with `out_dtype`)
    without converting them: only CUDA does, and only two operands of one type of low precision."""
    return a.is_cuda and a.dtype in (torch.bfloat16, torch.float16) and a.dtype == b.dtype


def language_head(model: Any) -> Head:
    """Finds the head of a transformers causal language model, and verifies it on a few tokens.

    It is a product of states and output embeddings if that gives the model's own logits. Otherwise
    it is the model's own code (`OwnHead`), with a warning, because that takes more time and memory.
    Verifying costs two forward passes of the base model and one of the model, of 2 x 32 tokens.

    Raises: UnsupportedModelError if neither gives the model's own logits, if the model sees later
        tokens, or if it needs other inputs than ids.
    """
    _check_loaded(model)
    training = model.training
    model.eval()  # dropout would make two passes differ
    try:
        with torch.no_grad():
            head = _verified_head(model)
    finally:
        model.train(training)
    # A warning, not an error: the losses are right, and only their cost is another one.
    if isinstance(head, OwnHead):
        warnings.warn(
            f"{type(model).__name__}: its logits are not a product of hidden states and output "
            "embeddings, so its own code computes them, in float32",
            stacklevel=2,
        )
    return head


def _check_loaded(model: Any) -> None:
    """Raises: UnsupportedModelError if the output embeddings have no values on any device."""
    output = model.get_output_embeddings()
    if getattr(getattr(output, "weight", None), "is_meta", False):
        raise UnsupportedModelError(
            f"{type(model).__name__}: its output embeddings do not fit on the devices (they are "
            "offloaded); give teacher.device_map more memory, or a smaller type by teacher.dtype"
        )


def _verified_head(model: Any) -> Head:
    """Does the work of `language_head` for a model in evaluation mode."""
    name, embedding = type(model).__name__, model.get_input_embeddings().weight
    ids_BT = probe_ids(embedding.shape[0], largest_input(model.config), embedding.device)
    try:
        hidden_states(model, ids_BT)  # the first pass may run different code from later ones
        states_BTH = hidden_states(model, ids_BT)
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except _FAILURES as error:
        raise UnsupportedModelError(f"{name}: it cannot read only ids ({error})") from error
    if logits_BTV.shape[:-1] != ids_BT.shape or states_BTH.shape[:-1] != ids_BT.shape:
        raise UnsupportedModelError(
            f"{name}: expected logits and states of each of {tuple(ids_BT.shape)} ids, got "
            f"{tuple(logits_BTV.shape)} and {tuple(states_BTH.shape)}"
        )
    # Before heads are tried: NaN agrees with nothing, so that the error would speak of the head.
    if logits_BTV.isnan().any():
        damaged = [name for name, weight in model.named_parameters() if weight.isnan().any()]
        raise UnsupportedModelError(
            f"{name}: its logits are NaN; "
            + (f"so are weights: {', '.join(damaged[:3])}" if damaged else "try another dtype")
        )
    if sees_later_tokens(logits_BTV, states_BTH.dtype):
        raise UnsupportedModelError(
            f"{name}: its logits depend on later tokens, so its losses are meaningless; "
            f"{_causal_remedy(model)}"
        )
    for head in _candidates(model, logits_BTV.shape[-1], states_BTH.shape[-1]):
        if _gives(head, states_BTH, logits_BTV):
            return head
    raise UnsupportedModelError(
        f"{name}: its logits cannot be computed from its last hidden states, neither as a product "
        "with its output embeddings nor by its own code; use another model"
    )


_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""Errors that models raise for unsupported inputs."""


def _candidates(model: Any, vocabulary_size: int, hidden_size: int) -> Iterator[Head]:
    """Yields the heads to try: the product, then the model's own code. The product is omitted if
    the output embeddings have further parameters: a learnt factor that is still 1 gives the same
    logits, and would get no gradient."""
    output = model.get_output_embeddings()
    if output is None or {name for name, _ in output.named_parameters()} <= {"weight", "bias"}:
        with suppress(UnsupportedModelError):
            yield head_of(model)
    with suppress(UnsupportedModelError):
        yield own_head_of(model, vocabulary_size, hidden_size)


def _gives(head: Head, states_BTH: Tensor, logits_BTV: Tensor) -> bool:
    """Tells whether the head turns the model's states into the model's logits."""
    try:
        computed_NV = head.logits(states_BTH.flatten(0, 1).to(head.device))
    except torch.OutOfMemoryError:
        raise
    except _FAILURES:  # a head of another form
        return False
    return agree(computed_NV, logits_BTV.flatten(0, 1).to(computed_NV), states_BTH.dtype)


def _causal_remedy(model: Any) -> str:
    """Returns the advice for a model that sees later tokens: an option of its configuration, if one
    makes it causal."""
    config = model.config.get_text_config()
    for option, value in (("is_decoder", True), ("causal", True), ("attn_type", "uni")):
        if getattr(config, option, value) != value:
            return f"set {option}: {value} in its configuration".replace("True", "true")
    return "use a causal model"


def head_of(model: Any) -> LanguageHead:
    """Makes the head that a model's configuration describes; it shares the model's weights.
    Raises: UnsupportedModelError if there are no output embeddings."""
    output, config = model.get_output_embeddings(), model.config.get_text_config()
    if not isinstance(getattr(output, "weight", None), Tensor):
        raise UnsupportedModelError(f"{type(model).__name__}: no output embeddings were found")
    caps = _numbers(config, "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    bias = getattr(output, "bias", None)
    head = LanguageHead(whole(output.weight), bias, _scale_of(config), next(iter(caps), None))
    # Some heads have rows beyond the vocabulary and cut their logits off in `forward`.
    for num_ids in _numbers(config, "unpadded_vocab_size"):
        head = head.first(int(num_ids))
    return head


def _scale_of(config: Any) -> float:
    """Computes the factor on the logits from a configuration. `language_head` verifies it."""
    divisors = ["logits_mup_width_multiplier", "logits_scaling"]
    factors = ["logit_scale", "lm_head_multiplier"]
    if config.model_type.startswith("hyperclovax"):  # multiplies by what Granite divides by
        factors.append(divisors.pop())
    return math.prod(_numbers(config, *factors)) / math.prod(_numbers(config, *divisors))


def _numbers(config: Any, *options: str) -> list[float]:
    """Lists the values of those options that a configuration sets to a number other than 0."""
    values = [getattr(config, option, None) for option in options]
    return [float(value) for value in values if isinstance(value, int | float) and value]


def own_head_of(model: Any, vocabulary_size: int, hidden_size: int) -> OwnHead:
    """Makes a head of the model's own code.

    Args: vocabulary_size, hidden_size: the last dimensions of the model's logits and states.
    Raises: UnsupportedModelError if the model is not a head over one base model.
    """
    head = own_head(model, base_of(model), vocabulary_size, hidden_size)
    if head is None:
        raise UnsupportedModelError(f"{type(model).__name__}: no head over a base model was found")
    return head


def base_of(model: Any) -> nn.Module:
    """Finds the module of a causal language model that turns ids into its last hidden states.
    Raises: UnsupportedModelError if there is none."""
    if model.base_model is not model:
        base: nn.Module = model.base_model
        return base
    embedding = model.get_input_embeddings()  # base_model_prefix names another module (Llama 4)
    for base in model.children():
        if base is not embedding and any(part is embedding for part in base.modules()):
            return base
    raise UnsupportedModelError(f"{type(model).__name__}: no base model was found")


def hidden_states(model: Any, ids_BT: Tensor, **extra: Any) -> Tensor:
    """Computes the last hidden states of a causal language model, (B, T, H), without logits.
    Args: extra: positions and mask of packed rows (`isolation`)."""
    output = base_output(base_of(model), ids_BT, **extra)
    return whole(output.last_hidden_state)


def without_wrapper(model: Any) -> Any:
    """Returns the causal language model inside a `peft.PeftModel`, with its adapters; another model
    as it is. Training it trains what PEFT left trainable.
    Raises: UnsupportedModelError for adapters that are not inside the layers: prompts, and adapters
        or trained copies of the embedding or of the language head."""
    settings = getattr(model, "peft_config", None)
    if not isinstance(settings, dict) or not hasattr(model, "get_base_model"):
        return model
    if any(adapter.is_prompt_learning for adapter in settings.values()):
        raise UnsupportedModelError(
            "PEFT: learned prompts are not in the layers of the model; use LoRA or the like"
        )
    inner = model.get_base_model()
    for name in ("get_output_embeddings", "get_input_embeddings"):
        module = getattr(inner, name)()
        if hasattr(module, "base_layer") or hasattr(module, "modules_to_save"):
            raise UnsupportedModelError(
                f"PEFT: {type(module).__name__} replaces the embedding or the language head, whose "
                "weights the loss reads; adapt other layers (target_modules, modules_to_save)"
            )
    return inner
