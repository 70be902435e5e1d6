"""Where the documents of a token file end: known from an index, or found by a separator."""

import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vocagno.errors import InputError

_HEADER = struct.Struct("<9sQBQQ")
"""Of Megatron's index: magic, version, code of the type, numbers of sequences and of entries in the
list of documents. The sequences' lengths (int32), their first bytes in the `.bin` (int64) and the
list of documents (int64) follow; multimodal files have a mode (int8) for each sequence, too."""
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Integer types by their codes."""
_BLOCK = 1 << 20
_LONGEST = 1 << 27
"""Most tokens between two separators. More are a sign of a wrong separator."""


class TokenFileError(InputError):
    """A token file is missing, damaged, or another one than expected."""


class Ends(Protocol):
    """Where documents end. The next one begins there."""

    def first_start(self, token: int) -> int:
        """The first place from `token` on at which a document begins, or the end of the file."""

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        """The ends of the documents in `[first, stop)`; a document begins at both places."""

    def identity(self) -> dict[str, Any]:
        """What documents are found by, if it is not in an index."""


class KnownEnds:
    """Ends from an index."""

    def __init__(self, ends: NDArray[np.int64]) -> None:
        """Args: ends: (documents,) in order; the last one is the number of tokens."""
        self._ends = ends

    def first_start(self, token: int) -> int:
        if token <= 0:
            return 0
        place = min(int(np.searchsorted(self._ends, token)), len(self._ends) - 1)
        return int(self._ends[place])

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        start, end = np.searchsorted(self._ends, [first, stop], side="right").tolist()
        return np.array(self._ends[start:end], np.int64)

    def identity(self) -> dict[str, Any]:
        return {}


class SeparatedEnds:
    """Ends behind a separator, found where they are needed."""

    def __init__(self, ids: NDArray[Any], separator: int, name: str) -> None:
        """Args: name: of the file, for messages."""
        self._ids = ids
        self._separator = separator
        self._name = name

    def first_start(self, token: int) -> int:
        """As `Ends.first_start`.

        Raises: TokenFileError if no document ends in the next 134 million tokens.
        """
        if token <= 0:
            return 0
        for first in range(token - 1, len(self._ids), _BLOCK):
            if first - token > _LONGEST:
                raise TokenFileError(
                    f"{self._name}: id {self._separator} is not in the {_LONGEST:,} tokens after "
                    f"{token:,}; is the end-of-document token (--eos) another one?"
                )
            found = np.flatnonzero(self._ids[first : first + _BLOCK] == self._separator)
            if len(found):
                return first + int(found[0]) + 1
        return len(self._ids)

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        ends = np.flatnonzero(self._ids[first:stop] == self._separator) + first + 1
        return np.append(ends, stop).astype(np.int64)

    def identity(self) -> dict[str, Any]:
        return {"eos_id": self._separator}


def megatron_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int64]]:
    """The type of the ids, and the (documents,) ends of the documents, in tokens.

    Raises: TokenFileError for an index that is truncated or damaged, of another version, or of
        anything but ids in the order of the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
            raise TokenFileError(f"{path}: not an index of Megatron (it begins with {head[:9]!r})")
        _, version, code, sequences, entries = _HEADER.unpack(head)
        if version != _VERSION:
            raise TokenFileError(f"{path}: version {version} of the index; expected {_VERSION}")
        if code not in _TYPES:
            raise TokenFileError(
                f"{path}: type code {code} is not of integers ({', '.join(map(str, _TYPES))})"
            )
        expected = _HEADER.size + 12 * sequences + 8 * entries
        if size not in (expected, expected + sequences):
            raise TokenFileError(
                f"{path}: has {size:,} bytes; its header says {expected:,}: truncated or damaged"
            )
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
        documents = np.fromfile(file, "<i8", entries)
    dtype = np.dtype(_TYPES[code])
    ends = np.cumsum(lengths, dtype=np.int64)
    if (lengths < 0).any() or (pointers != (ends - lengths) * dtype.itemsize).any():
        raise TokenFileError(
            f"{path}: its sequences do not follow one another as {dtype.name} ids: damaged, of "
            "another type, or of a .bin in another order"
        )
    borders = [documents[0], documents[-1]] if entries else []
    if borders != [0, sequences] or not sequences or (np.diff(documents) < 0).any():
        raise TokenFileError(
            f"{path}: damaged: its documents do not hold all {sequences} sequences"
        )
    return dtype, np.append(0, ends)[documents[1:]]
