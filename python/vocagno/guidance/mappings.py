"""The mapping of each method: which of the teacher's tokens stand for a student token.

N: student tokens and M: teacher tokens of all pieces of a batch, one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vocagno.alignment.chunks import chunk_boundaries, chunk_map
from vocagno.errors import GuidanceError

UNMAPPED = -1


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """The teacher's losses for n student tokens."""

    mapping: NDArray[np.int32]
    """(n, 2) rows of the teacher's tokens that each is compared with; (-1, -1) for none."""
    teacher_loss: NDArray[np.float32]
    """(n,) nats, NaN for none; of a group the teacher's sum divided by its student tokens."""
    groups: NDArray[np.int64] | None = None
    """(n,) for `unit: group`: the number of each token's group, from 0 in the order of the text; -1
    for none. A group that is compared has a loss of both models."""
    by_group: "ComparedTokens | None" = None
    """The same for `unit: group`, where a rule of single tokens `needs_group_loss`."""


def identity_map(
    student: NDArray[np.int32],
    teacher: NDArray[np.int32],
    student_cu_seqlens: NDArray[np.int64],
    teacher_cu_seqlens: NDArray[np.int64],
    documents: Sequence[int],
    begins_row: Sequence[bool],
) -> NDArray[np.int32]:
    """Token to token, for a teacher with the student's vocabulary (Rho-1): by counting, not by
    searching, and what is counted is compared.

    Args:
        student, teacher: (N, 2) and (M, 2) spans, bytes; the teacher's may extend before and after
            a piece, or be missing altogether.
        documents: of each piece, for messages.
        begins_row: whether a piece stands first in its row, and may begin anywhere in its document;
            the others begin where that does.
    Returns: (N, 2) int32 ranges of one teacher row each, (-1, -1) for tokens without text.
    Raises: GuidanceError if the tokens are not the same, which names document and bytes.
    """
    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    for piece, (document, is_cut) in enumerate(zip(documents, begins_row, strict=True)):
        mine = _with_text(student, student_cu_seqlens, piece)
        theirs = _with_text(teacher, teacher_cu_seqlens, piece)
        if not len(theirs) or not len(mine):
            continue
        first = _first_counterpart(student[mine], teacher[theirs]) if is_cut else 0
        rows = theirs[first : first + len(mine)]
        if len(rows) < len(mine) or (student[mine] != teacher[rows]).any():
            raise GuidanceError(_difference(student[mine], teacher[rows], document))
        mapping[mine, 0], mapping[mine, 1] = rows, rows + 1
    return mapping


def positional_map(
    student: NDArray[np.int32],
    teacher: NDArray[np.int32],
    student_cu_seqlens: NDArray[np.int64],
    teacher_cu_seqlens: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The k-th token with text of each piece to the teacher's k-th, whatever they cover; what the
    longer side has more of stays unmapped. Args and returns: as `identity_map`.

    Source: the published ULD (Boizard et al., arXiv 2402.12030) compares sequences position by
    position, up to the length of the shorter one.
    """
    mapping = np.full((len(student), 2), UNMAPPED, np.int32)
    for piece in range(len(student_cu_seqlens) - 1):
        mine = _with_text(student, student_cu_seqlens, piece)
        theirs = _with_text(teacher, teacher_cu_seqlens, piece)
        both = min(len(mine), len(theirs))
        mapping[mine[:both], 0], mapping[mine[:both], 1] = theirs[:both], theirs[:both] + 1
    return mapping


def chunk_maps(
    num_student: Sequence[int], teacher_rows: Sequence[NDArray[np.int64]], chunks: int
) -> NDArray[np.int32]:
    """`chunk_map` of rows of a batch that stand one after the other.

    Args:
        num_student: tokens of each row.
        teacher_rows: of each row, which of the M tokens share text with it, in order. What lies
            between them shares none, and has no loss.
    """
    maps = []
    for mine, theirs in zip(num_student, teacher_rows, strict=True):
        mapping = chunk_map(mine, len(theirs), chunks)
        mapped = mapping[:, 0] >= 0
        first, stop = mapping[mapped].T
        mapping[mapped, 0], mapping[mapped, 1] = theirs[first], theirs[stop - 1] + 1
        maps.append(mapping)
    return np.concatenate(maps)


def chunk_numbers(num_tokens: int, chunks: int) -> NDArray[np.int64]:
    """(num_tokens,): the number of the chunk that each token of a row is in."""
    ends = chunk_boundaries(num_tokens, chunks)[1:]
    return np.searchsorted(ends, np.arange(num_tokens), side="right").astype(np.int64)


def sharing_text(
    teacher: NDArray[np.int32],
    teacher_cu_seqlens: NDArray[np.int64],
    first_bytes: Sequence[int],
    end_bytes: Sequence[int],
) -> NDArray[np.bool_]:
    """(M,): which of the teacher's tokens share text with the part of their document, from
    `first_bytes` to `end_bytes` of each piece, that is in the row."""
    sizes = np.diff(teacher_cu_seqlens)
    first, end = np.repeat(first_bytes, sizes), np.repeat(end_bytes, sizes)
    starts, ends = teacher.T
    inside: NDArray[np.bool_] = (starts < ends) & (starts < end) & (ends > first)
    return inside


def _with_text(
    spans: NDArray[np.int32], cu_seqlens: NDArray[np.int64], piece: int
) -> NDArray[np.int64]:
    """The rows of a piece whose spans are not empty."""
    start, stop = cu_seqlens[piece : piece + 2]
    part = spans[start:stop]
    rows: NDArray[np.int64] = start + np.flatnonzero(part[:, 0] < part[:, 1])
    return rows


def _first_counterpart(mine: NDArray[np.int32], theirs: NDArray[np.int32]) -> int:
    """Where the teacher's tokens of a piece begin. A row may begin between the tokens of one
    character, which all have its span: then the last of them are meant."""
    first = int(np.searchsorted(theirs[:, 1], mine[0, 0], side="right"))
    alike = [_leading(spans, mine[0]) for spans in (theirs[first:], mine)]
    return first + max(0, alike[0] - alike[1])


def _leading(spans: NDArray[np.int32], span: NDArray[np.int32]) -> int:
    """How many of the first spans are this one."""
    other = (spans != span).any(1)
    return int(np.argmax(other)) if other.any() else len(spans)


def _difference(mine: NDArray[np.int32], theirs: NDArray[np.int32], document: int) -> str:
    both = min(len(mine), len(theirs))
    differing = np.flatnonzero((mine[:both] != theirs[:both]).any(1))
    place = int(differing[0]) if len(differing) else both
    found = f"[{theirs[place, 0]}, {theirs[place, 1]})" if place < len(theirs) else "missing"
    return (
        f"guidance.method: rho1: document {document}: the student's token of bytes "
        f"[{mine[place, 0]}, {mine[place, 1]}) is {found} in the teacher's scores: the "
        "vocabularies are not the same; use guidance.method: vocagno"
    )
