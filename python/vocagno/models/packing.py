"""Keeps sequences that are packed into one row from attending to each other.

B: rows, T: places of a row, V: vocabulary.
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from vocagno.errors import ConfigError

_WITHOUT_WINDOW = frozenset({"full_attention", "attention", "linear_attention", "conv", "mamba"})
"""Layer types, by transformers' names, that see all previous tokens."""
_PROBE = 8
"""Number of tokens in each of the two probe pieces."""
_OF_MASK, _OF_MASK_IN_LOW_PRECISION = 1e-3, 0.5
"""Limits on what a mask that hides nothing changes, as fractions of the difference when the
boundary is ignored: two kernels of the attention differ by about 1e-6 in float32."""
_LEAK, _LEAK_OF_LOW_PRECISION, _NOISE = 5e-5, 1e-2, 3.0
"""Limits on the difference that a boundary leaves: a fraction of the difference when the boundary
is ignored, and a multiple of the difference due to batch shape. In float32 a model that keeps
pieces apart has 1e-7 of the former. A new model whose convolutions read across the boundary has no
more than 2e-4, because its weights are small."""


def isolation(piece_BT: Tensor, *, with_mask: bool = True) -> dict[str, Tensor]:
    """Positions that restart in every piece, and a mask that keeps attention inside it; on the
    device of the pieces, without a device sync.

    Args:
        piece_BT: the piece of each place; a piece is a run of equal numbers.
        with_mask: False for attention that takes the pieces from positions or boundaries.
    """
    place_T = torch.arange(piece_BT.shape[1], device=piece_BT.device)
    start_BT = torch.where(_begins(piece_BT), place_T, 0).cummax(1).values
    positions = {"position_ids": place_T - start_BT}
    if not with_mask:
        return positions
    same_BTT = piece_BT[:, :, None] == piece_BT[:, None, :]
    mask_BTT = same_BTT & (place_T[:, None] >= place_T[None, :])
    return positions | {"attention_mask": mask_BTT[:, None]}


def boundaries(model: Any, piece_BT: Tensor) -> dict[str, Any]:
    """Boundaries of the pieces and the greatest length, under the names that flash attention takes.

    Without them it finds boundaries from the positions, with a device sync in every layer. Empty
    for a model whose forward pass takes no such arguments.

    Args:
        piece_BT: on the host.
    """
    accepted = inspect.signature(model.base_model.forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted):
        return {}
    first_places = _begins(piece_BT).flatten().nonzero().flatten()
    ends = torch.cat([first_places, torch.tensor([piece_BT.numel()])])
    longest = int(ends.diff().max())
    ends = ends.int()
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _begins(piece_BT: Tensor) -> Tensor:
    """(B, T) whether a piece begins: at the start of a row, and where the number changes."""
    return torch.cat([torch.ones_like(piece_BT[:, :1]), piece_BT.diff(dim=1)], 1) != 0


@torch.no_grad()
def keeps_apart(model: Any, *, with_mask: bool = True) -> bool:
    """Tests with two pieces of a row whether the second is read as if it were the only one.

    Its difference is compared with the difference when the boundary is ignored, and with that of
    the same piece in other batch shapes, which is not zero in bfloat16 on a GPU. Both readings have
    a mask, because a GPU computes attention without one by another kernel.
    """
    device = model.get_input_embeddings().weight.device
    size = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(2 * _PROBE, device=device) * max(1, size // (2 * _PROBE)) % size)[None]
    second = ids[:, _PROBE:]
    piece = torch.arange(2 * _PROBE)[None] // _PROBE
    training = model.training
    model.eval()

    def read(of: Tensor, piece: Tensor | None = None) -> Tensor:
        options = {} if piece is None else _apart(model, piece, with_mask=with_mask)
        options = {name: _on(device, value) for name, value in options.items()}
        logits: Tensor = model(input_ids=of, use_cache=False, **options).logits
        return logits[0].float()

    try:
        alone = read(second)
        ignored = read(ids)[_PROBE:]
        first_in_row = read(torch.cat([second, ids[:, :_PROBE]], 1))[:_PROBE]
        packed = read(ids, piece)[_PROBE:]
        alone_with_mask = read(second, piece[:, _PROBE:])
    except (RuntimeError, TypeError, ValueError, IndexError):  # the mask's form is not supported
        return False
    finally:
        model.train(training)
    noise, effect = (float((of - alone).norm()) for of in (first_in_row, ignored))
    leak = float((packed - alone_with_mask).norm())
    of_mask = float((alone_with_mask - alone).norm())
    is_precise = model.dtype == torch.float32
    part = _LEAK if is_precise else _LEAK_OF_LOW_PRECISION
    most_of_mask = (_OF_MASK if is_precise else _OF_MASK_IN_LOW_PRECISION) * effect
    return leak <= min(part * effect + _NOISE * noise, effect / 2) and of_mask <= most_of_mask


def _apart(model: Any, piece_BT: Tensor, *, with_mask: bool) -> dict[str, Any]:
    options: dict[str, Any] = isolation(piece_BT, with_mask=with_mask)
    return options if with_mask else options | boundaries(model, piece_BT)


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def attention_of(model: Any) -> str:
    """The name of the model's attention implementation."""
    return str(getattr(model.config, "_attn_implementation", None))


def narrowest_window(model: Any) -> int | None:
    """Width in tokens of a model's narrowest sliding or chunked attention; None without any."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and _WITHOUT_WINDOW.issuperset(kinds):
        return None  # the config may have a size that no layer uses
    sizes = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((int(size) for size in sizes if size), default=None)


def mask_fits(model: Any, length: int) -> bool:
    """Whether rows of this length can have a mask, which would override a narrower window."""
    window = narrowest_window(model)
    return window is None or window >= length


def check_isolation(model: Any, seq_len: int) -> None:
    """Raises: ConfigError for a model (or an attention implementation) that ignores the mask, or
    whose sliding window the mask would override."""
    if not mask_fits(model, seq_len):
        raise ConfigError(
            f"data.isolate: {type(model).__name__} attends to {narrowest_window(model)} tokens in "
            "some layers, and the mask that keeps documents apart would override that in rows of "
            f"{seq_len}; use a data.seq_len of at most {narrowest_window(model)}, or isolate: false"
        )
    if not keeps_apart(model):
        raise ConfigError(
            f"data.isolate: {type(model).__name__} with {attention_of(model)} attention does not "
            "keep packed documents apart; use a model with sdpa attention, or isolate: false"
        )
