"""Lays sequences out in batches of rows, and keeps the attention of a model from reading across the
boundary of two sequences in a row.

A place is one token of a row, or its padding. A piece is a run of places with tokens of one
sequence. B: rows of a batch, T: places of a row.
"""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.errors import ConfigError

Rows = list[list[int]]
"""The numbers of the sequences in each row of a batch."""


def buckets(lengths: Sequence[int], batch_tokens: int) -> Iterator[Rows]:
    """Batches sequences of similar length, one per row, to reduce padding (`teacher.batching:
    buckets`; `vocagno.buckets`, of ids, is something else).

    A batch has at most `batch_tokens` places (or one row).
    """
    # Stable, so that a shard has the same batches everywhere: another batch changes the last bits
    # of a loss.
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        rows = order[start : start + max(1, batch_tokens // longest)]
        yield [[number] for number in rows]
        start += len(rows)


def packs(lengths: Sequence[int], batch_tokens: int, width: int) -> Iterator[Rows]:
    """Packs sequences into rows of up to `width` places, longest first: each goes into the fullest
    row that has room for it (best fit decreasing).

    A batch has at most `batch_tokens` places (or one row).
    """
    rows: list[list[int]] = []
    # Rows by the places left in them. There are at most `width` such numbers, so finding the
    # fullest row takes no search through all rows.
    with_room: dict[int, list[int]] = {}
    for number in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        length = lengths[number]
        # The least room that is enough: the fullest row that the sequence fits in.
        room = min((left for left in with_room if left >= length), default=None)
        if room is None:
            row, room = len(rows), max(width, length)
            rows.append([])
        else:
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room]
        rows[row].append(number)
        with_room.setdefault(room - length, []).append(row)
    # Rows of similar fill share a batch, which is as wide as its fullest row.
    fill = [sum(lengths[number] for number in row) for row in rows]
    for batch in buckets(fill, batch_tokens):
        yield [rows[row] for (row,) in batch]


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of rows, on the host."""

    ids_BT: NDArray[np.int64]
    """Token ids; 0 at padding."""
    piece_BT: NDArray[np.int64]
    """Index of the sequence of its row that each place belongs to; -1 at padding."""
    first_places: list[int]
    """First place of each sequence in the flattened batch, in the order of the rows."""


def lay_out(rows: Rows, sequences: Sequence[NDArray[np.int64]]) -> Layout:
    """Copies sequences into rows, padded at their end."""
    width = max(sum(len(sequences[number]) for number in row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    piece = np.full((len(rows), width), -1, np.int64)
    first_places = []
    for index, row in enumerate(rows):
        place = 0
        for count, number in enumerate(row):
            stop = place + len(sequences[number])
            ids[index, place:stop], piece[index, place:stop] = sequences[number], count
            first_places.append(index * width + place)
            place = stop
    return Layout(ids, piece, first_places)


_WITHOUT_WINDOW = frozenset({"full_attention", "attention", "linear_attention", "conv", "mamba"})
"""Layer types, by transformers' names, that see all previous tokens."""
_PROBE = 8
"""Number of tokens in each of the two probe pieces."""
_OF_MASK, _OF_MASK_IN_LOW_PRECISION = 1e-3, 0.5
"""Limits on the change of the logits by a mask that hides nothing, as fractions of the change when
the boundary is ignored: in float32, where two kernels of the attention differ by about 1e-6, and in
low precision."""
_LEAK, _LEAK_OF_LOW_PRECISION, _NOISE = 5e-5, 1e-2, 3.0
"""Limits on the change of the second piece's logits by the first piece: a fraction of the change
when the boundary is ignored (in float32, and in low precision), plus a multiple of the change due
to batch shape. In float32 a model that keeps pieces apart has 1e-7 of the former. A new model whose
convolutions read across the boundary has only 2e-4, because its weights are small."""


def isolation(piece_BT: Tensor, *, with_mask: bool = True) -> dict[str, Tensor]:
    """Makes positions that restart in every piece, and a mask that keeps attention inside it; on
    the device of the pieces, without a device sync.

    Args:
        piece_BT: the piece of each place; a piece is a run of equal numbers.
        with_mask: False for attention that takes the pieces from positions or boundaries.
    """
    place_T = torch.arange(piece_BT.shape[1], device=piece_BT.device)
    start_BT = torch.where(_is_start(piece_BT), place_T, 0).cummax(1).values
    positions = {"position_ids": place_T - start_BT}
    if not with_mask:
        return positions
    # Padding is a piece of number -1 and sees itself: a row of the mask that hides all places would
    # make a softmax of nothing, NaN.
    same_BTT = piece_BT[:, :, None] == piece_BT[:, None, :]
    mask_BTT = same_BTT & (place_T[:, None] >= place_T[None, :])
    return positions | {"attention_mask": mask_BTT[:, None]}


def boundaries(model: Any, piece_BT: Tensor) -> dict[str, Any]:
    """Computes the boundaries of the pieces and the greatest length, under the names that flash
    attention takes. Empty for a model whose forward pass takes no such arguments.

    Without them flash attention finds boundaries from the positions, with a device sync in every
    layer.

    Args:
        piece_BT: on the host.
    """
    # Models that pass keyword arguments on to their attention take any; others would raise.
    accepted = inspect.signature(model.base_model.forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted):
        return {}
    first_places = _is_start(piece_BT).flatten().nonzero().flatten()
    ends = torch.cat([first_places, torch.tensor([piece_BT.numel()])])
    # On the host, where this does not wait for a device.
    longest = int(ends.diff().max())
    ends = ends.int()
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _is_start(piece_BT: Tensor) -> Tensor:
    """Computes (B, T) True where a piece begins: at the start of a row, and where the number
    changes."""
    return torch.cat([torch.ones_like(piece_BT[:, :1]), piece_BT.diff(dim=1)], 1) != 0


@torch.no_grad()
def keeps_apart(model: Any, *, with_mask: bool = True) -> bool:
    """Tells whether the second of two pieces in a row is read as if it were the only one.

    The change of its logits is compared with the change when the boundary is ignored, and with that
    of the same piece in other batch shapes, which is not zero in bfloat16 on a GPU. Both readings
    have a mask, because a GPU computes attention without one by another kernel.
    """
    device = model.get_input_embeddings().weight.device
    size = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(2 * _PROBE, device=device) * max(1, size // (2 * _PROBE)) % size)[None]
    second = ids[:, _PROBE:]
    piece = torch.arange(2 * _PROBE)[None] // _PROBE
    training = model.training
    # Dropout would make any two passes differ.
    model.eval()

    def compute_logits(ids: Tensor, piece: Tensor | None = None) -> Tensor:
        options: dict[str, Any] = {}
        if piece is not None:
            options |= isolation(piece, with_mask=with_mask)
            options |= {} if with_mask else boundaries(model, piece)
        for name, value in options.items():
            options[name] = value.to(device) if isinstance(value, Tensor) else value
        logits: Tensor = model(input_ids=ids, use_cache=False, **options).logits
        return logits[0].float()

    try:
        alone = compute_logits(second)
        ignored = compute_logits(ids)[_PROBE:]
        first_in_row = compute_logits(torch.cat([second, ids[:, :_PROBE]], 1))[:_PROBE]
        packed = compute_logits(ids, piece)[_PROBE:]
        alone_with_mask = compute_logits(second, piece[:, _PROBE:])
    except torch.OutOfMemoryError:  # a RuntimeError, too, which says nothing of the model
        raise
    except (RuntimeError, TypeError, ValueError, IndexError):  # the mask's form is not supported
        return False
    finally:
        model.train(training)
    # The yardsticks: what another shape of the batch changes (rounding), and what is at stake
    # (reading the first piece as context). A leak has to be far below the second one, and may be of
    # the first.
    noise, effect = (float((logits - alone).norm()) for logits in (first_in_row, ignored))
    leak = float((packed - alone_with_mask).norm())
    of_mask = float((alone_with_mask - alone).norm())
    is_precise = model.dtype == torch.float32
    part = _LEAK if is_precise else _LEAK_OF_LOW_PRECISION
    mask_limit = (_OF_MASK if is_precise else _OF_MASK_IN_LOW_PRECISION) * effect
    # Half of the effect at most, however large the noise: else a model that ignores the mask would
    # pass where rounding is as large as the effect.
    return leak <= min(part * effect + _NOISE * noise, effect / 2) and of_mask <= mask_limit


def attention_of(model: Any) -> str:
    """Returns the name of the model's attention implementation."""
    return str(getattr(model.config, "_attn_implementation", None))


def narrowest_window(model: Any) -> int | None:
    """Returns the width in tokens of a model's narrowest sliding or chunked attention; None without
    any."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and _WITHOUT_WINDOW.issuperset(kinds):
        return None  # the config may have a size that no layer uses
    sizes = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return min((int(size) for size in sizes if size), default=None)


def mask_fits(model: Any, length: int) -> bool:
    """Tells whether rows of this length can have a mask: it would override a narrower window."""
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


_UNMASKED = "vocagno_unmasked"
"""Name of an attention for which transformers makes no mask."""
_OBSERVED = "vocagno_observed"
"""Name of an attention that records the masks that a model requests."""
_ANY_LENGTH = 1 << 62
_LIMITS: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()
"""Per base model: rows of fewer tokens need no mask; 0 if some layers always need one."""
_requested_limits: list[int] = []
"""The limits of the masks that the observed pass requested."""


def base_output(base_model: Any, ids_BT: Tensor, **extra: Any) -> Any:
    """Computes the output of a transformers base model for whole rows, or for rows with masks of
    their own (`isolation`).

    Args:
        extra: masks, positions and sequence boundaries; None is the same as absent.

    The result is bitwise the same as that of a plain call, `base_model(input_ids=ids_BT)`. That
    call makes a mask in every pass: to know whether it is needed, transformers searches the
    positions for packed sequences, which is a device sync. Here there is no device sync if there
    are no masks, positions and boundaries, and the attention is torch's (`sdpa`), plainly causal,
    and any sliding window or chunk is longer than T. In all other cases (including `torch.compile`
    of the whole model) this is a plain call. The first such pass of a model syncs, too: it records
    the masks that the model requests.
    """
    options = {name: value for name, value in extra.items() if value is not None}
    if options or torch.compiler.is_compiling():
        return base_model(input_ids=ids_BT, use_cache=False, **options)
    with _without_mask_search(base_model, ids_BT.shape[1]):
        return base_model(input_ids=ids_BT, use_cache=False)


def whole(tensor: Any) -> Tensor:
    """Returns the full tensor on each process, of a tensor that may be sharded (a DTensor)."""
    complete: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return complete


@contextmanager
def _without_mask_search(base_model: Any, num_tokens: int) -> Iterator[None]:
    """Keeps transformers from searching for the mask that rows of `num_tokens` need, if they need
    none: the model gets a configuration with an attention for which no mask is made. Layers have
    their own reference to the model's configuration, so neither attention nor compiled graphs
    change."""
    config: Any = base_model.config
    is_sdpa = config._attn_implementation == "sdpa" and not config.sub_configs
    limit = _LIMITS.get(base_model)
    if not is_sdpa or (limit is not None and num_tokens >= limit):
        yield
        return
    if limit is None:
        _register()
        _requested_limits.clear()
    # The first pass of a model asks for all of its masks under a name that records them; from the
    # second one on, rows that are short enough ask for none.
    base_model.config = copy.copy(config)  # no sub-configurations, so nothing is shared
    base_model.config._attn_implementation = _OBSERVED if limit is None else _UNMASKED
    try:
        yield
    finally:
        base_model.config = config
    if limit is None:
        _LIMITS[base_model] = min(_requested_limits, default=0)


@cache
def _register() -> None:
    """Registers, once, the attention that records the masks that a model requests."""
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    def record_limit(*arguments: Any, **options: Any) -> Any:
        """Makes the mask of `sdpa`, and records the length below which rows need none."""
        # `allow_is_causal_skip`: transformers itself drops this mask if it is causal and nothing
        # else, but only after it has looked at the positions, which waits for the device.
        limit = 0
        if options.get("allow_is_causal_skip", False):
            is_plain = options.get("mask_function") is causal_mask_function
            limit = options.get("local_size") or (_ANY_LENGTH if is_plain else 0)
        _requested_limits.append(limit)
        return sdpa_mask(*arguments, **options)

    AttentionMaskInterface.register(_OBSERVED, record_limit)
