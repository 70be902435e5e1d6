"""Means over the groups of tokens that cover the same text, and over the rest of a line.

B: rows, T: tokens of a row, N = B * T.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

NO_GROUP = -1
"""In place of a group's number: the token is compared with no teacher token, and is a unit of its
own."""


class Units(NamedTuple):
    """Numbers that say which tokens belong together, and the text that they cover; for
    `window_max_loss`."""

    lines_BT: Tensor
    """The number of each token's line of text, -1 for none, as `groups_BT`."""
    bytes_BT: Tensor
    """The bytes of text that each token covers."""
    groups_BT: Tensor | None = None
    """As `GuidanceTensors.groups`; None where each token is a unit."""
    group_loss_BT: Tensor | None = None
    """The teacher's sum over the group of each token divided by its student tokens, nats, NaN for
    none; where the teacher's losses are of single tokens (`needs_group_loss`)."""

    def each(self, change: Callable[[Tensor], Tensor]) -> "Units":
        """The same after a change of each tensor."""
        changed = {name: change(one) for name, one in self._asdict().items() if one is not None}
        return self._replace(**changed)


def group_means(values_BT: Tensor, groups_BT: Tensor) -> Tensor:
    """(B, T): the mean of `values_BT` over the group of each token; its own value if it has none.

    Args:
        groups_BT: as `GuidanceTensors.groups`.

    Sums are float64. The host does not wait.
    """
    sums_BT, count_BT = _sums(values_BT.double(), groups_BT)
    means_BT = (sums_BT / count_BT).to(values_BT.dtype)
    return torch.where(groups_BT >= 0, means_BT, values_BT)


def window_means(
    values_BT: Tensor,
    sizes_BT: Tensor,
    groups_BT: Tensor | None,
    lines_BT: Tensor,
    smoothing: float,
) -> Tensor:
    """(B, T) float64: the sum of the values of the other tokens of a line, without the unit of each
    token, divided by the sum of their sizes; NaN without others.

    Args:
        values_BT: at each token.
        sizes_BT: 0 for tokens that do not count; their values must be 0.
        groups_BT: as `group_means`; None where each token is a unit.
        lines_BT: as `Units`.
        smoothing: a size with a mean of 1 that is added (additive smoothing).
    """
    parts = values_BT.double(), sizes_BT.double()
    sums_BT, size_BT = (_around_in_line(part_BT, groups_BT, lines_BT) for part_BT in parts)
    means_BT = (sums_BT + smoothing) / (size_BT + smoothing)
    return torch.where(size_BT > 0, means_BT, torch.nan)


def _around_in_line(part_BT: Tensor, groups_BT: Tensor | None, lines_BT: Tensor) -> Tensor:
    """Sums over the other tokens of a line."""
    own_BT = part_BT
    if groups_BT is not None:  # the part of a group that is in this line
        has_group_BT = groups_BT >= 0
        first_BT = torch.where(has_group_BT, _first_places(groups_BT, lines_BT), -1)
        own_BT = torch.where(has_group_BT, _row_sums(part_BT, first_BT), part_BT)
    return torch.where(lines_BT >= 0, _sums(part_BT, lines_BT)[0] - own_BT, 0.0)


def _row_sums(values_BT: Tensor, first_BT: Tensor) -> Tensor:
    """(B, T): the sum over all tokens of a row with the same first place; 0 for -1."""
    num_rows, num_tokens = values_BT.shape
    row_B1 = torch.arange(num_rows, device=values_BT.device)[:, None] * num_tokens
    return _sums(values_BT, torch.where(first_BT < 0, first_BT, first_BT + row_B1))[0]


def _first_places(groups_BT: Tensor, lines_BT: Tensor) -> Tensor:
    """(B, T): the first place in the row of the part of each token's group that is in its line."""
    place_BT = torch.arange(groups_BT.shape[1], device=groups_BT.device).expand_as(groups_BT)
    changes_BT = (groups_BT[:, 1:] != groups_BT[:, :-1]) | (groups_BT[:, 1:] < 0)
    changes_BT = changes_BT | (lines_BT[:, 1:] != lines_BT[:, :-1])
    begins_BT = torch.nn.functional.pad(changes_BT, (1, 0), value=True)
    return torch.where(begins_BT, place_BT, 0).cummax(1).values


def _sums(values_BT: Tensor, numbers_BT: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) each: over all tokens of a run with the same number, in which tokens of -1 may stand,
    the sum of the values, and how many tokens these are; 0 and 1 for a token of -1."""
    slot_N = _run_numbers(numbers_BT.flatten())
    used_N = torch.where(slot_N > 0, values_BT.flatten(), 0.0)
    ones_N = torch.ones_like(used_N)
    sums = values_BT.new_zeros(len(slot_N) + 1).index_add_(0, slot_N, used_N)
    sizes = values_BT.new_zeros(len(slot_N) + 1).index_add_(0, slot_N, ones_N)
    shape = numbers_BT.shape
    sizes_BT = sizes[slot_N].view(shape)
    return sums[slot_N].view(shape), torch.where(numbers_BT < 0, 1.0, sizes_BT)


def _run_numbers(numbers_N: Tensor) -> Tensor:
    """(N,) from 1 without gaps, in order, whatever the numbers are, so that N + 1 places suffice:
    a chunk may hold parts of several rows; 0 for a token of number -1."""
    has_number_N = numbers_N >= 0
    place_N = torch.arange(len(numbers_N), device=numbers_N.device)
    last_N = torch.where(has_number_N, place_N, -1).cummax(0).values
    before_N = torch.nn.functional.pad(last_N, (1, 0), value=-1)[:-1]
    begins_N = (before_N < 0) | (numbers_N[before_N.clamp_min(0)] != numbers_N)
    return torch.where(has_number_N, (has_number_N & begins_N).cumsum(0), 0)
