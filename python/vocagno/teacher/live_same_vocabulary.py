"""A live teacher with the student's vocabulary. It reads the same rows as the student.

Every predicted token has a loss, including special tokens, and nothing is tokenized again.

B: rows, T: tokens of a row, N = B * T, H: hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vocagno.config.data import DataConfig
from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError
from vocagno.models.causal import IGNORED
from vocagno.models.head import hidden_states
from vocagno.models.packing import keeps_apart, mask_fits
from vocagno.models.token_losses import chunked_entropy, chunked_nll
from vocagno.teacher.live import LiveTeacher, LiveText
from vocagno.teacher.scorer import Pass, TransformersScorer
from vocagno.teacher.states import TeacherStates
from vocagno.tokens.token_spans import TokenSpans


def check_same_vocabulary(student: TokenSpans, teacher: TokenSpans, method: str) -> None:
    """Rejects a teacher whose ids differ from the student's; it may have additional ids.

    Raises: ConfigError naming a token that differs.
    """
    theirs = teacher.vocabulary()
    for token, index in sorted(student.vocabulary().items(), key=lambda entry: entry[1]):
        if theirs.get(token) != index:
            found = f"id {theirs[token]}" if token in theirs else "no token"
            raise ConfigError(
                f"guidance.method: {method} needs a teacher with the student's vocabulary, but "
                f"{token!r}, id {index} of {student.name}, is {found} of {teacher.name}; use "
                "vocagno (or uld), which need no common vocabulary"
            )


class RowTeacher(LiveTeacher):
    """Reads rows of ids, for `rho1` and `kld`."""

    def __init__(
        self,
        scorer: TransformersScorer,
        guidance: GuidanceConfig,
        device: torch.device,
        data: DataConfig,
        num_ids: int,
    ) -> None:
        """`num_ids`: size of the student's vocabulary, with which the teacher's begins.

        Raises: ConfigError for `data.isolate` with a teacher that cannot keep documents apart.
        """
        super().__init__(scorer, device)
        model = scorer.model
        fits = mask_fits(model, data.seq_len)
        if data.isolate and not (fits and keeps_apart(model)):
            raise ConfigError(
                f"data.isolate: teacher.model: {type(model).__name__} does not keep documents of a "
                "row apart (or has a sliding window); use another teacher.attention (sdpa, eager), "
                "another teacher, or isolate: false"
            )
        self.guidance = guidance
        self._num_ids = num_ids
        self._rows = max(1, scorer.batch_tokens // data.seq_len)

    def plan(self, text: LiveText | None) -> list[Pass]:
        """No passes: nothing is prepared ahead of time."""
        return []

    @torch.inference_mode()
    def guide(
        self,
        text: LiveText | None,
        tensors: dict[str, Tensor],
        passes: Sequence[Pass],
        num_passes: int = 0,
    ) -> dict[str, Any]:
        """As `LiveTeacher.guide`."""
        labels_BT, head = tensors["labels"], self.scorer.head
        states_BTH = self._states(tensors)
        partner_BT = torch.arange(labels_BT.numel(), device=self.device).view(labels_BT.shape)
        states_NH = states_BTH.flatten(0, 1)
        is_asked_BT = labels_BT != IGNORED
        if self.guidance.needs_distributions:
            is_finite_BT = states_BTH.isfinite().all(-1).to(self.device)
            self.note_unscored(is_asked_BT & ~is_finite_BT)
            return {"teacher": TeacherStates(states_NH, head, partner_BT, self._num_ids)}
        nll_N = chunked_nll(states_NH, head, labels_BT.clamp_min(0).flatten())
        nll_BT = nll_N.view(labels_BT.shape).to(self.device)
        self.note_unscored(is_asked_BT & ~nll_BT.isfinite())
        given = {"teacher_loss": torch.where(is_asked_BT, nll_BT, torch.nan)}
        if self.guidance.criterion == "excess_and_entropy":
            entropy_N = chunked_entropy(states_NH, head)
            given["entropy"] = entropy_N.view(labels_BT.shape).to(self.device)
        return given

    def _states(self, tensors: dict[str, Tensor]) -> Tensor:
        """(B, T, H), computed a few rows at a time."""
        names = ("attention_mask", "position_ids")
        parts = [
            hidden_states(
                self.scorer.model,
                tensors["input_ids"][rows],
                **{name: tensors[name][rows] for name in names if name in tensors},
            )
            for rows in _slices(len(tensors["input_ids"]), self._rows)
        ]
        return torch.cat(parts)


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, count, size)]
