"""Candidates out of a model's logits, on its device: the K likeliest ids of each token, and K ids
that are sampled so that they stand for all.

C: tokens of a chunk, V: vocabulary, K: candidates of a token, J: blocks of ids, B: ids of a block.
"""

import torch
from torch import Tensor

_BLOCK = 64
"""Ids of a block, in which the search for the largest logits is divided."""
_INDEX = (1 << 32) - 1
"""The bits of a key that hold an index."""


def most_likely(logits_CV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Finds the largest logits of each token: (C, K) logits, in order, and (C, K) ids (int32).

    Of equal logits the smaller id comes first. If the vocabulary has fewer than K ids, minus
    infinity and -1 follow. The K largest are in the K blocks of 64 ids with the largest maxima, so
    the other blocks are read only once.
    `torch.topk` over whole rows takes ten times as long (49,152 ids, K = 16, a CPU).
    """
    num_ids = logits_CV.shape[1]
    end = num_ids - num_ids % _BLOCK  # of the last full block
    shape = len(logits_CV), end // _BLOCK, _BLOCK
    maxima = [logits_CV[:, :end].view(shape).amax(2)]
    if end < num_ids:
        maxima.append(logits_CV[:, end:].amax(1, keepdim=True))
    maxima_CJ = torch.cat(maxima, 1)
    blocks_CJ = _keys(maxima_CJ, torch.arange(maxima_CJ.shape[1], device=logits_CV.device))
    best_CJ = _index_of(blocks_CJ.topk(min(count, maxima_CJ.shape[1]), 1).values)
    ids = (best_CJ[..., None] * _BLOCK + torch.arange(_BLOCK, device=logits_CV.device)).flatten(1)
    keys = _keys(logits_CV.gather(1, ids.clamp_max(num_ids - 1)), ids)
    # The last block may have ids beyond the vocabulary: they come after all others.
    keys.masked_fill_(ids >= num_ids, torch.iinfo(torch.int64).min)
    ids_CK = _index_of(keys.topk(min(count, num_ids), 1).values)
    missing = (0, count - ids_CK.shape[1])
    largest_CK = torch.nn.functional.pad(logits_CV.gather(1, ids_CK), missing, value=-torch.inf)
    return largest_CK, torch.nn.functional.pad(ids_CK.int(), missing, value=-1)


def sample_(
    exponentials_CV: Tensor,
    top_C1: Tensor,
    likeliest: tuple[Tensor, Tensor],
    uniform_C: Tensor,
) -> tuple[Tensor, Tensor]:
    """Samples K ids of each token so that the probability of any id is right on average, with the
    least variance.

    Source: Fearnhead and Clifford 2003. Ids with at least a threshold's mass are always kept. Each
    other id is drawn with the probability mass / threshold, and then stands for the threshold. The
    threshold is the one with which K ids are kept. The draw is systematic: it takes equal steps in
    the cumulated mass of the other ids, which is searched block by block.

    Args:
        exponentials_CV: of the logits after `top_C1` was subtracted; they are overwritten.
        likeliest: the result of `most_likely` for the logits.
        uniform_C: random numbers in [0, 1).
    Returns: (C, K) the mass that each id stands for, as a logit, and (C, K) the ids (int32); minus
        infinity and -1 where fewer than K ids have any mass.
    """
    (num_rows, num_ids), (logits_CK, likeliest_CK) = exponentials_CV.shape, likeliest
    places_CK = likeliest_CK.clamp_min(0).long()
    # Padding copies, which takes as long as all else here, so full blocks do without it.
    others_CV = exponentials_CV
    if num_ids % _BLOCK:
        others_CV = torch.nn.functional.pad(exponentials_CV, (0, -num_ids % _BLOCK))
    others_CV.scatter_(1, places_CK, 0.0)
    mass_CK = (logits_CK - top_C1).exp()
    sums_CJ = (blocks_CJB := others_CV.view(num_rows, -1, _BLOCK)).sum(2)
    # The mass that is left from each of the likeliest ids on. An id is sure if it has at least an
    # equal share of it, and all before it are sure, too.
    rest_CK = sums_CJ.sum(1, keepdim=True) + mass_CK.flip(1).cumsum(1).flip(1)
    steps_K = torch.arange(logits_CK.shape[1], device=exponentials_CV.device)
    is_sure_CK = ((mass_CK > 0) & (mass_CK * (steps_K.flip(0) + 1) >= rest_CK)).cumprod(1).bool()
    unsure_CK = mass_CK.masked_fill(is_sure_CK, 0.0)
    others_CV.scatter_(1, places_CK, unsure_CK)
    # Adds the unsure ids to their blocks' sums. `scatter_add_` would add in any order on a GPU, so
    # that another run would draw other ids.
    home_CK = places_CK // _BLOCK
    added_CK = ((home_CK[:, :, None] == home_CK[:, None, :]) * unsure_CK[:, None, :]).sum(2)
    sums_CJ = sums_CJ.scatter(1, home_CK, sums_CJ.gather(1, home_CK) + added_CK).cumsum(1)
    threshold_C1 = sums_CJ[:, -1:] / (~is_sure_CK).sum(1, keepdim=True).clamp_min(1)
    steps_CK = (steps_K - is_sure_CK.sum(1, keepdim=True)).clamp_min(0)
    points_CK = (uniform_C[:, None] + steps_CK) * threshold_C1
    block_CK = _first_beyond(sums_CJ, points_CK)
    inside_CKB = blocks_CJB.gather(1, block_CK[..., None].expand(-1, -1, _BLOCK)).cumsum(2)
    before_CK = torch.where(block_CK > 0, sums_CJ.gather(1, (block_CK - 1).clamp_min(0)), 0.0)
    place_CK = _first_beyond(inside_CKB, (points_CK - before_CK)[..., None])[..., 0]
    drawn_CK = block_CK * _BLOCK + place_CK
    is_drawn_CK = ~is_sure_CK & (others_CV.gather(1, drawn_CK) > 0)
    threshold_CK = (threshold_C1.log() + top_C1).where(is_drawn_CK, -torch.inf)
    ids_CK = drawn_CK.int().where(is_drawn_CK, -1)
    return logits_CK.where(is_sure_CK, threshold_CK), likeliest_CK.where(is_sure_CK, ids_CK)


def _first_beyond(sums: Tensor, points: Tensor) -> Tensor:
    """Finds, along the last dimension, the first place whose cumulated sum exceeds each point.

    Rounding may put a point behind all mass; the result is then the last place with any. If sums
    are NaN, the result is any place.
    """
    last = torch.searchsorted(sums, sums[..., -1:].contiguous()).clamp_max(sums.shape[-1] - 1)
    return torch.searchsorted(sums, points, right=True).minimum(last)


def _keys(values: Tensor, index: Tensor) -> Tensor:
    """Makes int64 keys in the order of float32 values, and of falling indices among equal values,
    because `topk` may return equal values in any order."""
    bits = (values + 0.0).view(torch.int32)  # no negative zero
    return bits.where(bits >= 0, bits ^ 0x7FFFFFFF).long() << 32 | (_INDEX - index)


def _index_of(keys: Tensor) -> Tensor:
    """The indices that `_keys` put into keys."""
    return _INDEX - (keys & _INDEX)
