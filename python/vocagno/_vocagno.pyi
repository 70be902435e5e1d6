"""The compiled functions. They borrow arrays without converting them. An error names the argument:
TypeError if it is not an array or has another dtype, ValueError for another shape or layout. They
run without the GIL: no other thread may write to their arrays meanwhile. Row boundaries are copied
first. MemoryError is raised if the result does not fit in memory. A call is not interrupted: Ctrl-C
takes effect when it returns.

Spans are half-open. Batches are ragged; `cu` holds the row boundaries (`cu_seqlens`, int64,
(B + 1,)).
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PieceTable",
    "Places",
    "SpanError",
    "align",
    "chars_to_bytes",
    "chunk_boundaries",
    "chunk_map",
    "groups",
    "overlap",
    "reduce",
    "starts",
    "unmapped_reasons",
]

_Integers: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
_Losses: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

class SpanError(ValueError):
    """Invalid spans, mapping or row boundaries; names argument, row, token and value."""

def align(
    student: _Integers,
    teacher: _Integers,
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    num_threads: int | None,
    /,
) -> NDArray[np.int32]:
    """Kernel of `vocagno.align`: (N, 2) int32 ranges of teacher rows.

    Both span arrays have the same dtype. `num_threads` is a limit; None: RAYON_NUM_THREADS, else
    the number of cores. A single row or a small batch always runs on the calling thread.
    """

def reduce(
    losses: _Losses, mapping: NDArray[np.int32], how: Literal["max", "mean", "sum", "min"], /
) -> NDArray[np.float32]:
    """Kernel of `vocagno.reduce`: (N,) float32, NaN where no loss is finite."""

def unmapped_reasons(
    student: _Integers,
    teacher: _Integers,
    mapping: NDArray[np.int32],
    losses: _Losses | None,
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    /,
) -> NDArray[np.uint8]:
    """Kernel of `vocagno.unmapped_reasons`: (N,) uint8 of `vocagno.Reason`."""

def groups(
    student: _Integers,
    teacher: _Integers,
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    /,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Kernel of `vocagno.groups`: (G, 2) rows of each side, and the groups' (B + 1,) boundaries."""

def starts(
    student: _Integers,
    teacher: _Integers,
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    num_threads: int | None,
    /,
) -> NDArray[np.int32]:
    """Kernel of `vocagno.starts`: (N,) int32 teacher rows, -1 for none."""

def overlap(
    student: _Integers,
    teacher: _Integers,
    mapping: NDArray[np.int32],
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    /,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Kernel of `vocagno.overlap`: IoU and IoS, (N,) float64 each, NaN for an empty span."""

def chunk_boundaries(n: int, chunks: int, /) -> NDArray[np.int64]:
    """Kernel of `vocagno.chunk_boundaries`: (chunks + 1,) int64.

    Raises MemoryError if the result does not fit in memory, as does `chunk_map`.
    """

def chunk_map(n_student: int, n_teacher: int, chunks: int, /) -> NDArray[np.int32]:
    """Kernel of `vocagno.chunk_map`: (n_student, 2) int32, (-1, -1) for a chunk without teacher."""

@final
class PieceTable:
    """The bytes of each id of a lossless tokenizer.

    Args:
        pieces: bytes of each id (spaces as spaces), None if unknown.
        roles: 0 for a piece of the model; 1 for an added token, found in the text by its literal
            content; 2 for a special token, which may also be outside the text.
        dummy_prefix: "none", "prepend" (a space before every segment), "metaspace" (a space unless
            the segment begins with one) or "metaspace_first" (the same, only at the document's
            start).
        drops_bytes: whether the bytes that no piece of role 0 contains give no token.
    """

    def __new__(
        cls,
        pieces: Sequence[bytes | None],
        roles: Sequence[int],
        dummy_prefix: Literal["none", "prepend", "metaspace", "metaspace_first"],
        drops_bytes: bool = False,
    ) -> PieceTable: ...
    def __len__(self) -> int: ...
    def spans(
        self,
        ids: NDArray[np.int32],
        cu: NDArray[np.int64],
        texts: list[str],
        num_threads: int | None,
        /,
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Byte spans (n, 2) of the ids of B texts, and whether each text is verified (B,): the
        ids' bytes are its bytes, without those that give no token. The spans of the other texts are
        zeros.

        Raises: ValueError for a lone surrogate, naming the text.
        """
    def decode(
        self, ids: NDArray[np.int32], cu: NDArray[np.int64], continues: bool, /
    ) -> tuple[list[bytes], NDArray[np.int32]]:
        """The bytes of B documents stored as ids, without dummy prefixes and special tokens, and
        the byte spans (n, 2) of the ids. With `continues` they start without a dummy prefix.

        Raises: SpanError for an id without known bytes or a cut start.
        """
    def close(
        self,
        spans: NDArray[np.int32],
        ids: NDArray[np.int32],
        cu: NDArray[np.int64],
        texts: list[str],
        /,
    ) -> NDArray[np.int32]:
        """A tokenizer's own offsets, in bytes, as a new array without holes. Trimmed spaces are
        restored and gaps are assigned to the token that they belong to. The spans then cover each
        text, and only lone dummy prefixes are empty.

        Raises: SpanError for spans outside their text or out of order.
        """

@final
class Places:
    """Compares the tokens of a vocabulary with the text at their spans. It compares characters in
    compatibility decomposition and lower case, without white space and marks.

    Args:
        table: the bytes of each id.
        unknown: id of the unknown token, if there is one.
    """

    def __new__(cls, table: PieceTable, unknown: int | None, /) -> Places: ...
    def disagreeing(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        cu: NDArray[np.int64],
        texts: list[str],
        /,
    ) -> list[tuple[int, int, int]]:
        """Tokens whose characters are not, in order, among those of the text at their byte spans:
        (text, first token, one past the last), with tokens counted over the batch. Tokens that are
        parts of one character are compared together.
        """
    def agrees(self, ids: NDArray[np.int32], text: str, /) -> bool:
        """Whether the characters of the tokens are, in order, among those of the text."""
    def misplaced(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        text: str,
        disagreeing: list[list[int]],
        /,
    ) -> tuple[int, int, int] | None:
        """The first disagreeing tokens of a text whose characters are found within 256 characters,
        at a place that no other token covers: (first token, one past the last, byte of the text).
        Tokens of one or two characters must be next to a neighbour there.
        """
    def moves(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        text: str,
        disagreeing: list[list[int]],
        /,
    ) -> list[tuple[int, list[int]]] | None:
        """Tokens of a text whose characters are not at their spans, but can be at one place only if
        the characters of all tokens are in the text in order, with the byte spans of these places.
        None if they are not, or disagreeing tokens can be at several places.
        """

def chars_to_bytes(
    offsets: _Integers, cu: NDArray[np.int64], texts: list[str], /
) -> NDArray[np.int32]:
    """Converts character offsets (n, 2) into B texts to UTF-8 byte offsets.

    Raises: SpanError for an offset outside its text.
    """
