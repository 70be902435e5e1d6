"""The data of a picture: a text, its tokens on both sides, and their mapping."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from vocagno.views.glyphs import token_label

_GONE = ("least_kept", "neighbours_excess")
"""Fields of older passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token: its vocabulary string, its half-open byte span (empty: the token has no text), its
    id, and its loss in nats (None: there is none)."""

    text: str
    start: int
    end: int
    id: int | None = None
    nll: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentToken(Token):
    """One student token, with losses in nats (None: there is none)."""

    teacher_loss: float | None = None
    weight: float = 1.0
    """In the student's loss: 1 for a token that is trained on, else 0."""
    reason: str = "mapped"
    """A `Reason` in lower case, or `partial`: the teacher lacks a loss in the token's group."""
    unit_excess: float | None = None
    """Excess loss of the token's group, where groups are ranked: the mean of the student's losses
    over the group, minus `teacher_loss`."""
    neighbours_loss: float | None = None
    """The teacher's loss on the neighbours in nats a byte, where a rule reads it; None without
    any."""
    why: str = ""
    """A `Why` of `verdicts`; empty if it is not known."""

    @property
    def lacks(self) -> str | None:
        """Why a predicted token has no teacher loss, as `reason`; None if it has."""
        return self.reason if self.nll is not None and self.teacher_loss is None else None

    @property
    def verdict(self) -> str:
        """`why` and `lacks`."""
        return f"{self.why}, {self.lacks}" if self.why and self.lacks else self.why

    @property
    def excess(self) -> float | None:
        """Student loss minus teacher loss, of the token's group where groups are ranked.

        None where a loss is missing, NaN or infinite.
        """
        if self.nll is None or self.teacher_loss is None:
            return None
        own = self.nll - self.teacher_loss
        excess = own if self.unit_excess is None else self.unit_excess
        return excess if math.isfinite(excess) else None

    @property
    def unit_nll(self) -> float | None:
        """Mean of the student's losses over the token's group; None where tokens are ranked."""
        if self.unit_excess is None or self.teacher_loss is None:
            return None
        return self.unit_excess + self.teacher_loss


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A text with its tokens on both sides, and the mapping between them.

    Raises: ValueError for a mapping of another length than `student`, and for a span outside the
        text.
    """

    title: str
    text: str
    student: Sequence[StudentToken]
    teacher: Sequence[Token]
    mapping: Sequence[tuple[int, int]]
    """Half-open range of teacher tokens of each student token, (-1, -1) for an unmapped one."""
    threshold: float | None = None
    """The excess loss, in nats, that a token had to reach to be kept; None if it is not known."""

    def __post_init__(self) -> None:
        if len(self.mapping) != len(self.student):
            raise ValueError(
                f"mapping: expected one range for each of the {len(self.student)} student tokens, "
                f"got {len(self.mapping)}"
            )
        size = len(self.data)
        for side, tokens in zip(("student", "teacher"), self.sides, strict=True):
            for row, token in enumerate(tokens):
                if not 0 <= token.start <= token.end <= size:
                    raise ValueError(
                        f"{side} token {row}: span [{token.start}, {token.end}) is not inside the "
                        f"text's {size} bytes"
                    )

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON has them, for `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Passage":
        """The passage that gave `as_dict`."""
        student = [StudentToken(**_without(token)) for token in fields["student"]]
        teacher = [Token(**token) for token in fields["teacher"]]
        mapping = [(first, stop) for first, stop in fields["mapping"]]
        return cls(
            **{**_without(fields), "student": student, "teacher": teacher, "mapping": mapping}
        )

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8, the unit of spans."""
        return self.text.encode()

    @cached_property
    def has_losses(self) -> bool:
        """Whether any token has a loss. Without one, only the alignment is drawn."""
        return any(token.nll is not None for token in (*self.student, *self.teacher))

    @property
    def sides(self) -> tuple[Sequence[Token], Sequence[Token]]:
        """The tokens of the student, and of the teacher."""
        return self.student, self.teacher

    def label(self, token: Token) -> str:
        """The visible text of a token."""
        return token_label(self.data, token.start, token.end, token.text)

    def is_kept(self, row: int) -> bool:
        """Whether a student token is trained on."""
        return self.student[row].weight > 0


def _without(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _GONE}
