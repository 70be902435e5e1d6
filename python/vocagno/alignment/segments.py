"""Reduces teacher losses over the ranges of student tokens, on the device that holds the losses.

M: teacher tokens, N: student tokens, B: rows of a batch, L: powers of two up to M.
"""

import torch
from torch import Tensor

from vocagno.alignment.mapping import Reduction


def segment_reduce(losses_M: Tensor, mapping_N2: Tensor, how: Reduction = "max") -> Tensor:
    """Reduces teacher losses over the range of each student token: `vocagno.reduce` on tensors.

    Args:
        losses_M: losses in nats; NaN and infinite losses mean "no loss".
        mapping_N2: half-open ranges of rows, (-1, -1) for unmapped, as from `vocagno.align`.
    Returns: (N,) float32 on the same device, NaN where there is no finite loss in the range.
    Raises: ValueError for shapes or an unknown `how`. The ranges are not checked: that would need a
        device sync.

    Every shape follows from N and M, so there is no device sync. Ranges may overlap and have any
    length. Sums cost O((N + M) log M), extremes O(N + M log M). Source: arXiv 2503.19123, Eq. 2.
    """
    if losses_M.ndim != 1 or mapping_N2.ndim != 2 or mapping_N2.shape[1] != 2:
        raise ValueError(
            f"expected losses (M,) and mapping (N, 2), got {tuple(losses_M.shape)} and "
            f"{tuple(mapping_N2.shape)}"
        )
    if how not in ("max", "mean", "sum", "min"):
        raise ValueError(f"how must be max, mean, sum or min, got {how!r}")
    ranges_N2 = mapping_N2.long().clamp_min(0)
    first_N, stop_N = ranges_N2.unbind(1)
    finite_M = losses_M.isfinite()
    count_N = _range_counts(finite_M, first_N, stop_N)
    if how in ("max", "min"):
        sign = 1.0 if how == "max" else -1.0
        filled_M = torch.where(finite_M, sign * losses_M.float(), -torch.inf)
        result_N = sign * _range_max(filled_M, first_N, stop_N)
    else:
        filled_M = torch.where(finite_M, losses_M, 0).double()
        result_N = _range_sums(filled_M, first_N, stop_N)
        if how == "mean":
            result_N = result_N / count_N
    return torch.where(count_N > 0, result_N, torch.nan).float()


def _range_counts(is_counted_M: Tensor, first_N: Tensor, stop_N: Tensor) -> Tensor:
    """Counts the true values in [first, stop), by differences of running counts."""
    running = torch.nn.functional.pad(is_counted_M.long().cumsum(0), (1, 0))
    return running[stop_N] - running[first_N]


def _range_sums(values_M: Tensor, first_N: Tensor, stop_N: Tensor) -> Tensor:
    """Sums values over [first, stop); only the values of a range enter its sum.

    A range is cut into runs of 1, 2, 4, ... values, one for each bit of its length. Differences of
    running sums would cost less, but lose a range's digits to a huge value before it.
    """
    length_N, run_start_N = stop_N - first_N, first_N
    sums_N = values_M.new_zeros(first_N.shape)
    runs_M = torch.nn.functional.pad(values_M, (0, 1))  # a range that is over may begin at M
    for width in (1 << level for level in range(len(values_M).bit_length())):
        has_run_N = (length_N & width) > 0
        sums_N = sums_N + torch.where(has_run_N, runs_M[run_start_N], 0)
        run_start_N = run_start_N + torch.where(has_run_N, width, 0)
        next_runs_M = torch.nn.functional.pad(runs_M[width:], (0, min(width, len(runs_M))))
        runs_M = runs_M + next_runs_M  # the sums of twice as many values
    return sums_N


def _range_max(values_M: Tensor, first_N: Tensor, stop_N: Tensor) -> Tensor:
    """Computes maxima over [first, stop) from a table of the maxima of all runs of 2^k values.

    Any range is the union of two such runs. An empty range gives an arbitrary value.
    """
    num_values = values_M.shape[0]
    if num_values == 0:
        return values_M.new_full(first_N.shape, -torch.inf)
    levels = [values_M]
    while (width := 1 << len(levels)) <= num_values:
        below, half = levels[-1], width // 2
        shifted = torch.cat([below[half:], below[:half]])  # wrapped values are never looked up
        levels.append(torch.maximum(below, shifted))
    table_LM = torch.stack(levels)
    length_N = (stop_N - first_N).clamp_min(1)
    powers_L = 2 ** torch.arange(len(levels), device=values_M.device)
    level_N = torch.searchsorted(powers_L, length_N, right=True) - 1
    last_run_N = (stop_N - powers_L[level_N]).clamp_min(0)
    first_N = first_N.clamp_max(num_values - 1)
    return torch.maximum(table_LM[level_N, first_N], table_LM[level_N, last_run_N])


def row_sums(teacher_nll_M: Tensor, ranges_B2: Tensor) -> Tensor:
    """Computes (B, 2) float32, the sum and the count of each row's teacher losses. NaN and infinite
    losses are skipped. Needs no device sync.

    Args:
        teacher_nll_M: nats; NaN for tokens that are not counted.
        ranges_B2: the half-open range of the M that belongs to each row.
    """
    is_finite_M = teacher_nll_M.isfinite()
    filled_M = torch.where(is_finite_M, teacher_nll_M, 0.0).double()
    first_B, stop_B = ranges_B2.long().unbind(1)
    sums_B = _range_sums(filled_M, first_B, stop_B)
    return torch.stack([sums_B, _range_counts(is_finite_M, first_B, stop_B)], 1).float()
