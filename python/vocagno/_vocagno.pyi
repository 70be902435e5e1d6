"""The compiled functions. They borrow arrays as they are, or refuse them by name (TypeError for
what is no array or has another dtype, ValueError for another shape or layout), and compute
without the GIL: no other thread may write to their arrays meanwhile. Where one does by `out` of
another call, ValueError is raised. Row boundaries are copied first. A result that memory has no
room for is a MemoryError. A call is not interrupted: Ctrl-C takes effect when it returns.

Spans are half-open; batches are ragged, `cu` being the row boundaries (`cu_seqlens`, int64,
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
    "unmapped_reasons",
]

_Integers: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
_Losses: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

class SpanError(ValueError):
    """Spans, a mapping or row boundaries that do not fit; names argument, row, token and value."""

def align(
    student: _Integers,
    teacher: _Integers,
    student_cu: NDArray[np.int64] | None,
    teacher_cu: NDArray[np.int64] | None,
    out: NDArray[np.int32] | None,
    num_threads: int | None,
    /,
) -> NDArray[np.int32]:
    """Kernel of `vocagno.align`: (N, 2) int32 ranges of teacher rows, `out` itself if given.

    Both span arrays have one dtype. `out` shares memory with no other argument (ValueError).
    `num_threads` is a limit; None: RAYON_NUM_THREADS, else the cores. A single row or a small batch
    always runs on the calling thread.
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

    MemoryError if there is no room for the result, as for `chunk_map`.
    """

def chunk_map(n_student: int, n_teacher: int, chunks: int, /) -> NDArray[np.int32]:
    """Kernel of `vocagno.chunk_map`: (n_student, 2) int32, (-1, -1) for a chunk without teacher."""

@final
class PieceTable:
    """The bytes that each id of a lossless tokenizer stands for.

    Args:
        pieces: bytes of each id (spaces as spaces), None where they are unknown.
        roles: 0 for a piece of the model; 1 for an added token, found in the text by its literal
            content; 2 for a special one, which may stand beside the text as well.
        dummy_prefix: "none", "prepend" (a space before every segment), "metaspace" (unless it
            begins with one) or "metaspace_first" (so, at the document's start alone).
    """

    def __new__(
        cls,
        pieces: Sequence[bytes | None],
        roles: Sequence[int],
        dummy_prefix: Literal["none", "prepend", "metaspace", "metaspace_first"],
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
        """Byte spans (n, 2) of the ids of B texts, and whether each text is proved (B,): the ids'
        bytes are its bytes. The spans of the other texts are zeros.

        Raises: ValueError for a lone surrogate, naming the text.
        """
    def decode(
        self, ids: NDArray[np.int32], cu: NDArray[np.int64], /
    ) -> tuple[list[bytes], NDArray[np.int32]]:
        """The bytes of B documents kept as ids, without dummy prefixes and special tokens, and the
        byte spans (n, 2) of the ids.

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
        """A tokenizer's own offsets, in bytes, as a new array without holes: trimmed spaces come
        back, gaps go to the token they belong to, so that the spans cover each text and no token is
        empty but lone dummy prefixes.

        Raises: SpanError for spans outside their text or out of order.
        """

@final
class Places:
    """What the tokens of a vocabulary are compared by with the text at their spans: their
    characters in compatibility decomposition and lower case, without white space and marks.

    Args:
        table: the bytes of each id.
        unknown: id of the token for whatever the vocabulary lacks, if there is one.
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
        (text, first token, one behind the last), tokens counted over the batch. Parts of a
        character are compared together.
        """
    def agrees(self, ids: NDArray[np.int32], text: str, /) -> bool:
        """Whether the characters of some tokens are, in order, among those of a text."""
    def misplaced(
        self,
        ids: NDArray[np.int32],
        spans: NDArray[np.int32],
        text: str,
        disagreeing: list[list[int]],
        /,
    ) -> tuple[int, int, int] | None:
        """Of the tokens of a text that disagree, the first that stand within 256 characters, where
        no other token stands: (first token, one behind the last, byte of the text). Tokens of one
        or two characters must be next to a neighbour there.
        """

def chars_to_bytes(
    offsets: _Integers, cu: NDArray[np.int64], texts: list[str], /
) -> NDArray[np.int32]:
    """Character offsets (n, 2) into B texts as UTF-8 byte offsets.

    SpanError for an offset outside its text.
    """
