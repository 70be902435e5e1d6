"""Compares two tokenizers: the entries that their vocabularies share, and how their tokens
overlap in texts."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.arrays import as_mapping, as_spans
from vocagno.alignment.mapping import Reason, align, groups, unmapped_reasons
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans


@dataclass(frozen=True, slots=True)
class VocabularyOverlap:
    """The overlap of two vocabularies, added tokens included (Fig. 1 of arXiv 2503.19123)."""

    student_size: int
    teacher_size: int
    shared_strings: int
    """Vocabulary strings, as in the tokenizers' files, that both have."""
    student_entries_shared: int
    """Student entries whose bytes (`▁` and `Ġ` are a space) are those of a teacher entry."""
    teacher_entries_shared: int
    """Teacher entries whose bytes are those of a student entry."""

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
    """Counts the entries that two vocabularies share, as strings and as bytes."""
    student_strings, teacher_strings = student.vocabulary(), teacher.vocabulary()
    # Lists, since several entries may have the same bytes, and each of them counts.
    student_bytes = [piece for piece in student.pieces() if piece is not None]
    teacher_bytes = [piece for piece in teacher.pieces() if piece is not None]
    shared_bytes = set(student_bytes) & set(teacher_bytes)
    return VocabularyOverlap(
        student_size=len(student_strings),
        teacher_size=len(teacher_strings),
        shared_strings=len(student_strings.keys() & teacher_strings.keys()),
        student_entries_shared=sum(piece in shared_bytes for piece in student_bytes),
        teacher_entries_shared=sum(piece in shared_bytes for piece in teacher_bytes),
    )


class Link(IntEnum):
    """The teacher tokens that a student token is mapped to."""

    UNMAPPED = 0
    ONE_TO_ONE = 1
    """One teacher token, which no other student token is mapped to."""
    ONE_TO_MANY = 2
    """Several teacher tokens."""
    MANY_TO_ONE = 3
    """One teacher token, which other student tokens are mapped to as well."""


def links(mapping: ArrayLike, teacher_spans: ArrayLike) -> NDArray[np.uint8]:
    """Returns the `Link` of each student token in a mapping, (N,) uint8.

    Teacher tokens without text (special tokens inside a range) are not counted.
    Raises: TypeError or ValueError for arguments that are not integers of shape (n, 2), or a
        mapping to rows that the spans do not have.
    """
    ranges, spans = as_mapping(mapping), as_spans(teacher_spans, "teacher_spans")
    rows = ranges[ranges[:, 0] >= 0]
    if ((rows[:, 0] >= rows[:, 1]) | (rows[:, 1] > len(spans))).any():
        raise ValueError(
            f"mapping: expected ranges of the {len(spans)} rows of teacher_spans, or (-1, "
            "-1); pass the result of `align`, and the spans that it was given"
        )
    mapped = ranges[:, 0] >= 0
    first, stop = ranges[mapped, 0], ranges[mapped, 1]
    num_rows = len(spans)
    # Each range adds 1 at its first row and takes it away at its stop, so that sums count ranges.
    opened = np.bincount(first, minlength=num_rows + 1) - np.bincount(stop, minlength=num_rows + 1)
    users = np.cumsum(opened)  # student tokens that are mapped to each teacher row
    with_text = np.append(0, np.cumsum(spans[:, 0] < spans[:, 1]))
    has_several = with_text[stop] - with_text[first] > 1
    single_link = np.where(users[first] > 1, Link.MANY_TO_ONE, Link.ONE_TO_ONE)
    result = np.zeros(len(ranges), np.uint8)
    result[mapped] = np.where(has_several, Link.ONE_TO_MANY, single_link)
    return result


LARGE_GROUP = 8
"""A group of more student tokens than this says little about each of them."""


@dataclass(slots=True)
class AlignmentRates:
    """Counts of how two tokenizers' tokens align in a corpus. Shares are of the student tokens with
    text."""

    documents: int = 0
    bytes: int = 0
    student_tokens: int = 0
    teacher_tokens: int = 0
    with_text: int = 0
    """Student tokens with a non-empty span."""
    mapped: int = 0
    one_to_one: int = 0
    one_to_many: int = 0
    many_to_one: int = 0
    special: int = 0
    truncated: int = 0
    hole: int = 0
    groups: int = 0
    """Smallest runs of both sides that cover the same bytes."""
    in_large_groups: int = 0
    """Student tokens in groups of more than `LARGE_GROUP`."""
    largest_group: int = 0
    """Student tokens of the largest group."""
    student_proved: int = 0
    """Documents whose student spans come from the ids only."""
    teacher_proved: int = 0
    student_without_tokens: list[int] = field(default_factory=list)
    """Numbers of the documents with text that are no token to the student's tokenizer."""
    teacher_without_tokens: list[int] = field(default_factory=list)
    student_refused: dict[int, str] = field(default_factory=dict)
    """Numbers of the documents whose tokens the student's tokenizer cannot place, and why. They
    count in nothing but `documents`."""
    teacher_refused: dict[int, str] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Mapped tokens / tokens with text."""
        return self.mapped / max(1, self.with_text)

    def share(self, count: int) -> float:
        """A count as a share of the student tokens with text."""
        return count / max(1, self.with_text)

    def add(self, texts: Sequence[str], student: TokenizedTexts, teacher: TokenizedTexts) -> None:
        """Aligns and counts some documents."""
        spans = student.spans, teacher.spans
        boundaries: dict[str, Any] = {
            "student_cu_seqlens": student.cu_seqlens,
            "teacher_cu_seqlens": teacher.cu_seqlens,
        }
        mapping = align(*spans, **boundaries)
        student_ranges = groups(*spans, **boundaries).student
        group_sizes = student_ranges[:, 1] - student_ranges[:, 0]
        link_counts = np.bincount(links(mapping, teacher.spans), minlength=len(Link))
        reasons = unmapped_reasons(*spans, mapping, **boundaries)
        reason_counts = np.bincount(reasons, minlength=len(Reason))
        without_tokens = self.student_without_tokens, self.teacher_without_tokens
        for tokens, numbers in zip((student, teacher), without_tokens, strict=True):
            counts = zip(texts, np.diff(tokens.cu_seqlens).tolist(), strict=True)
            numbers += [self.documents + i for i, (text, n) in enumerate(counts) if text and not n]
        self.documents += len(texts)
        self.bytes += sum(len(text.encode()) for text in texts)
        self.student_tokens += len(student.ids)
        self.teacher_tokens += len(teacher.ids)
        self.student_proved += int(student.proved.sum())
        self.teacher_proved += int(teacher.proved.sum())
        self.with_text += len(mapping) - int(reason_counts[Reason.SPECIAL])
        self.mapped += int(reason_counts[Reason.MAPPED])
        self.special += int(reason_counts[Reason.SPECIAL])
        self.truncated += int(reason_counts[Reason.TRUNCATED])
        self.hole += int(reason_counts[Reason.HOLE])
        self.groups += len(group_sizes)
        self.in_large_groups += int(group_sizes[group_sizes > LARGE_GROUP].sum())
        self.largest_group = max(self.largest_group, int(group_sizes.max(initial=0)))
        self.one_to_one += int(link_counts[Link.ONE_TO_ONE])
        self.one_to_many += int(link_counts[Link.ONE_TO_MANY])
        self.many_to_one += int(link_counts[Link.MANY_TO_ONE])

    def as_dict(self) -> dict[str, Any]:
        """Counts and shares, as JSON has them."""
        kinds = ("one_to_one", "one_to_many", "many_to_one")
        return {
            **asdict(self),
            "coverage": self.coverage,
            **{f"{name}_share": self.share(getattr(self, name)) for name in kinds},
            "student_bytes_per_token": self.bytes / max(1, self.student_tokens),
            "teacher_bytes_per_token": self.bytes / max(1, self.teacher_tokens),
            "student_tokens_per_teacher_token": self.student_tokens / max(1, self.teacher_tokens),
        }


def alignment_rates(
    student: TokenSpans, teacher: TokenSpans, batches: Iterable[Sequence[str]]
) -> AlignmentRates:
    """Tokenizes, aligns and counts documents, a batch at a time."""
    rates = AlignmentRates()
    for texts in batches:
        student_tokens, student_errors = student.try_encode(texts)
        teacher_tokens, teacher_errors = teacher.try_encode(texts)
        rates.student_refused |= {rates.documents + n: text for n, text in student_errors.items()}
        rates.teacher_refused |= {rates.documents + n: text for n, text in teacher_errors.items()}
        if refused := student_errors.keys() | teacher_errors.keys():
            # Empty documents take their places, so that later documents keep their numbers.
            texts = ["" if number in refused else text for number, text in enumerate(texts)]
            student_tokens = student_tokens.without(refused)
            teacher_tokens = teacher_tokens.without(refused)
        rates.add(texts, student_tokens, teacher_tokens)
    return rates
