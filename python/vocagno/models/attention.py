"""Forward passes without a device sync.

transformers copies the positions of every batch to the host, to find sequences packed into rows. If
there are none it makes no mask: torch's attention is causal by itself. Here, passes of whole rows
skip this search for models that would get no mask anyway.

B: rows, T: tokens of a row.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

_UNMASKED = "vocagno_unmasked"
"""Name of an attention for which transformers makes no mask."""
_OBSERVED = "vocagno_observed"
"""Name of an attention that records the masks that a model requests."""
_ANY_LENGTH = 1 << 62
_LIMITS: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()
"""Per base model: rows of fewer tokens need no mask; 0 if some layers always need one."""
_asked: list[int] = []
"""The limits of the masks that the observed pass requested."""


def base_output(base_model: Any, ids_BT: Tensor, **extra: Any) -> Any:
    """The output of a transformers base model for whole rows, or for rows with their own masks.

    Args:
        extra: masks, positions and sequence boundaries; None is the same as absent.

    The result is bitwise the same as that of a plain call. There is no device sync if there are no
    masks, positions and boundaries, and the attention is torch's (`sdpa`), plainly causal, and any
    sliding window or chunk is longer than T. In all other cases (including `torch.compile` of the
    whole model) this is a plain call. The first such pass of a model syncs, too: it records the
    masks that the model requests.
    """
    given = {name: value for name, value in extra.items() if value is not None}
    if given or torch.compiler.is_compiling():
        return base_model(input_ids=ids_BT, use_cache=False, **given)
    with _without_search(base_model, ids_BT.shape[1]):
        return base_model(input_ids=ids_BT, use_cache=False)


@contextmanager
def _without_search(base_model: Any, num_tokens: int) -> Iterator[None]:
    """Replaces the configuration from which masks are made. Layers have their own reference to the
    model's configuration, so neither attention nor compiled graphs change."""
    config: Any = base_model.config
    is_torchs = config._attn_implementation == "sdpa" and not config.sub_configs
    limit = _LIMITS.get(base_model)
    if not is_torchs or (limit is not None and num_tokens >= limit):
        yield
        return
    if limit is None:
        _register()
        _asked.clear()
    base_model.config = copy.copy(config)  # no sub-configurations, so nothing is shared
    base_model.config._attn_implementation = _OBSERVED if limit is None else _UNMASKED
    try:
        yield
    finally:
        base_model.config = config
    if limit is None:
        _LIMITS[base_model] = min(_asked, default=0)


@cache
def _register() -> None:
    from transformers import AttentionMaskInterface
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    def observed(*arguments: Any, **options: Any) -> Any:
        """The mask of `sdpa`; records the length below which there is none."""
        limit = 0
        if options.get("allow_is_causal_skip", False):
            is_plain = options.get("mask_function") is causal_mask_function
            limit = options.get("local_size") or (_ANY_LENGTH if is_plain else 0)
        _asked.append(limit)
        return sdpa_mask(*arguments, **options)

    AttentionMaskInterface.register(_OBSERVED, observed)
