"""Arrow IPC shards, memory-mapped, and the manifest that makes a folder of them a store."""

import bisect
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.errors import InputError
from vocagno.files import appearing, write_json

MANIFEST = "manifest.json"
_METADATA_KEY = b"vocagno"


class StoreError(InputError):
    """A store that is missing, damaged, or of other data than asked for."""


def write_shard(path: Path, columns: dict[str, pa.Array], metadata: dict[str, Any]) -> None:
    """Writes one record batch with its description; the file appears whole or not at all."""
    batch = pa.record_batch(columns)
    schema = batch.schema.with_metadata({_METADATA_KEY: json.dumps(metadata)})
    with appearing(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


class Shard:
    """A shard mapped into memory: columns as NumPy views, nothing is read before it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self.batch = reader.get_batch(0)
            self.metadata: dict[str, Any] = json.loads(reader.schema.metadata[_METADATA_KEY])
        except FileNotFoundError:
            raise StoreError(f"{path}: the shard is missing; make the store again") from None
        except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{path}: not a complete vocagno shard ({error}); delete it and make it again"
            ) from error

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def values(self, column: str) -> NDArray[Any]:
        """All values of a column of fixed width as a flat view (lists one after the other)."""
        array = self.batch.column(column)
        while isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            array = array.values
        if pa.types.is_fixed_size_binary(array.type):
            width = array.type.byte_width
            return np.frombuffer(array.buffers()[1], np.dtype((np.void, width)))
        view: NDArray[Any] = array.to_numpy(zero_copy_only=True)
        return view

    def offsets(self, column: str) -> NDArray[Any]:
        """(rows + 1,) boundaries of the lists of a column in its `values`."""
        view: NDArray[Any] = self.batch.column(column).offsets.to_numpy(zero_copy_only=True)
        return view


def list_column(lists: list[NDArray[Any]], value_type: pa.DataType, *, large: bool = False) -> Any:
    """A column of lists out of one array a row."""
    offsets = np.zeros(len(lists) + 1, np.int64 if large else np.int32)
    np.cumsum([len(values) for values in lists], out=offsets[1:])
    flat = np.concatenate(lists) if lists else np.empty(0)
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(pa.array(offsets), pa.array(flat, value_type))


def checksum(*arrays: NDArray[Any] | bytes) -> int:
    """CRC-32 over the bytes of what a row holds."""
    value = 0
    for array in arrays:
        value = zlib.crc32(array if isinstance(array, bytes) else array.tobytes(), value)
    return value


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store was made from, and its shards in order."""

    kind: str
    """"scores" or "rows"."""
    version: int
    made_from: dict[str, Any]
    """Hashes and settings, equal in every shard."""
    shards: list[dict[str, Any]]
    """name, text_hash, documents, and counts of each shard."""

    def save(self, folder: Path) -> None:
        write_json(folder / MANIFEST, {field: getattr(self, field) for field in self.__slots__})

    @classmethod
    def load(cls, folder: Path, kind: str, version: int) -> "Manifest":
        """Reads and checks a manifest.

        Raises: StoreError if it is missing or unfinished, or of another kind or version.
        """
        path = folder / MANIFEST
        if not path.is_file():
            state = "was not finished" if folder.is_dir() else "does not exist"
            raise StoreError(f"{folder}: this store of {kind} {state} (no {MANIFEST})")
        try:
            manifest = cls(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise StoreError(f"{path}: not a manifest of vocagno: {error}") from error
        if manifest.kind != kind:
            raise StoreError(f"{path}: holds {manifest.kind}, expected {kind}")
        if manifest.version != version:
            raise StoreError(
                f"{path}: format version {manifest.version}, but this vocagno reads {version}; "
                "make the store again, or install the vocagno that wrote it"
            )
        return manifest


def finish_store(
    folder: Path,
    names: Sequence[str],
    *,
    kind: str,
    version: int,
    unit: str,
    made_from: dict[str, Any],
) -> None:
    """Writes the manifest once all shards are there; any process may, and may again.

    Args:
        unit: what a row of a shard is ("documents", "rows"), counted in the shards' metadata.
    """
    shards = []
    for name in names:
        metadata = Shard(folder / f"{name}.arrow").metadata
        shards.append({"name": name} | {key: metadata[key] for key in _identity(unit)})
    Manifest(kind, version, made_from, shards).save(folder)


def _identity(unit: str) -> tuple[str, ...]:
    return ("text_hash", unit, "tokens")


AnyShard = TypeVar("AnyShard", bound=Shard)


class ShardedStore(Generic[AnyShard]):
    """The shards of a finished store, opened when first used; any row is found in O(log shards).

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(
        self, folder: Path, kind: str, version: int, unit: str, shard_type: type[AnyShard]
    ) -> None:
        self.folder = folder
        self.manifest = Manifest.load(folder, kind, version)
        self._unit = unit
        self._shard_type = shard_type
        self._ends = list(accumulate(shard[unit] for shard in self.manifest.shards))
        self._opened = lru_cache(maxsize=None)(self._open)

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Worker processes open the files themselves; a mapped shard would be sent as a copy."""
        return type(self), (self.folder,)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def text_hashes(self) -> list[str]:
        """`CorpusShard.text_hash` of each shard: names the texts."""
        return [shard["text_hash"] for shard in self.manifest.shards]

    @property
    def num_tokens(self) -> int:
        return sum(shard["tokens"] for shard in self.manifest.shards)

    def locate(self, index: int) -> tuple[AnyShard, int]:
        """The shard of row `index` of the store, and the row in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} into {self._unit} of {len(self)}")
        number = bisect.bisect_right(self._ends, index)
        return self._opened(number), index - (self._ends[number - 1] if number else 0)

    def _open(self, number: int) -> AnyShard:
        entry = self.manifest.shards[number]
        shard = self._shard_type(self.folder / f"{entry['name']}.arrow")
        if any(shard.metadata.get(key) != entry[key] for key in _identity(self._unit)):
            raise StoreError(f"{shard.path}: not the shard that the manifest names; make it again")
        return shard
