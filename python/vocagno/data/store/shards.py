"""Arrow IPC shards, memory-mapped: one record batch each, with its description."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.errors import InputError
from vocagno.system.files import appearing, digest

_METADATA_KEY = b"vocagno"


class StoreError(InputError):
    """A store that is missing, damaged, or of other data than asked for."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a shard is, without reading it; stands in the file itself."""

    kind: str
    """"scores", "rows" or "texts"."""
    version: int
    made_from: dict[str, Any]
    """Hashes and settings, equal in every shard of a store."""
    text_hash: str
    """Names the texts of its documents, in order."""
    counts: dict[str, int]
    """Documents, rows, tokens and the like."""


def write_shard(path: Path, columns: dict[str, pa.Array], description: Description) -> None:
    """Writes one record batch with its description; the file appears whole or not at all."""
    batch = pa.record_batch(columns)
    fields = {name: getattr(description, name) for name in Description.__slots__}
    schema = batch.schema.with_metadata({_METADATA_KEY: json.dumps(fields, sort_keys=True)})
    with appearing(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


@dataclass(frozen=True, slots=True)
class Frame:
    """All of a file that is not values: what says where they lie and what they are. Compared before
    anything is read; with a checksum for each row, nothing can change unseen by who reads a row."""

    start: int
    """Bytes before the values."""
    stop: int
    """Where the values end."""
    hash: str


class Shard:
    """A shard mapped into memory: columns as NumPy views, nothing is read before it is used.

    No file descriptor stays open, so that a store may have more shards than a process may open
    files.
    """

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        """Args:
            frame: what the file's frame was when it was written, if that is known.
        Raises: StoreError for a shard that is missing, cut short, damaged or another one.
        """
        self.path = path
        try:
            with pa.memory_map(str(path)) as file:  # the mapping lives on with its buffers
                self._bytes = file.read_buffer()
            if frame is not None and self._frame_hash(frame.start, frame.stop) != frame.hash:
                raise StoreError(
                    f"{path}: damaged, or not the shard that the manifest names; delete it and the "
                    "manifest, and make the store again (the other shards stay)"
                )
            reader = pa.ipc.open_file(self._bytes)
            self.batch: pa.RecordBatch = reader.get_batch(0)
            fields = json.loads(reader.schema.metadata[_METADATA_KEY])
            self.description: Description = Description(**fields)
        except FileNotFoundError:
            raise StoreError(f"{path}: the shard is missing; make the store again") from None
        except StoreError:
            raise
        except OSError as error:
            if error.errno is None:  # pyarrow's, for a file of another form
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
        """The frame of this file."""
        places = [
            (buffer.address - self._bytes.address, buffer.size)
            for column in self.batch.columns
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
        """All values of a column of fixed width as a flat view (lists one after the other)."""
        array = self.batch.column(column)
        while isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            array = array.values
        if pa.types.is_fixed_size_binary(array.type):
            return np.frombuffer(array.buffers()[1], np.dtype((np.void, array.type.byte_width)))
        view: NDArray[Any] = array.to_numpy(zero_copy_only=True)
        return view

    def lists(self, column: str) -> "Lists":
        """A column of lists."""
        offsets = self.batch.column(column).offsets.to_numpy(zero_copy_only=True)
        return Lists(offsets, self.values(column))


def _not_whole(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: not a complete vocagno shard ({error}); delete it and make the store again"
    )


@dataclass(frozen=True, slots=True)
class Lists:
    """A list for each row, one after the other."""

    offsets: NDArray[Any]
    """(rows + 1,) where each list begins and ends in `values`."""
    values: NDArray[Any]

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def is_sound(self, row: int) -> bool:
        """Whether the list lies inside the values: damaged offsets may point anywhere."""
        return bool(0 <= self.offsets[row] <= self.offsets[row + 1] <= len(self.values))


def list_column(lists: list[NDArray[Any]], value_type: pa.DataType, *, large: bool = False) -> Any:
    """A column of lists out of one array a row."""
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
    """CRC-32 over the bytes of what a row holds."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array if isinstance(array, bytes) else array.tobytes(), value)
    return value
