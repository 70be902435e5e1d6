"""Chunks instead of tokens: which of the equal parts of a row train (Table 2 of arXiv 2503.19123).

B: rows, T: tokens of a row, C: chunks of a row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.ranking import kept_count, top
from vocagno.guidance.weights import excess_loss, fill_with_mean
from vocagno.models.causal import IGNORED

_SALT = 0x6368756E6B  # "chunk": other numbers than those of the order of the rows


def chunk_weights(
    student_nll_BT: Tensor,
    teacher_loss_BT: Tensor,
    labels_BT: Tensor,
    chunks_BT: Tensor,
    config: GuidanceConfig,
    rank_BC: Tensor | None = None,
    teacher_sums_B2: Tensor | None = None,
) -> Tensor:
    """1.0 for all tokens of the chosen chunks, 0.0 for the others.

    Args:
        student_nll_BT: the student's loss on each token, float32 nats.
        teacher_loss_BT: of each token the aggregated teacher loss of its chunk, NaN for none.
        labels_BT: target ids; tokens of -100 neither train nor count in the mean of their chunk.
        chunks_BT: the number of each token's chunk, -1 at padding.
        config: chunks, top_fraction, unmapped (a chunk without a teacher loss goes by it).
        rank_BC: ranks chunks instead of their excess loss (`random_ranks`).
        teacher_sums_B2: as `token_weights`.
    Returns: (B, T) float32 without gradient, on the same device; the host does not wait.

    The excess loss of a chunk is the student's mean loss on it less the teacher's loss of it; the
    `ceil(top_fraction * n)` of the n competing chunks of a row with the largest are chosen, earlier
    ones first among equals.
    """
    assert config.top_fraction is not None  # of a chunk's configuration
    valid_BT = (labels_BT != IGNORED) & (chunks_BT >= 0)
    place_BT = torch.where(valid_BT, chunks_BT, config.chunks)  # the rest goes into one more
    zeros_BC = torch.zeros(len(labels_BT), config.chunks + 1, device=labels_BT.device)
    count_BC = zeros_BC.scatter_add(1, place_BT, valid_BT.float())[:, :-1]
    has_tokens_BC = count_BC > 0
    if rank_BC is None:
        nll_BT = student_nll_BT.detach().float()
        mean_BC = zeros_BC.scatter_add(1, place_BT, nll_BT)[:, :-1] / count_BC.clamp_min(1)
        # All tokens of a chunk have its loss, so whichever is written last is right.
        teacher_BC = torch.full_like(zeros_BC, torch.nan).scatter(1, place_BT, teacher_loss_BT)
        teacher_BC = teacher_BC[:, :-1]
        has_loss_BC = has_tokens_BC & teacher_BC.isfinite()
        competing_BC, included_BC = has_loss_BC, has_tokens_BC & ~has_loss_BC
        if config.unmapped == "mean":
            competing_BC = has_tokens_BC
            teacher_BC = fill_with_mean(teacher_BC, competing_BC, teacher_sums_B2)
        rank_BC = excess_loss(mean_BC, teacher_BC)
    else:
        competing_BC, included_BC = has_tokens_BC, torch.zeros_like(has_tokens_BC)
    chosen_BC = top(rank_BC, competing_BC, config.top_fraction)
    if config.unmapped == "include":
        chosen_BC = chosen_BC | included_BC
    none_B1 = torch.zeros_like(chosen_BC[:, :1])
    return torch.cat([chosen_BC, none_B1], 1).gather(1, place_BT).float()


def most_kept(
    labels_BT: Tensor, chunks_BT: Tensor, teacher_loss_BT: Tensor, config: GuidanceConfig
) -> int:
    """Tokens that `chunk_weights` can keep at most, known on the host before the forward pass: if
    the largest chunks are chosen."""
    assert config.top_fraction is not None
    kept = 0
    for labels, chunks, losses in zip(labels_BT, chunks_BT, teacher_loss_BT, strict=True):
        valid = (labels != IGNORED) & (chunks >= 0)
        count = torch.bincount(chunks[valid], minlength=config.chunks)
        scored = torch.bincount(chunks[valid & losses.isfinite()], minlength=config.chunks) > 0
        all_compete = config.selection == "random" or config.unmapped == "mean"
        competes = count > 0 if all_compete else scored
        sizes = count[competes].sort(descending=True).values
        kept += int(sizes[: int(kept_count(torch.tensor(len(sizes)), config.top_fraction))].sum())
        if config.unmapped == "include":
            kept += int(count[~competes].sum())
    return kept


def random_ranks(seed: int, samples: Sequence[int], chunks: int) -> Tensor:
    """(B, chunks) float32 that rank the chunks of rows at random: a function of the seed and of the
    number of each sample in the run, so that neither restarts nor the number of processes, nor how
    a step is cut up, change the choice."""
    rows = [
        np.random.Generator(np.random.PCG64([seed, _SALT, sample])).random(chunks, np.float32)
        for sample in samples
    ]
    return torch.from_numpy(np.stack(rows))
