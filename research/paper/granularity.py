"""Measures how well equal chunks of two token sequences meet, and tokens aligned by their text.

Source: Fig. 3, sections 2 and 6.1 of arXiv 2503.19123.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from research.tables import write_table
from vocagno.alignment.arrays import Int64
from vocagno.alignment.mapping import Overlap, align, chunk_boundaries, overlap
from vocagno.errors import InputError
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

CHUNKS = tuple(2**power for power in range(11))
"""Chunks of a sequence, 1 to 1,024; those of more tokens than it has are skipped."""


@dataclass(frozen=True, slots=True)
class Level:
    """Means over all chunks, or tokens, of the student that have text."""

    chunks: int | None
    """Chunks of a sequence; None at token level."""
    iou: float
    """Mean |s ∩ t| / |s ∪ t| in characters; s and t without text in common count 0."""
    ios: float
    """Mean |s ∩ t| / |s|."""
    counted: int
    """The number of chunks or tokens that the means are over."""


@dataclass(frozen=True, slots=True)
class Granularity:
    """The text that chunks and tokens of a student and a teacher share, at each granularity."""

    student: str
    teacher: str
    seq_len: int
    """Student tokens of a sequence."""
    documents: int
    sequences: int
    student_tokens: int
    teacher_tokens: int
    """Teacher tokens of all sequences. A token that two sequences share counts in both."""
    left_out_tokens: int
    """Student tokens of the last, shorter sequence, which is not measured."""
    levels: list[Level]
    """By ascending number of chunks, token level last."""


def granularity(
    student: TokenSpans,
    teacher: TokenSpans,
    batches: Iterable[Sequence[str]],
    *,
    seq_len: int,
) -> Granularity:
    """Measures chunk against chunk, and student token against the teacher tokens aligned to it.

    The documents of all batches make one stream of text, which is cut into sequences after every
    `seq_len` student tokens. A sequence's teacher tokens are those from the first to the last that
    overlaps its text. A chunk's text goes from the start of its first token to the end of its last.

    Args:
        batches: documents, such as `corpus.read_batches` gives.
    Raises: InputError for a `seq_len` below 1, and for texts of fewer than `seq_len` student
        tokens; else as `TokenSpans.encode`.

    Cost: tokenizing, and some tens of nanoseconds a token and granularity; memory of one batch.
    Source: arXiv 2503.19123, sections 2 and 6.1, Fig. 3.
    """
    if seq_len < 1:
        raise InputError(f"seq_len: expected at least 1 token, got {seq_len}")
    meter = _Meter(seq_len)
    for texts in batches:
        meter.add(texts, student.encode(texts), teacher.encode(texts))
    return meter.result(student.name, teacher.name)


def write_csv(path: Path, results: Sequence[Granularity]) -> None:
    """Writes the levels of all teachers; `chunks` is "token" at token level."""
    header = ("student", "teacher", "seq_len", "chunks", "iou", "ios", "counted")
    lines: list[Sequence[object]] = [header]
    for result in results:
        names = result.student, result.teacher, result.seq_len
        for level in result.levels:
            shares = f"{level.iou:.6f}", f"{level.ios:.6f}"
            lines.append([*names, level.chunks or "token", *shares, level.counted])
    write_table(path, lines)


@dataclass
class _Means:
    """Sums that become a `Level`."""

    iou: float = 0.0
    ios: float = 0.0
    counted: int = 0

    def add(self, shares: Overlap) -> None:
        self.iou += float(np.nansum(shares.iou))
        self.ios += float(np.nansum(shares.ios))
        self.counted += len(shares.ios) - int(np.count_nonzero(np.isnan(shares.ios)))

    def level(self, chunks: int | None) -> Level:
        count = max(1, self.counted)
        return Level(chunks, self.iou / count, self.ios / count, self.counted)


class _Meter:
    """Takes documents and measures every sequence as soon as it is whole."""

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len
        self._chunk_means = {count: _Means() for count in CHUNKS if count <= seq_len}
        self._token_means = _Means()
        self._documents = self._sequences = self._teacher_tokens = 0
        self._characters = 0
        """The characters of all texts so far."""
        self._student = self._teacher = np.empty((0, 2), np.int64)
        """Spans of what is not measured yet; of the teacher's, perhaps some more before them."""

    def add(self, texts: Sequence[str], student: TokenizedTexts, teacher: TokenizedTexts) -> None:
        new_student = in_characters(student, texts) + self._characters
        new_teacher = in_characters(teacher, texts) + self._characters
        student_spans = np.concatenate([self._student, new_student])
        teacher_spans = np.concatenate([self._teacher, new_teacher])
        self._documents += len(texts)
        self._characters += sum(map(len, texts))
        if num_sequences := len(student_spans) // self._seq_len:
            measured, student_spans = np.split(student_spans, [num_sequences * self._seq_len])
            self._measure(measured, teacher_spans)
            teacher_spans = _from_last_token(teacher_spans, measured)
        self._student, self._teacher = student_spans, teacher_spans

    def _measure(self, student: Int64, teacher: Int64) -> None:
        """Adds whole sequences of the student. `teacher` covers at least their text."""
        self._token_means.add(overlap(student, teacher, align(student, teacher)))
        firsts = np.arange(0, len(student), self._seq_len)
        texts = _extents(student, np.stack([firsts, firsts + self._seq_len], axis=1))
        rows = align(texts, teacher).clip(0)  # no teacher token: none from row 0
        sizes = rows[:, 1] - rows[:, 0]
        self._sequences += len(texts)
        self._teacher_tokens += int(sizes.sum())
        for count, means in self._chunk_means.items():
            student_cuts = firsts[:, None] + chunk_boundaries(self._seq_len, count)
            teacher_cuts = rows[:, :1] + np.stack([chunk_boundaries(size, count) for size in sizes])
            means.add(_overlap_of_chunks(student, student_cuts, teacher, teacher_cuts))

    def result(self, student: str, teacher: str) -> Granularity:
        if not self._sequences:
            raise InputError(
                f"the texts have {len(self._student):,} student tokens, not even one sequence of "
                f"{self._seq_len:,}; give more text or a smaller seq_len"
            )
        return Granularity(
            student=student,
            teacher=teacher,
            seq_len=self._seq_len,
            documents=self._documents,
            sequences=self._sequences,
            student_tokens=self._sequences * self._seq_len,
            teacher_tokens=self._teacher_tokens,
            left_out_tokens=len(self._student),
            levels=[
                *(means.level(count) for count, means in self._chunk_means.items()),
                self._token_means.level(None),
            ],
        )


def _overlap_of_chunks(
    student: Int64, student_cuts: Int64, teacher: Int64, teacher_cuts: Int64
) -> Overlap:
    """Compares each chunk of the student with the teacher's of the same number, for S sequences.

    Both have (S, chunks + 1) cuts, which are rows of the spans.
    """
    chunks = student_cuts.shape[1] - 1
    pairs = [
        np.stack([cuts[:, :-1], cuts[:, 1:]], axis=2).reshape(-1, 2)
        for cuts in (student_cuts, teacher_cuts)
    ]
    numbers = np.arange(student_cuts.shape[0] * chunks, dtype=np.int32)
    # Each sequence is a text of its own: teacher tokens that two of them share, nested ones say,
    # would stand out of order.
    sequences = np.arange(0, len(numbers) + 1, chunks)
    texts = _extents(student, pairs[0]), _extents(teacher, pairs[1])
    mapping = np.stack([numbers, numbers + 1], axis=1)
    return overlap(*texts, mapping, student_cu_seqlens=sequences, teacher_cu_seqlens=sequences)


def _extents(spans: Int64, ranges: Int64) -> Int64:
    """Finds the text of each range of rows: from its first token with text to its last.

    A range without text gives (0, 0). The spans are in order, but for the empty ones.
    """
    filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
    first, stop = np.searchsorted(filled, ranges.T)
    extents = np.zeros((len(ranges), 2), np.int64)
    has_text = first < stop
    extents[has_text, 0] = spans[filled[first[has_text]], 0]
    extents[has_text, 1] = spans[filled[stop[has_text] - 1], 1]
    return extents


def _from_last_token(teacher: Int64, measured: Int64) -> Int64:
    """Drops the teacher's tokens that the student's next token cannot share text with.

    No token starts before the one in front of it, so the tokens that stay begin with the first one
    that ends behind the start of the last token measured.
    """
    starts = measured[measured[:, 0] < measured[:, 1], 0]
    if not len(starts):
        return teacher
    reaching = (teacher[:, 0] < teacher[:, 1]) & (teacher[:, 1] > starts[-1])
    return teacher[np.argmax(reaching) :] if reaching.any() else teacher[:0]


def in_characters(tokens: TokenizedTexts, texts: Sequence[str]) -> Int64:
    """Spans of the tokens in characters of `"".join(texts)`.

    Returns: (n, 2) int64, half-open. A token that is a part of a character gets the whole of it,
        so that parts share one span, as in the offsets of tokenizers; empty spans stay empty.
    """
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    is_inside = (data & 0xC0) == 0x80  # a character starts at every other byte
    before = np.append(0, np.cumsum(~is_inside))  # characters that start before each byte
    sizes = [len(text) for text in encoded]
    first_byte = np.append(0, np.cumsum(sizes))[:-1]
    spans = tokens.spans + np.repeat(first_byte, np.diff(tokens.cu_seqlens))[:, None]
    characters: Int64 = before[spans].astype(np.int64, copy=False)
    filled = np.flatnonzero(spans[:, 0] < spans[:, 1])
    characters[filled, 0] -= is_inside[spans[filled, 0]]
    return characters
