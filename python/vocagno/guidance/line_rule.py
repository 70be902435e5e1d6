"""The default rule, which drops tokens whose line, without their own group, is noise to the
teacher; and what it shares with rules that rank (`excess_rule.py`).

Its options are `guidance.unit: group` and `window_max_loss: 2`. A unit is the group of tokens that
cover the same text in both tokenizers (`unit: token`: a token). It is dropped if the teacher loses
more than 2 nats a byte on the rest of its line. So tokens of one line may differ, and no line is
dropped as a whole. The student's losses have no part in it, so the weights are known before the
forward pass: the collator calls `weights_of_lines`.

B: rows, T: tokens of a row, N = B * T. A token is predicted if its label is not -100.
`roles_by_teacher_loss` sorts the predicted tokens. *Competing* are those that the rule keeps or
drops, here by their line and in `excess_rule.py` by their rank: tokens with a finite teacher loss,
or under `unmapped: mean` all. *Included* are those that are always kept, even on a line that is
noise: under `unmapped: include`, the default, tokens without a teacher loss. Under `exclude` these
are neither, and dropped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config.guidance import SMOOTHING_BYTES, GuidanceConfig
from vocagno.errors import ConfigError, require
from vocagno.guidance.batch import GuidedBatch
from vocagno.models.losses import IGNORED

Value = TypeVar("Value")


def weights_of_lines(batch: GuidedBatch, config: GuidanceConfig) -> Tensor:
    """(B, T) float32: the weights that only `window_max_loss` decides, before the forward pass.

    A weight is 1.0 for a token that competes and is not noise, and for an included one, which has
    no teacher loss, even on a line that is noise; else 0.0.
    A rule with a threshold on the excess loss multiplies it by its own weight, 0.0 or 1.0.

    Raises: ConfigError for guidance without a limit; ValueError if the groups are missing.
    """
    if config.window_max_loss is None:
        raise ConfigError(
            "guidance.window_max_loss is None, which a rule of lines needs; set it, in nats a byte"
        )
    competing_BT, included_BT = roles_by_teacher_loss(batch.teacher_loss, batch.labels_BT, config)
    rest_BT = rest_of_line_loss(batch, config)
    # NaN, a token that has its line to itself, exceeds no limit: nothing speaks against it.
    is_noise_BT = rest_BT > config.window_max_loss
    return (included_BT | (competing_BT & ~is_noise_BT)).float()


def rest_of_line_loss(batch: GuidedBatch, config: GuidanceConfig) -> Tensor:
    """(B, T) float64: the teacher's loss on the rest of each token's line, in nats a byte.

    The rest is the line without the token's group, or without the token where there are no groups;
    so no token decides about itself. NaN if nothing is left. It is smoothed, (loss + 8) /
    (bytes + 8), as if 8 more bytes (`SMOOTHING_BYTES`) had cost 1 nat each, so that short rests
    decide little.

    What is summed is `teacher_loss`; but `group_loss` if `teacher_loss` is of single tokens
    (`GuidanceConfig.needs_group_loss`). A group's tokens share its whole teacher loss evenly, so no
    teacher token counts twice. Only rho1, which has no groups, sums losses L_T of Eq. 2 (arXiv
    2503.19123). The rule itself is not the paper's: docs/guidance.md derives it.

    Args: batch: one with the columns of lines.
    Raises: ValueError without groups or their losses where the rule needs these.
    """
    assert batch.line is not None
    assert batch.line_bytes is not None
    if config.unit == "group" or config.needs_group_loss:
        require_value(batch.line_groups, "unit: group needs the groups of the tokens")
    teacher_loss_BT = batch.teacher_loss
    if config.needs_group_loss:
        teacher_loss_BT = require_value(
            batch.group_loss, "window_max_loss needs the losses of the groups"
        )
    # A live teacher of rho1 also has losses of EOS and BOS, which are no part of a line: the
    # collator gives them -1 byte.
    has_text_BT = batch.line_bytes >= 0
    counted_BT = teacher_loss_BT.isfinite() & (batch.labels_BT != IGNORED) & has_text_BT
    loss_BT = torch.where(counted_BT, teacher_loss_BT, 0.0)
    size_BT = torch.where(counted_BT, batch.line_bytes, 0)
    loss_BT, size_BT = _rests_of_line([loss_BT, size_BT], batch.line, batch.line_groups)
    means_BT = (loss_BT + SMOOTHING_BYTES) / (size_BT + SMOOTHING_BYTES)
    return torch.where(size_BT > 0, means_BT, torch.nan)


def roles_by_teacher_loss(
    teacher_loss_BT: Tensor, labels_BT: Tensor, config: GuidanceConfig
) -> tuple[Tensor, Tensor]:
    """Two boolean (B, T) tensors: the tokens that compete for being kept, and those that are kept
    without competing. Source: section 6.2 of arXiv 2503.19123 (`include`, `exclude`, `mean`)."""
    valid_BT = labels_BT != IGNORED
    scored_BT = valid_BT & teacher_loss_BT.isfinite()
    if config.unmapped == "mean":
        # All compete. A rule that ranks fills in the mean of the scope (`fill_with_mean`); under
        # the rule of lines the line decides.
        return valid_BT, torch.zeros_like(valid_BT)
    return scored_BT, valid_BT & ~scored_BT & (config.unmapped == "include")


def weights_of_batch(batch: GuidedBatch, labels_BT: Tensor) -> Tensor:
    """(B, T): the weights that the collator put into `batch.weight`, 0 for a label of -100. Raises:
    ValueError for a batch without them."""
    need = "window_max_loss needs the weights that are known beforehand"
    return require_value(batch.weight, need).masked_fill(labels_BT == IGNORED, 0.0)


def require_value(value: Value | None, need: str) -> Value:
    """Returns a value that a rule cannot do without.

    Args: need: says which option needs what, for the message.
    Raises: ValueError if the value is None.
    """
    if value is None:
        raise ValueError(
            f"guidance.{need}; give what guided_batch makes, use GuidedCollator or "
            "add_teacher_loss, which make them, too, or another rule, such as the paper's, "
            "GuidanceConfig(top_fraction=0.4)"
        )
    return value


def _rests_of_line(
    columns: Sequence[Tensor], lines_BT: Tensor, groups_BT: Tensor | None
) -> list[Tensor]:
    """(B, T) float64 of each of some columns: the sum over the line of each token but for its
    group. Lines and groups are numbered once, which takes longer than the sums."""
    # Lines and groups end with their row, whatever their numbers are in the next one.
    rows_BT = torch.arange(len(lines_BT), device=lines_BT.device)[:, None].expand_as(lines_BT)
    slot_of_line_N, rests = number_runs(lines_BT.flatten(), rows_BT.flatten()), []
    if groups_BT is not None:
        slot_of_part_N = _number_parts(groups_BT, lines_BT, rows_BT)
    for values_BT in columns:
        values_BT = values_BT.double()
        own_BT = values_BT  # the token's unit, which must not decide about itself
        if groups_BT is not None:
            own_BT = torch.where(groups_BT >= 0, sums_of_runs(values_BT, slot_of_part_N), values_BT)
        of_line_BT = sums_of_runs(values_BT, slot_of_line_N)
        rests.append(torch.where(lines_BT >= 0, of_line_BT - own_BT, 0.0))
    return rests


def _number_parts(groups_BT: Tensor, lines_BT: Tensor, rows_BT: Tensor) -> Tensor:
    """(N,): the number of the part of each token's group that lies in the token's line, from 1; 0
    for a token in no group.

    A group may cover a line break; only its part in the line is taken out of that line. A token
    without text may stand in a group, which it does not split: tokens of the groups 0 0 -1 0 1 1
    in the lines 0 0 0 0 0 1 belong to the parts 1 1 0 1 2 3.
    """
    return number_runs(groups_BT.flatten(), lines_BT.flatten(), rows_BT.flatten())


def sums_of_runs(values_BT: Tensor, slot_N: Tensor) -> Tensor:
    """(B, T): the sum of the values over the run of each token (`number_runs`); 0 for a token in no
    run, even if it stands between tokens of one."""
    # Slot 0 is that of all tokens without a number, whose sum is to be 0.
    counted_N = torch.where(slot_N > 0, values_BT.flatten(), 0.0)
    # There are at most N runs, so that the host need not wait to know how many.
    sums = values_BT.new_zeros(len(slot_N) + 1).index_add_(0, slot_N, counted_N)
    return sums[slot_N].view(values_BT.shape)


def number_runs(numbers_N: Tensor, *further_N: Tensor) -> Tensor:
    """(N,) numbers runs of equal values 1, 2, ... in order; 0 where the value is -1.

    A run continues behind tokens of -1. There are at most N runs, so N + 1 slots hold their sums,
    whatever the values are: a chunk of tokens may hold parts of several rows.

    Args: further_N: columns in which the tokens of a run must be equal, too.
    """
    has_number_N = numbers_N >= 0
    place_N = torch.arange(len(numbers_N), device=numbers_N.device)
    last_N = torch.where(has_number_N, place_N, -1).cummax(0).values
    before_N = torch.nn.functional.pad(last_N, (1, 0), value=-1)[:-1]
    # `before_N` is the last position with a number before each one, so runs pass over tokens of -1.
    begins_N = before_N < 0
    for values_N in (numbers_N, *further_N):
        begins_N = begins_N | (values_N[before_N.clamp_min(0)] != values_N)
    return torch.where(has_number_N, (has_number_N & begins_N).cumsum(0), 0)


def limit_that_keeps(share: float, limits_needed: NDArray[np.float64]) -> float:
    """The least `window_max_loss`, in whole hundredths of a nat a byte, that keeps at least this
    share of the tokens of clean text. A teacher that is weak, or strange to the domain, loses more
    on every line; as a quantile of its losses, the limit drops a known share of clean tokens.

    Args:
        share: in (0, 1].
        limits_needed: what each token of clean text needs (`collator.limits_needed`).
    Raises: ConfigError for another share, for one that every limit keeps, or without tokens.
    """
    require(0 < share <= 1, f"the share to keep must be in (0, 1], got {share}")
    require(limits_needed.size > 0, "no token of the clean text has a teacher loss")
    rank = math.ceil(share * limits_needed.size) - 1  # of the last token that is to be kept
    highest = float(np.partition(limits_needed, rank)[rank])
    always = kept_share(-math.inf, limits_needed)
    require(always < 1, "the clean text has no line of more than one token with a teacher loss")
    require(
        math.isfinite(highest),
        f"the share to keep must be above {always:.4g}, which every limit keeps, because so many "
        f"tokens of the clean text have no neighbours; got {share}",
    )
    hundredths = math.floor(100 * highest)  # may keep too few: it is rounded down
    while kept_share(hundredths / 100, limits_needed) < share:
        hundredths += 1
    return hundredths / 100


def kept_share(limit: float, limits_needed: NDArray[np.float64]) -> float:
    """The share of the tokens that a `window_max_loss` keeps."""
    return float(np.count_nonzero(limits_needed <= limit) / max(1, limits_needed.size))


@dataclass(frozen=True, kw_only=True)
class Units:
    """Numbers that say which tokens belong together, and the text that they cover; for
    `window_max_loss`. It is the argument of `known_weights` for loops of one's own, and no part of
    a training step: a `GuidedBatch` has the same as columns."""

    lines_BT: Tensor
    """The number of each token's line of text; -1 for a token in no line."""
    bytes_BT: Tensor
    """The bytes of text that each token covers."""
    groups_BT: Tensor | None = None
    """The number of each token's group (`GuidedBatch.groups`); None if each token is a unit."""
    group_loss_BT: Tensor | None = None
    """The teacher's loss on the whole group of each token divided by the group's student tokens, in
    nats; NaN where there is none. It is needed if `GuidedBatch.teacher_loss` is of single
    tokens (`GuidanceConfig.needs_group_loss`)."""

    def batch(self, teacher_loss_BT: Tensor, labels_BT: Tensor) -> GuidedBatch:
        """Returns the batch with these columns, and with losses and labels."""
        return GuidedBatch(
            labels=labels_BT,
            teacher_loss=teacher_loss_BT,
            line=self.lines_BT,
            line_bytes=self.bytes_BT,
            line_groups=self.groups_BT,
            group_loss=self.group_loss_BT,
        )


def known_weights(
    teacher_loss_BT: Tensor, labels_BT: Tensor, units: Units, config: GuidanceConfig
) -> Tensor:
    """(B, T) float32: `weights_of_lines` of tensors of your own. No training step calls it.

    Args:
        teacher_loss_BT: nats; NaN for none.
        labels_BT: target ids, -100 where nothing is predicted.
    Raises: ConfigError for guidance without a limit; ValueError if the groups are missing.
    """
    return weights_of_lines(units.batch(teacher_loss_BT, labels_BT), config)
