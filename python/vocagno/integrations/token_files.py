"""Reads token files of other trainers: the ids of documents, one after the other, and their ends.

Megatron's `.bin` with its `.idx`, datatrove's `.ds` with its `.ds.index`, and `.npy` (NumPy's, or
the plain ids that OLMo and dolma write under that suffix). Files are memory-mapped.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vocagno.errors import InputError
from vocagno.system.files import digest, refuse_pointers

_HEADER = struct.Struct("<9sQBQQ")
"""The header of Megatron's index: magic, version, code of the type, number of sequences, number of
entries in the list of documents.

The sequences' lengths (int32), their first bytes in the `.bin` (int64) and the list of documents
(int64) follow. Multimodal files have a mode (int8) for each sequence, too.
"""
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""The integer types by their codes in Megatron's index."""
_BLOCK = 1 << 20
_LONGEST = 1 << 27
"""The most tokens between two separators; more are a sign of a wrong separator."""


class TokenFileError(InputError):
    """A token file is missing, damaged, or not the expected one."""


def _megatron_index(path: Path) -> tuple[np.dtype[Any], NDArray[np.int64]]:
    """Reads Megatron's index. Returns: the type of the ids; (documents,) their ends, in tokens.

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
        # A length (4 bytes) and a first byte (8) for each sequence; files of images and text also
        # have a mode (1 byte) for each.
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
    # Megatron reads sequences by pointer. Only where they follow one another is the `.bin` a run of
    # ids that can be read by numbers of tokens.
    if (lengths < 0).any() or (pointers != (ends - lengths) * dtype.itemsize).any():
        raise TokenFileError(
            f"{path}: its sequences do not follow one another as {dtype.name} ids: damaged, of "
            "another type, or of a .bin in another order"
        )
    # The list of documents counts sequences, with one entry more than there are documents.
    borders = [documents[0], documents[-1]] if entries else []
    if borders != [0, sequences] or not sequences or (np.diff(documents) < 0).any():
        raise TokenFileError(
            f"{path}: damaged: its documents do not hold all {sequences} sequences"
        )
    return dtype, np.append(0, ends)[documents[1:]]


PlainType = Literal["uint16", "uint32"]

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
_NUMPY = b"\x93NUMPY"


class TokenFile:
    """The ids of a token file, and the places at which its documents begin and end."""

    def __init__(
        self,
        path: Path,
        ids: NDArray[Any],
        *,
        ends: NDArray[np.int64] | None = None,
        index: Path | None = None,
        eos_id: int | None = None,
    ) -> None:
        """Args:
        ids: (num_tokens,) memory-mapped.
        ends: (documents,) the places after each document; the last one is the number of tokens.
        index: the file that has the ends.
        eos_id: the id that ends every document, in place of `ends`; it is looked up when needed.
        """
        self.path: Path = path
        self.ids: NDArray[Any] = ids
        self.index: Path | None = index
        self._ends = ends
        self._eos_id = eos_id

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def first_byte(self) -> int:
        """Bytes of the file before the first token."""
        return self.path.stat().st_size - self.ids.nbytes

    def identity(self) -> dict[str, Any]:
        """Facts, for JSON, that differ if the tokens or the documents may have changed.

        They hold no path: a file may move.
        """
        facts: dict[str, Any] = {
            "bytes": self.path.stat().st_size,
            "sample_hash": sample_hash(self.path),
            "dtype": self.ids.dtype.name,
        }
        if self.index is not None:
            facts["index_hash"] = sample_hash(self.index)
        if self._eos_id is not None:
            facts["eos_id"] = self._eos_id
        return facts

    def first_start(self, token: int) -> int:
        """The first place from `token` on at which a document begins; `num_tokens` if none does.

        Raises: TokenFileError if no document ends in the next 134 million tokens.
        """
        if token <= 0:
            return 0
        if self._ends is not None:
            place = min(int(np.searchsorted(self._ends, token)), len(self._ends) - 1)
            return int(self._ends[place])
        # From `token - 1` on: a document begins at `token` if the token before it is a separator.
        for first in range(token - 1, self.num_tokens, _BLOCK):
            if first - token > _LONGEST:
                raise TokenFileError(
                    f"{self.path}: id {self._eos_id} is not in the {_LONGEST:,} tokens after "
                    f"{token:,}; is the end-of-document token (--eos) another one?"
                )
            places = np.flatnonzero(self.ids[first : first + _BLOCK] == self._eos_id)
            if len(places):
                return first + int(places[0]) + 1
        return self.num_tokens

    def batches(self, first: int, stop: int, size: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yields the whole documents between two places, about `size` tokens at a time.

        Args: first, stop: places at which documents begin.
        Yields: the place of the first token, and the boundaries of documents from there, beginning
            with 0.
        """
        while first < stop:
            # A batch ends with a document, so it is as large as the longest document where that is
            # longer than `size`.
            end = min(self.first_start(min(first + size, stop)), stop)
            ends = np.unique(self._ends_between(first, end))  # without empty documents
            yield first, np.concatenate([[0], ends - first])
            first = end

    def _ends_between(self, first: int, stop: int) -> NDArray[np.int64]:
        """The ends of the documents in `[first, stop)`; a document begins at both places."""
        if self._ends is not None:
            start, end = np.searchsorted(self._ends, [first, stop], side="right").tolist()
            return np.array(self._ends[start:end], np.int64)
        ends = np.flatnonzero(self.ids[first:stop] == self._eos_id) + first + 1
        # The text behind the last separator of a file is a document, too.
        return np.append(ends, stop).astype(np.int64)


def tokens_path(path: Path) -> Path:
    """The path of the ids in a token file, which Megatron's users name without a suffix."""
    if path.suffix == ".idx":
        return path.with_suffix(".bin")
    # Not `with_suffix`: a prefix like `corpus.v2` would lose its `.v2`.
    pair = path.with_name(f"{path.name}.bin")
    return pair if not path.is_file() and pair.is_file() else path


def open_token_file(
    path: Path,
    *,
    eos_id: int | None = None,
    boundaries: Path | None = None,
    dtype: PlainType | None = None,
) -> TokenFile:
    """Opens a token file of any of the formats.

    Args:
        path: a `.bin`, its `.idx` or both without suffix; a `.ds`; a `.npy`.
        eos_id: `.npy`: the id that ends every document.
        boundaries: `.npy`: a `.npy` of (documents + 1,) places at which documents begin and end,
            instead of `eos_id`.
        dtype: `.npy`: the type of ids in a file without NumPy's header.
    Raises: TokenFileError for another format, and for a file that is missing, truncated, damaged or
        of another type than its index says.
    """
    path = tokens_path(path)
    if not path.is_file():
        raise TokenFileError(f"{path}: this token file does not exist")
    refuse_pointers([path], TokenFileError)
    if path.suffix == ".npy":
        return _numpy_file(path, eos_id, boundaries, dtype)
    for name, value in {"--eos": eos_id, "--boundaries": boundaries, "--dtype": dtype}.items():
        if value is not None:
            raise TokenFileError(f"{name}: is for .npy; {path} has an index of its documents")
    if path.suffix == ".bin":
        return _megatron_file(path)
    if path.suffix == ".ds":
        return _datatrove_file(path)
    raise TokenFileError(
        f"{path}: expected a token file of Megatron (.bin, .idx), datatrove (.ds) or NumPy (.npy)"
    )


def sample_hash(path: Path) -> str:
    """A hash of a file's size and of 64 pieces of 64 KiB; of all of a file up to 4 MiB.

    It tells files apart at once, however large they are. It does not see a change of a few bytes.
    """
    size = path.stat().st_size
    state = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            state.update(file.read())
        else:
            for number in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                state.update(file.read(_SAMPLE_BYTES))
    return state.hexdigest()


def blocks_hash(path: Path, first_byte: int, block_bytes: int) -> str:
    """A hash of all bytes of a file from `first_byte` on, made of the hashes of its blocks."""
    with path.open("rb") as file:
        file.seek(first_byte)
        return digest(*map(digest, iter(lambda: file.read(block_bytes), b"")))


def _megatron_file(path: Path) -> TokenFile:
    """Opens a `.bin` of Megatron by its `.idx`. Raises: TokenFileError if they do not agree."""
    index = path.with_suffix(".idx")
    if not index.is_file():
        raise TokenFileError(f"{index}: the index of {path} does not exist")
    dtype, ends = _megatron_index(index)
    expected, size = int(ends[-1]) * dtype.itemsize, path.stat().st_size
    if size != expected:
        raise TokenFileError(
            f"{path}: has {size:,} bytes, but {index.name} says {expected:,} ({int(ends[-1]):,} "
            f"tokens of {dtype.name}): truncated, or written with another type or another index"
        )
    return TokenFile(path, _map(path, dtype), ends=ends, index=index)


def _datatrove_file(path: Path) -> TokenFile:
    """Opens a `.ds` of datatrove by its index. Raises: TokenFileError if they do not agree."""
    index = path.with_name(f"{path.name}.index")
    if not index.is_file():
        raise TokenFileError(
            f"{index}: the index of {path} does not exist; datatrove writes it with save_index"
        )
    if index.stat().st_size % 8 or not index.stat().st_size:
        raise TokenFileError(f"{index}: truncated, or not an index (8 bytes a document)")
    ends = _map(index, np.dtype("<i8"))
    if ends[0] < 0 or (ends[1:] < ends[:-1]).any():
        raise TokenFileError(f"{index}: damaged, or not an index: its document ends decrease")
    size = path.stat().st_size
    # The index does not say the type: datatrove writes two bytes for small vocabularies, else four.
    # Only one of both fits the size.
    dtype: np.dtype[Any] = np.dtype("<u2" if size == int(ends[-1]) * 2 else "<u4")
    if size != int(ends[-1]) * dtype.itemsize:
        raise TokenFileError(
            f"{path}: has {size:,} bytes, expected 2 or 4 for each of the {int(ends[-1]):,} tokens "
            f"of {index.name}: truncated, or of another index"
        )
    return TokenFile(path, _map(path, dtype), ends=ends, index=index)


def _numpy_file(
    path: Path, eos_id: int | None, boundaries: Path | None, dtype: PlainType | None
) -> TokenFile:
    """Opens a `.npy`. Raises: TokenFileError for options or boundaries that do not fit it."""
    if (eos_id is None) == (boundaries is None):
        raise TokenFileError(f"{path}: give either --eos or --boundaries, to find its documents")
    with path.open("rb") as file:
        has_header = file.read(len(_NUMPY)) == _NUMPY
    if has_header == (dtype is not None):
        raise TokenFileError(
            f"{path}: NumPy's header says the type of the ids; omit --dtype"
            if has_header
            else f"{path}: without NumPy's header; give --dtype uint16 or uint32"
        )
    ids = _map(path, np.dtype(f"<{np.dtype(dtype).str[1:]}")) if dtype else _numpy_array(path)
    if boundaries is None:
        return TokenFile(path, ids, eos_id=eos_id)
    borders = _numpy_array(boundaries).astype(np.int64)
    if not len(borders) or borders[0] != 0 or (np.diff(borders) < 0).any():
        raise TokenFileError(f"{boundaries}: expected places that begin with 0 and never decrease")
    if borders[-1] != len(ids):
        raise TokenFileError(
            f"{path}: has {len(ids):,} tokens, but {boundaries} ends at {borders[-1]:,}"
        )
    return TokenFile(path, ids, ends=borders[1:], index=boundaries)


def _numpy_array(path: Path) -> NDArray[Any]:
    """Memory-maps a `.npy` of (n,) integers. Raises: TokenFileError for anything else."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, SyntaxError) as error:
        raise TokenFileError(f"{path}: not a .npy, or truncated ({error})") from error
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise TokenFileError(
            f"{path}: expected integers of shape (n,), got {array.dtype} of shape {array.shape}"
        )
    return array


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Memory-maps a file of plain values. Raises: TokenFileError for an empty or truncated one."""
    size = path.stat().st_size
    if not size or size % dtype.itemsize:
        raise TokenFileError(
            f"{path}: has {size:,} bytes, not tokens of {dtype.itemsize} bytes each; truncated, or "
            "of another type"
        )
    return np.memmap(path, dtype, mode="r")
