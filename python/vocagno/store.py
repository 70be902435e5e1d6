"""A finished store: shards behind a manifest, opened when first used."""

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from vocagno.files import file_digest
from vocagno.manifest import Entry, Manifest
from vocagno.shards import Shard, StoreError


@dataclass(frozen=True, slots=True)
class Damage:
    """Something wrong with a shard."""

    entry: Entry
    what: str


class RowShard(Shard):
    """A shard that can say which of its rows are damaged."""

    def is_whole(self, row: int) -> bool:
        """Whether a row agrees with its checksum."""
        raise NotImplementedError


AnyShard = TypeVar("AnyShard", bound=RowShard)


class ShardedStore(Generic[AnyShard]):
    """The shards of a finished store; any row is found in O(log shards) without reading others.

    Opening reads the manifest alone.

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(
        self, folder: Path, kind: str, version: int, unit: str, shard_type: type[AnyShard]
    ) -> None:
        self.folder = folder
        self.manifest = Manifest.load(folder, kind, version)
        self._unit = unit
        self._shard_type = shard_type
        self._ends = list(accumulate(entry.counts[unit] for entry in self.manifest.shards))
        self.shard = lru_cache(maxsize=None)(self._open)
        """Shard `number`, opened once."""

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Worker processes open the files themselves; a mapped shard would be sent as a copy."""
        return type(self), (self.folder,)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def text_hashes(self) -> list[str]:
        """`CorpusShard.text_hash` of each shard: names the texts."""
        return [entry.text_hash for entry in self.manifest.shards]

    @property
    def num_tokens(self) -> int:
        return self.manifest.count("tokens")

    @property
    def num_bytes(self) -> int:
        """Of all shards, on disk."""
        return sum(entry.bytes for entry in self.manifest.shards)

    def locate(self, index: int) -> tuple[AnyShard, int]:
        """The shard of row `index` of the store, and the row in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} into {self._unit} of {len(self)}")
        number = bisect.bisect_right(self._ends, index)
        return self.shard(number), index - (self._ends[number - 1] if number else 0)

    def shards(self) -> Iterator[AnyShard]:
        """All shards in order, none of which stays open."""
        return map(self._open, range(len(self.manifest.shards)))

    def _open(self, number: int) -> AnyShard:
        entry = self.manifest.shards[number]
        return cast("AnyShard", entry.open(self.folder, self._shard_type))

    def damages(self, advance: Callable[[Entry], None] = lambda entry: None) -> Iterator["Damage"]:
        """Reads everything and says what is wrong: the hash of each file, then each row.

        `advance` is told of each shard when it has been read.
        """
        for number, entry in enumerate(self.manifest.shards):
            path = entry.file(self.folder)
            if not path.is_file():
                yield Damage(entry, f"{path}: the shard is missing")
            else:
                if file_digest(path) != entry.file_hash:
                    yield Damage(entry, f"{path}: differs from its hash in the manifest")
                yield from (Damage(entry, what) for what in self._damaged_rows(number))
            advance(entry)

    def _damaged_rows(self, number: int) -> Iterator[str]:
        try:
            shard = self._open(number)
        except StoreError as error:
            yield str(error)
            return
        for row in range(len(shard)):
            if not shard.is_whole(row):
                yield f"{shard.path}: {self._unit.removesuffix('s')} {row} of this shard is damaged"
