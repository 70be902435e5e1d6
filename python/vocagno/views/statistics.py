"""How alike two tokenizers are: their vocabularies, and what their tokens do to each other."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, align, unmapped_reasons
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans


@dataclass(frozen=True, slots=True)
class VocabularyOverlap:
    """What two vocabularies share, added tokens included (Fig. 1 of arXiv 2503.19123)."""

    student_size: int
    teacher_size: int
    shared_strings: int
    """Vocabulary strings, as they are written in the tokenizers' files, that both have."""
    student_entries_shared: int
    """Student entries whose bytes (`▁` and `Ġ` are a space) some teacher entry stands for."""
    teacher_entries_shared: int
    """Teacher entries whose bytes some student entry stands for."""

    @property
    def string_share(self) -> float:
        """Shared strings / size of the teacher's vocabulary: the paper's figure."""
        return self.shared_strings / max(1, self.teacher_size)

    @property
    def student_byte_share(self) -> float:
        """Share of the student's entries that the teacher has too, as bytes."""
        return self.student_entries_shared / max(1, self.student_size)

    @property
    def teacher_byte_share(self) -> float:
        """Share of the teacher's entries that the student has too, as bytes."""
        return self.teacher_entries_shared / max(1, self.teacher_size)

    def as_dict(self) -> dict[str, Any]:
        """Counts and shares, as JSON has them."""
        shares = ("string_share", "student_byte_share", "teacher_byte_share")
        return {**asdict(self), **{name: getattr(self, name) for name in shares}}


def vocabulary_overlap(student: TokenSpans, teacher: TokenSpans) -> VocabularyOverlap:
    """Counts what two vocabularies share, as strings and as bytes."""
    left, right = student.vocabulary(), teacher.vocabulary()
    mine = [piece for piece in student.pieces() if piece is not None]
    theirs = [piece for piece in teacher.pieces() if piece is not None]
    known_left, known_right = set(mine), set(theirs)
    return VocabularyOverlap(
        student_size=len(left),
        teacher_size=len(right),
        shared_strings=len(left.keys() & right.keys()),
        student_entries_shared=sum(piece in known_right for piece in mine),
        teacher_entries_shared=sum(piece in known_left for piece in theirs),
    )


class Link(IntEnum):
    """How a student token meets the teacher's."""

    UNMAPPED = 0
    ONE_TO_ONE = 1
    """One teacher token, which no other student token meets."""
    ONE_TO_MANY = 2
    """Several teacher tokens."""
    MANY_TO_ONE = 3
    """One teacher token, which other student tokens meet as well."""


def links(mapping: NDArray[np.int32], teacher_spans: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """The `Link` of each student token, (N,) uint8, of a mapping into these teacher spans.

    Teacher tokens without text (special ones inside a range) do not count.
    """
    mapped = mapping[:, 0] >= 0
    first, stop = mapping[mapped, 0], mapping[mapped, 1]
    num_rows = len(teacher_spans)
    opened = np.bincount(first, minlength=num_rows + 1) - np.bincount(stop, minlength=num_rows + 1)
    users = np.cumsum(opened)  # student tokens that meet each teacher row
    with_text = np.append(0, np.cumsum(teacher_spans[:, 0] < teacher_spans[:, 1]))
    several = with_text[stop] - with_text[first] > 1
    shared = users[first] > 1
    result = np.zeros(len(mapping), np.uint8)
    result[mapped] = np.where(
        several, Link.ONE_TO_MANY, np.where(shared, Link.MANY_TO_ONE, Link.ONE_TO_ONE)
    )
    return result


@dataclass(slots=True)
class AlignmentRates:
    """Counts over a corpus; shares are of student tokens with text unless they say otherwise."""

    documents: int = 0
    bytes: int = 0
    student_tokens: int = 0
    teacher_tokens: int = 0
    with_text: int = 0
    """Student tokens whose span is not empty."""
    mapped: int = 0
    one_to_one: int = 0
    one_to_many: int = 0
    many_to_one: int = 0
    special: int = 0
    truncated: int = 0
    hole: int = 0
    student_proved: int = 0
    """Documents whose student spans come from the ids alone."""
    teacher_proved: int = 0
    student_without_tokens: list[int] = field(default_factory=list)
    """Documents with text of which the student's tokenizer makes no token, by their number."""
    teacher_without_tokens: list[int] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Mapped tokens / tokens with text."""
        return self.mapped / max(1, self.with_text)

    def share(self, count: int) -> float:
        """A count as a share of the student tokens with text."""
        return count / max(1, self.with_text)

    def add(self, texts: Sequence[str], student: TokenizedTexts, teacher: TokenizedTexts) -> None:
        """Aligns and counts some documents."""
        cu_seqlens = student.cu_seqlens, teacher.cu_seqlens
        mapping = align(
            student.spans, teacher.spans,
            student_cu_seqlens=cu_seqlens[0], teacher_cu_seqlens=cu_seqlens[1],
        )  # fmt: skip
        reasons = unmapped_reasons(
            student.spans, teacher.spans, mapping,
            student_cu_seqlens=cu_seqlens[0], teacher_cu_seqlens=cu_seqlens[1],
        )  # fmt: skip
        kinds = np.bincount(links(mapping, teacher.spans), minlength=len(Link))
        why = np.bincount(reasons, minlength=len(Reason))
        for side in ("student", "teacher"):
            tokens = student if side == "student" else teacher
            lengths = np.diff(tokens.cu_seqlens)
            getattr(self, f"{side}_without_tokens").extend(
                self.documents + i for i, text in enumerate(texts) if text and not lengths[i]
            )
        self.documents += len(texts)
        self.bytes += sum(len(text.encode()) for text in texts)
        self.student_tokens += len(student.ids)
        self.teacher_tokens += len(teacher.ids)
        self.student_proved += int(student.proved.sum())
        self.teacher_proved += int(teacher.proved.sum())
        self.with_text += len(mapping) - int(why[Reason.SPECIAL])
        self.mapped += int(why[Reason.MAPPED])
        self.special += int(why[Reason.SPECIAL])
        self.truncated += int(why[Reason.TRUNCATED])
        self.hole += int(why[Reason.HOLE])
        self.one_to_one += int(kinds[Link.ONE_TO_ONE])
        self.one_to_many += int(kinds[Link.ONE_TO_MANY])
        self.many_to_one += int(kinds[Link.MANY_TO_ONE])

    def as_dict(self) -> dict[str, Any]:
        """Counts and shares, as JSON has them."""
        kinds = {name: self.share(getattr(self, name)) for name in _KINDS}
        return {
            **asdict(self),
            "coverage": self.coverage,
            **{f"{name}_share": share for name, share in kinds.items()},
            "student_bytes_per_token": self.bytes / max(1, self.student_tokens),
            "teacher_bytes_per_token": self.bytes / max(1, self.teacher_tokens),
            "student_tokens_per_teacher_token": self.student_tokens / max(1, self.teacher_tokens),
        }


_KINDS = ("one_to_one", "one_to_many", "many_to_one")


def alignment_rates(
    student: TokenSpans, teacher: TokenSpans, batches: Iterable[Sequence[str]]
) -> AlignmentRates:
    """Tokenizes, aligns and counts documents, a batch at a time."""
    rates = AlignmentRates()
    for texts in batches:
        rates.add(texts, student.encode(texts), teacher.encode(texts))
    return rates
