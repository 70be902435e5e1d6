"""Writes and reads shards: memory-mapped Arrow IPC files of one record batch, with its description.

Spans are coded as one byte per token, its length, if the tokens tile their text (`encode_spans`).
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.errors import InputError
from vocagno.system.files import atomic_file, digest

# Partial files lie apart from the shards: who makes a shard lists them, to remove those of killed
# processes, and listing 30,000 shards took 65 ms where a shard took 8.
MAKING = ".making"
"""Folder of partial files and notes, in each folder with shards. Finishing a store removes it."""
REMEDY = "delete the shard and the manifest, and make the store again (other shards are kept)"
_METADATA_KEY = b"vocagno"


class StoreError(InputError):
    """A store is missing, damaged, or made from other data than requested."""


class Refused(NamedTuple):
    """A document that a shard omits."""

    row: int
    """Its number in the shard."""
    place: str
    """File and line."""
    reason: str


@dataclass(frozen=True, slots=True)
class Description:
    """Describes a shard without reading its rows; stored in the file itself."""

    kind: str
    """"scores", "rows" or "texts"."""
    version: int
    made_from: dict[str, Any]
    """Hashes and settings, equal in every shard of a store."""
    text_hash: str
    """Identifies the texts of its documents, in order."""
    counts: dict[str, int]
    """Numbers of documents, rows, tokens and so on."""
    refused: Sequence[Refused] = ()
    """The documents that are omitted: they have no tokens here."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Description":
        """Makes a description from its fields as JSON has them."""
        refused = [Refused(*values) for values in fields.pop("refused", ())]
        return cls(**fields, refused=refused)


def write_shard(path: Path, columns: dict[str, pa.Array], description: Description) -> None:
    """Writes one record batch with its description, atomically."""
    batch = pa.record_batch(columns)
    fields = {name: getattr(description, name) for name in Description.__slots__}
    # A store that omits nothing keeps the bytes that it had before documents could be omitted.
    if not fields["refused"]:
        del fields["refused"]
    # Sorted, so that the same inputs give the same bytes, which the manifest's hash names.
    schema = batch.schema.with_metadata({_METADATA_KEY: json.dumps(fields, sort_keys=True)})
    with atomic_file(path, path.parent / MAKING) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@dataclass(frozen=True, slots=True)
class Frame:
    """The part of a file that is not values: it describes their places and types. It is compared
    before anything is read. Together with a checksum per row, it detects any change on reading."""

    start: int
    """Number of bytes before the values."""
    stop: int
    """The byte at which the values end."""
    hash: str


class Shard:
    """A memory-mapped shard: columns are NumPy views and are read when used.

    No file descriptor stays open, so a store may have more shards than the process limit on open
    files.
    """

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        """Args:
            frame: the file's frame when it was written, if known.
        Raises: StoreError for a shard that is missing, truncated, damaged or another one.
        """
        self.path = path
        try:
            with pa.memory_map(str(path)) as file:  # the mapping lives as long as its buffers
                self._bytes = file.read_buffer()
            # Before Arrow reads anything: it trusts the places and types that a file states.
            if frame is not None and self._frame_hash(frame.start, frame.stop) != frame.hash:
                raise StoreError(
                    f"{path}: damaged, or not the shard that the manifest names; {REMEDY}"
                )
            reader = pa.ipc.open_file(self._bytes)
            self.batch: pa.RecordBatch = reader.get_batch(0)
            fields = json.loads(reader.schema.metadata[_METADATA_KEY])
            self.description: Description = Description.of(fields)
        except FileNotFoundError:
            raise StoreError(f"{path}: the shard is missing; make the store again") from None
        # A StoreError is a ValueError, too: this clause keeps its message from the last one.
        except StoreError:
            raise
        except OSError as error:
            if error.errno is None:  # raised by pyarrow for another file format
                raise _not_whole(path, error) from error
            raise StoreError(f"{path}: cannot be read: {error}") from error
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise _not_whole(path, error) from error

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def num_bytes(self) -> int:
        return int(self._bytes.size)

    def frame(self) -> Frame:
        """Computes the frame of this file."""
        places = [
            (buffer.address - self._bytes.address, buffer.size)
            for column in self.batch.columns
            # Columns without nulls have no bitmap, and an empty buffer has no place in the file.
            for buffer in column.buffers()
            if buffer is not None and buffer.size
        ]
        start = min((place for place, _ in places), default=self.num_bytes)
        stop = max((place + size for place, size in places), default=self.num_bytes)
        return Frame(start, stop, self._frame_hash(start, stop))

    def _frame_hash(self, start: int, stop: int) -> str:
        view = memoryview(self._bytes)
        return digest(bytes(view[:start]), bytes(view[stop:]))

    def values(self, column: str) -> NDArray[Any]:
        """Returns all values of a fixed-width column as a flat view (lists are concatenated)."""
        array = self.batch.column(column)
        while isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            array = array.values
        # pyarrow has no view of this type that does not copy. A shard is one record batch, so that
        # its columns start at the first byte of their buffers.
        if pa.types.is_fixed_size_binary(array.type):
            return np.frombuffer(array.buffers()[1], np.dtype((np.void, array.type.byte_width)))
        # A column that would have to be copied is a fault, not a slow path: hence an error.
        view: NDArray[Any] = array.to_numpy(zero_copy_only=True)
        return view

    def lists(self, column: str) -> "Lists":
        """Returns a column of lists as a view."""
        offsets = self.batch.column(column).offsets.to_numpy(zero_copy_only=True)
        return Lists(offsets, self.values(column))


def _not_whole(path: Path, error: Exception) -> StoreError:
    """Makes the error for a file that is not a whole shard."""
    return StoreError(
        f"{path}: not a complete vocagno shard ({error}); delete it and make the store again"
    )


@dataclass(frozen=True, slots=True)
class Lists:
    """A list for each row, concatenated."""

    offsets: NDArray[Any]
    """(rows + 1,) boundaries of the lists in `values`."""
    values: NDArray[Any]

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def is_sound(self, row: int) -> bool:
        """Tells whether the list is inside the values: damaged offsets may point anywhere."""
        return bool(0 <= self.offsets[row] <= self.offsets[row + 1] <= len(self.values))


def list_column(lists: list[NDArray[Any]], value_type: pa.DataType, *, large: bool = False) -> Any:
    """Makes a column of lists from one array per row."""
    offsets = np.zeros(len(lists) + 1, np.int64 if large else np.int32)
    np.cumsum([len(values) for values in lists], out=offsets[1:])
    flat = np.concatenate(lists) if lists else np.empty(0)
    kind = pa.LargeListArray if large else pa.ListArray
    if pa.types.is_fixed_size_binary(value_type):
        width = value_type.byte_width
        buffers = [None, pa.py_buffer(np.ascontiguousarray(flat, np.dtype((np.void, width))))]
        values = pa.Array.from_buffers(value_type, len(flat), buffers)
    else:
        values = pa.array(flat, value_type)
    return kind.from_arrays(pa.array(offsets), values)


def checksum(*arrays: NDArray[Any] | bytes) -> int:
    """Computes the CRC-32 of the bytes of a row's content."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array if isinstance(array, bytes) else array.tobytes(), value)
    return value


_ESCAPE = 255
"""A length of 255 bytes or more; the value is in `long_lengths`."""


@dataclass(frozen=True, slots=True)
class CodedSpans:
    """The spans of n tokens."""

    lengths: NDArray[np.uint8]
    """(n,) number of bytes of each token; 255 means "see long_lengths"."""
    long_lengths: NDArray[np.int32]
    """One for each escaped length, in order."""
    starts: NDArray[np.int32]
    """(n,) if the spans do not tile (two tokens share bytes), else (0,)."""


@dataclass(frozen=True, slots=True)
class PieceSpans:
    """Runs of consecutive tokens, each from one document."""

    num_tokens: Sequence[int] | NDArray[np.int32]
    first_bytes: Sequence[int] | NDArray[np.int32]
    """The byte at which the text of each piece begins in its document."""


def encode_spans(spans: NDArray[np.int32], pieces: PieceSpans | None = None) -> CodedSpans:
    """Codes (n, 2) spans of one whole document, or of pieces.

    The position of an empty span is not stored.
    """
    sizes = np.maximum(spans[:, 1] - spans[:, 0], 0)
    escaped = sizes >= _ESCAPE
    tiled = _tiled_starts(sizes, pieces)
    # An empty span may stand anywhere. It takes the tiled place, so that a BOS or EOS does not make
    # 4 bytes a token for starts necessary.
    starts = np.where(sizes > 0, spans[:, 0], tiled)
    return CodedSpans(
        np.where(escaped, _ESCAPE, sizes).astype(np.uint8),
        sizes[escaped].astype(np.int32),
        np.empty(0, np.int32) if np.array_equal(starts, tiled) else starts.astype(np.int32),
    )


def decode_spans(coded: CodedSpans, pieces: PieceSpans | None = None) -> NDArray[np.int32]:
    """Decodes the (n, 2) spans, given the same pieces."""
    sizes = coded.lengths.astype(np.int32)
    if coded.long_lengths.size:
        # Where no length is escaped, as in most documents, the comparison of all lengths is saved.
        sizes[coded.lengths == _ESCAPE] = coded.long_lengths
    spans = np.empty((len(sizes), 2), np.int32)
    starts, ends = spans[:, 0], spans[:, 1]
    if coded.starts.size or pieces is not None:
        starts[:] = coded.starts if coded.starts.size else _tiled_starts(sizes, pieces)
        np.add(starts, sizes, out=ends)
    else:
        # A whole document, the usual case: both sums are written to their columns, without a copy.
        np.cumsum(sizes, out=ends)
        np.subtract(ends, sizes, out=starts)
    return spans


def _tiled_starts(sizes: NDArray[np.int32], pieces: PieceSpans | None) -> NDArray[np.int32]:
    """Computes the start of each token if it directly follows the previous one in its piece."""
    before = np.cumsum(sizes, dtype=np.int64) - sizes
    if pieces is not None and len(sizes):
        counts = np.asarray(pieces.num_tokens)
        heads = np.cumsum(counts) - counts  # the first token of each piece
        shift = np.asarray(pieces.first_bytes) - before[heads]
        before = before + np.repeat(shift, counts)
    return before.astype(np.int32)
