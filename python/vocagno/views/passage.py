"""The data of a picture: a text, its student and teacher tokens, the mapping between them, and for
each student token the verdict, why it was kept or dropped."""

import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from vocagno.config.guidance import GuidanceConfig


class Glyph(NamedTuple):
    """A character of a text: its half-open byte span, and the sign that is shown, with its width in
    columns."""

    start: int
    end: int
    shown: str
    columns: int


def glyphs(text: str) -> list[Glyph]:
    """Returns the `Glyph` of every character of a text."""
    result, start = list[Glyph](), 0
    for character in text:
        end = start + len(character.encode())
        shown = visible(character)
        bare_mark = shown == character and is_mark(character)
        result.append(Glyph(start, end, shown, 0 if bare_mark else columns(shown)))
        start = end
    return result


def columns(text: str) -> int:
    """Returns the width of visible text in a fixed-width font: 0 columns for a mark, 2 for a wide
    character, else 1."""
    return sum(0 if is_mark(c) else 2 if is_wide(c) else 1 for c in text)


def is_wide(character: str) -> bool:
    """Returns True if a character takes two columns."""
    return unicodedata.east_asian_width(character) in "WF"


def is_mark(character: str) -> bool:
    """Returns True if a character is drawn over, under or into the one before it."""
    return unicodedata.category(character).startswith("M")


def visible(text: str) -> str:
    """Replaces each blank, line break, control, format and bidi character by a visible sign."""
    return "".join(map(visible_character, text))


def visible_character(character: str) -> str:
    """Returns the sign for a character without a look of its own, or else the character."""
    if character in _SIGNS:
        return _SIGNS[character]
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨{ord(character):X}⟩"
    return character


_SIGNS = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}


def token_label(data: bytes, start: int, end: int, surface: str) -> str:
    """Returns the label of a token: signs of its whole characters, and hexadecimal bytes of
    characters that are cut.

    A token without text shows its vocabulary string.
    """
    if start == end:
        return visible(surface) or "∅"
    characters = data[start:end].decode(errors="surrogateescape")  # one for each byte of a cut one
    label = "".join(
        f"{ord(c) - 0xDC00:02X}" if "\udc80" <= c <= "\udcff" else visible_character(c)
        for c in characters
    )
    # A mark would be drawn into the border of its box; the dotted circle carries it.
    return f"◌{label}" if is_mark(label[0]) else label


def shorten(label: str, room: int) -> str:
    """Shortens a label to `room` columns: the middle of a longer one is counted, not shown."""
    if columns(label) <= room:
        return label
    shown = max(1, (room - 10) // 4)  # characters at each end, which may be wide
    return f"{label[:shown]}⟨+{len(label) - 2 * shown}⟩{label[-shown:]}"


def number(value: float | None, form: str = ".3f", *, missing: str = "none") -> str:
    """Formats a loss or excess loss. Returns `missing` for None and NaN."""
    return missing if value is None or math.isnan(value) else f"{value:{form}}"


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
    """Weight of the token in the student's loss: 1 if it is trained on, else 0."""
    reason: str = "mapped"
    """A `Reason` in lower case, or `partial`: the teacher lacks a loss in the token's group."""
    unit_excess: float | None = None
    """Excess loss of the token's group, where groups are ranked: the mean of the student's losses
    over the group, minus `teacher_loss`."""
    neighbours_loss: float | None = None
    """The teacher's loss on the neighbours in nats a byte, where a rule reads it; None without
    any."""
    why: str = ""
    """A `Why`; empty if it is not known."""

    @property
    def lacks(self) -> str | None:
        """The `reason` for which a predicted token has no teacher loss; None if it has one."""
        return self.reason if self.nll is not None and self.teacher_loss is None else None

    @property
    def verdict(self) -> str:
        """The token's `why`, followed by `lacks` if the token has no teacher loss."""
        return f"{self.why}, {self.lacks}" if self.why and self.lacks else self.why

    @property
    def excess(self) -> float | None:
        """Student loss minus teacher loss, of the token's group where groups are ranked.

        None where a loss is missing, NaN or infinite.
        """
        if self.nll is None or self.teacher_loss is None:
            return None
        excess = self.nll - self.teacher_loss if self.unit_excess is None else self.unit_excess
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
        """Returns the fields in types of JSON, from which `from_dict` builds the passage again."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Passage":
        """Builds the passage from the result of `as_dict`."""
        sides = {
            "student": [StudentToken(**token) for token in fields["student"]],
            "teacher": [Token(**token) for token in fields["teacher"]],
            "mapping": [(first, stop) for first, stop in fields["mapping"]],
        }
        return cls(**{**fields, **sides})

    @cached_property
    def data(self) -> bytes:
        """The text in UTF-8, the unit of spans."""
        return self.text.encode()

    @cached_property
    def has_losses(self) -> bool:
        """True if any token has a loss. Without one, only the alignment is drawn."""
        return any(token.nll is not None for token in (*self.student, *self.teacher))

    @property
    def sides(self) -> tuple[Sequence[Token], Sequence[Token]]:
        """The tokens of the student, and of the teacher."""
        return self.student, self.teacher

    def label(self, token: Token) -> str:
        """Returns the visible text of a token, as pictures show it."""
        return token_label(self.data, token.start, token.end, token.text)

    def is_kept(self, row: int) -> bool:
        """Returns True if a student token is trained on."""
        return self.student[row].weight > 0


Why = (
    Literal["top", "below", "reaches", "noise", "not noise", "included", "excluded"]
    | Literal["not predicted", "ahead", "behind", "start", "no start", "kept", "dropped"]
)
"""The fact that decides whether a student token is kept.

top, below: the token competes for a quota, and its excess loss is among the largest or not.
reaches, below: its excess loss reaches the threshold or not. noise: the teacher loses too much on
its neighbours, and its own losses do not matter. not noise: the teacher does not, and the rule has
no threshold. included, excluded: it has no teacher loss, and such tokens are kept or dropped. not
predicted: it is the first token.

Under `alm`: ahead, behind: the teacher predicts the token's group better than the student, or not.
Under `distill`: start, no start: a token of the teacher starts where this one does, or not.
Distributions are compared only at a start, and not at the first word of a text if only one of the
tokenizers puts a space before it. kept, dropped: another method decided."""

COMPETING = set("top below reaches noise ahead behind start".split()) | {"not noise", "no start"}
"""Verdicts on tokens that have a teacher loss, and so compete."""


def whys(guidance: GuidanceConfig) -> tuple[Why, ...]:
    """Returns the verdicts on predicted tokens that are possible under a rule."""
    noise: tuple[Why, ...] = () if not guidance.has_line_rule else ("noise",)
    if not guidance.is_explained:
        return "kept", "dropped"
    if guidance.is_matching:
        distill: tuple[Why, ...] = "start", "no start"
        own_verdicts = distill if guidance.needs_candidates else ("ahead", "behind")
        return *own_verdicts, *noise, "included", "excluded"
    if guidance.keeps_quota_of_units:
        return "top", "below", "included", "excluded"
    if guidance.ignores_excess:
        return "not noise", *noise, "below", "included", "excluded"
    return "reaches", "below", *noise, "included", "excluded"


def add_verdicts(passage: Passage, guidance: GuidanceConfig) -> Passage:
    """Adds the verdict on each student token to a passage that was ranked under `guidance`."""
    starts = {token.start for token in passage.teacher if token.start < token.end}
    student = [
        replace(token, why=_why(token, guidance, starts, kept=passage.is_kept(row)))
        for row, token in enumerate(passage.student)
    ]
    return replace(passage, student=student)


def _why(
    token: StudentToken, guidance: GuidanceConfig, starts: Collection[int], *, kept: bool
) -> Why:
    """Returns the verdict on a token. The order of the checks is that of the rule.

    Args: starts: the bytes at which the teacher's tokens start.
    """
    if token.nll is None:
        return "not predicted"
    if not guidance.is_explained:
        return "kept" if kept else "dropped"
    if token.teacher_loss is None and guidance.unmapped != "mean":
        return "included" if kept else "excluded"
    if guidance.keeps_quota_of_units:
        return "top" if kept else "below"
    loss, most = token.neighbours_loss, guidance.window_max_loss
    if loss is not None and most is not None and loss > most:
        return "noise"
    if guidance.needs_candidates:
        return "start" if token.start in starts else "no start"
    if guidance.is_matching:
        return "ahead" if token.excess is not None and token.excess > 0 else "behind"
    if kept:
        return "not noise" if guidance.ignores_excess else "reaches"
    return "below"
