"""What a picture is made of: a text, its tokens on both sides, and their mapping."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

_ROUNDING = 1e-6
"""Of weights; that of the token at a quota's threshold is `least_kept` itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentToken:
    """One student token: its vocabulary string, its half-open byte span (empty: it covers no text),
    losses in nats (None: there is none), its weight in the loss and why it is mapped or not (a
    `Reason` in lower case; partial: the teacher has no loss of all the text of its group)."""

    text: str
    start: int
    end: int
    id: int | None = None
    nll: float | None = None
    teacher_loss: float | None = None
    weight: float = 1.0
    reason: str = "mapped"
    unit_excess: float | None = None
    """Excess loss of the token's group in nats, where groups are ranked: the mean of the student's
    losses over the group, minus `teacher_loss`."""
    neighbours_excess: float | None = None
    """Mean excess loss of the neighbours in nats, where a rule looks at it; None without any."""
    neighbours_loss: float | None = None
    """What the teacher loses on the neighbours, in nats a byte, where a rule looks at it; None
    without any."""

    @property
    def excess(self) -> float | None:
        """Student NLL minus teacher loss in nats, of the token's group where groups are ranked;
        None where either is missing."""
        if self.nll is None or self.teacher_loss is None:
            return None
        own = self.nll - self.teacher_loss
        excess = own if self.unit_excess is None else self.unit_excess
        return excess if math.isfinite(excess) else None

    @property
    def unit_nll(self) -> float | None:
        """The mean of the student's losses over the token's group; None where tokens are ranked."""
        if self.unit_excess is None or self.teacher_loss is None:
            return None
        return self.unit_excess + self.teacher_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherToken:
    """One teacher token: its vocabulary string, its half-open byte span and its NLL in nats."""

    text: str
    start: int
    end: int
    id: int | None = None
    nll: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text, its tokens on both sides in their order, and for each student token the half-open
    range of teacher tokens it is mapped to, (-1, -1) for an unmapped one."""

    title: str
    text: str
    student: Sequence[StudentToken]
    teacher: Sequence[TeacherToken]
    mapping: Sequence[tuple[int, int]]
    threshold: float | None = None
    """The excess loss, in nats, that a token had to reach to be kept; None if it is not known."""
    least_kept: float = 0.5
    """The smallest weight that is shown as kept: halfway from that of dropped tokens to 1."""
    data: bytes = field(init=False, repr=False)
    """The text in UTF-8, which spans count in."""
    has_losses: bool = field(init=False, repr=False)
    """Whether any token has one; else it is a picture of the alignment alone."""
    has_soft_weights: bool = field(init=False, repr=False)
    """Whether any weight lies between 0 and 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.text.encode())
        losses = [token.nll for token in self.student] + [token.nll for token in self.teacher]
        object.__setattr__(self, "has_losses", any(loss is not None for loss in losses))
        is_soft = any(0 < token.weight < 1 for token in self.student)
        object.__setattr__(self, "has_soft_weights", is_soft)
        if len(self.mapping) != len(self.student):
            raise ValueError(
                f"mapping: expected one range for each of the {len(self.student)} student tokens, "
                f"got {len(self.mapping)}"
            )
        size = len(self.data)
        for side in ("student", "teacher"):
            for row, token in enumerate(getattr(self, side)):
                if not 0 <= token.start <= token.end <= size:
                    raise ValueError(
                        f"{side} token {row}: span [{token.start}, {token.end}) is not inside the "
                        f"text's {size} bytes"
                    )

    @property
    def weight(self) -> float:
        """The weights of all student tokens added up; without soft ones: how many are kept."""
        return sum(token.weight for token in self.student)

    def is_kept(self, row: int) -> bool:
        """Whether a student token is shown as kept: its weight is `least_kept` or more (float32:
        up to 1e-6 less)."""
        return self.student[row].weight > self.least_kept - _ROUNDING


@dataclass(frozen=True, slots=True)
class Group:
    """A shortest stretch of text at whose ends both tokenizers cut, and the rows of its tokens."""

    start: int
    end: int
    student: list[int]
    teacher: list[int]
    student_before: list[int]
    """Rows of the empty tokens that stand before the group."""
    teacher_before: list[int]


def groups(passage: Passage) -> list[Group]:
    """The groups in the order of the text; the last one is empty, at its end."""
    data = passage.data
    cuts = _common_cuts(passage, data)
    student = _by_group(passage.student, cuts)
    teacher = _by_group(passage.teacher, cuts)
    return [
        Group(start, end, student[1][i], teacher[1][i], student[0][i], teacher[0][i])
        for i, (start, end) in enumerate(zip(cuts, [*cuts[1:], len(data)], strict=True))
    ]


def _common_cuts(passage: Passage, data: bytes) -> list[int]:
    """Byte positions, first and last included, that lie inside no token and inside no character."""
    spans = [(token.start, token.end) for token in passage.student]
    spans += [(token.start, token.end) for token in passage.teacher]
    crossed = bytearray((byte & 0xC0) == 0x80 for byte in data) + b"\0"
    for start, end in spans:
        crossed[start + 1 : end] = b"\1" * max(0, end - start - 1)
    edges = {edge for span in spans for edge in span}
    return sorted(edge for edge in edges | {0, len(data)} if not crossed[edge])


def _by_group(
    tokens: Sequence[StudentToken] | Sequence[TeacherToken], cuts: Sequence[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """For each group the rows of the empty tokens before it, and the rows of those inside."""
    empty: list[list[int]] = [[] for _ in cuts]
    covering: list[list[int]] = [[] for _ in cuts]
    next_group = len(cuts) - 1
    for row in reversed(range(len(tokens))):  # an empty token stands before its next neighbour
        token = tokens[row]
        if token.end > token.start:
            next_group = bisect_right(cuts, token.start) - 1
            covering[next_group].append(row)
        else:
            empty[next_group].append(row)
    for rows in (*empty, *covering):
        rows.reverse()
    return empty, covering
