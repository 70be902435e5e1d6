"""Ranks of tokens in a scope, and how many of the first are kept (Eq. 4 of arXiv 2503.19123).

S: scopes, T: tokens of a scope. The largest rank comes first.
"""

from fractions import Fraction

import torch
from torch import Tensor

_MOST_PARTS = 10**9  # of a fraction: nine decimals are exact, and products with counts fit int64


def kept_count(num_competing: Tensor, top_fraction: float) -> Tensor:
    """How many of the competing tokens of each scope are kept: exactly ceil(top_fraction * n).

    `top_fraction` is read as written: 0.1 of 30 tokens is 3, although the nearest binary fraction
    to 0.1 is a little larger than 0.1.
    """
    written = Fraction(repr(float(top_fraction)))
    share = max(written.limit_denominator(_MOST_PARTS), Fraction(1, _MOST_PARTS))
    products = num_competing.long() * share.numerator
    return (products + share.denominator - 1) // share.denominator


def top(rank_ST: Tensor, competing_ST: Tensor, top_fraction: float) -> Tensor:
    """(S, T) boolean: the competing tokens with the largest rank in each scope; of equal ones the
    earlier come first. A rank of NaN, which follows from a student's loss of NaN, is the largest,
    so that the step's loss is NaN, too."""
    order_ST = _order(rank_ST, competing_ST)
    num_kept_S1 = kept_count(competing_ST.sum(1, keepdim=True), top_fraction)
    place_ST = torch.arange(rank_ST.shape[1], device=rank_ST.device).expand_as(rank_ST)
    return torch.zeros_like(competing_ST).scatter(1, order_ST, place_ST < num_kept_S1)


def least_kept(rank_ST: Tensor, kept_ST: Tensor) -> Tensor:
    """(S,): the smallest rank of the kept tokens of each scope; NaN if none is kept."""
    if not rank_ST.shape[1]:
        return rank_ST.new_full((len(rank_ST),), torch.nan)
    least_S = torch.where(kept_ST & ~rank_ST.isnan(), rank_ST, torch.inf).amin(1)
    return torch.where(least_S < torch.inf, least_S, torch.nan)


def worse_place(rank_ST: Tensor, other_ST: Tensor, competing_ST: Tensor) -> Tensor:
    """(S, T) float64: a rank by two criteria. A token has a place by each (0 is the best), and the
    worse one counts, so a kept token is within the top by both. Equal ones go by `rank_ST`.

    Rho-1 (arXiv 2404.07965) and the paper name token entropy next to the excess loss without
    saying how they combine; this is the intersection of both choices, widened until it is large
    enough.
    """
    first_ST = _places(_order(rank_ST, competing_ST))
    other_ST = other_ST.nan_to_num(nan=-torch.inf)  # unknown is not large
    worse_ST = torch.maximum(first_ST, _places(_order(other_ST, competing_ST)))
    place_ST = -(worse_ST * worse_ST.shape[1] + first_ST).double()  # exact: far below 2^53
    return torch.where(rank_ST.isnan(), torch.nan, place_ST)


def _order(rank_ST: Tensor, competing_ST: Tensor) -> Tensor:
    """The tokens of each scope by falling rank; those that do not compete come last."""
    # Any rank of a competing token is made finite (NaN comes first), so that -inf is below it.
    largest = torch.finfo(rank_ST.dtype).max
    ranked_ST = torch.where(competing_ST, rank_ST.nan_to_num(nan=largest), -torch.inf)
    return ranked_ST.sort(dim=1, descending=True, stable=True).indices


def _places(order_ST: Tensor) -> Tensor:
    """The place of each token in an order of the tokens."""
    place_ST = torch.arange(order_ST.shape[1], device=order_ST.device).expand_as(order_ST)
    return torch.empty_like(order_ST).scatter_(1, order_ST, place_ST)
