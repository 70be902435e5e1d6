"""Probe tokens that test whether and how a model's losses can be computed.

B: rows, T: tokens of a row, V: vocabulary.
"""

import torch
from torch import Tensor

PROBE_TOKENS = 32
"""Tokens per row, if the model can read that many."""
_IDS = 1000
"""Upper limit of the probe's ids; every vocabulary has ordinary tokens or bytes below it."""


def probe_ids(vocabulary_size: int, positions: int | None, device: torch.device) -> Tensor:
    """(2, T): rows whose first half is the same; the second row is padded (id 0) at its end.

    Args:
        positions: maximum number of tokens that the model reads, if there is one.
    """
    length = PROBE_TOKENS
    if positions is not None and positions > 0:  # XLNet has -1 for no limit
        length = min(length, positions)
    place_T, half = torch.arange(length, device=device), length // 2
    ids_BT = torch.stack([place_T * 7 + 3, place_T * 7 + 3])
    ids_BT[1, half:] = place_T[half:] * 11 + 5
    ids_BT %= min(vocabulary_size, _IDS)
    ids_BT[1, length - half // 2 :] = 0
    return ids_BT


def agree(ours_NV: Tensor, theirs_NV: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits are the same at each position within the precision of `dtype`.

    Differences are root mean squares over the vocabulary, because the largest of millions of
    rounding errors is not informative. They are compared with the spread of the logits, because a
    constant added to all logits does not change a loss. Infinite logits must be equal; NaN never
    agrees.
    """
    if ours_NV.shape != theirs_NV.shape:
        return False
    finite_NV = theirs_NV.isfinite()
    if not torch.equal(ours_NV[~finite_NV], theirs_NV[~finite_NV]):
        return False
    difference_N = _root_mean_square(torch.where(finite_NV, ours_NV - theirs_NV, 0))
    size_N = _root_mean_square(torch.where(finite_NV, theirs_NV, 0))
    share = 1e-3 if _is_exact(dtype) else 5e-2
    allowed_N = share * theirs_NV[finite_NV].std() + torch.finfo(dtype).eps * size_N
    return bool((difference_N <= allowed_N).all())


def _root_mean_square(values_NV: Tensor) -> Tensor:
    return values_NV.square().mean(-1).sqrt()


def sees_later_tokens(logits_BTV: Tensor, dtype: torch.dtype) -> bool:
    """Whether the rows' different second halves change the logits of their equal first halves."""
    half = logits_BTV.shape[1] // 2
    first_TV, second_TV = logits_BTV[0, :half].double(), logits_BTV[1, :half].double()
    finite_TV = first_TV.isfinite() & second_TV.isfinite()
    if not finite_TV.any():
        return False  # nothing to compare; `agree` rejects such logits
    difference = (first_TV - second_TV)[finite_TV].square().mean().sqrt()
    spread = first_TV[finite_TV].std()
    # Equal first halves give equal logits. Low precision is allowed differences from the order of
    # sums; the effect of later tokens in a trained model is many times larger.
    return bool(difference > (1e-5 if _is_exact(dtype) else 2e-2) * spread)


def _is_exact(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64)
