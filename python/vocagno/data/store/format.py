"""Reads a finished store: its manifest, with a hash of each shard, and its shards, opened on use.

Documents whose tokens cannot be placed in their text are omitted, and named in a report.
"""

import bisect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from vocagno.data.store.remote import MOST_OPEN, cache_bytes, local_copy
from vocagno.data.store.shards import REMEDY, Description, Frame, Shard, StoreError
from vocagno.errors import require
from vocagno.system.addresses import Address, path_of
from vocagno.system.files import atomic_file, digest, file_digest, write_json

MANIFEST = "manifest.json"
# Names come from manifests that others may have written: no part begins with a dot, so that none
# leads out of the folder (`..`) or to its locks, and none holds a drive or a second folder.
_NAME = re.compile(r"(?:[^./\\:\0][^/\\:\0]*/)?[^./\\:\0][^/\\:\0]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of a shard in a manifest: the shard as it was when the store was finished."""

    name: str
    """The path of the shard in the store, without its suffix."""
    text_hash: str
    counts: dict[str, int]
    bytes: int
    """Size of the file."""
    file_hash: str
    """`files.file_digest` of the whole file, compared by `verify`."""
    frame: Frame
    """The parts of the file that are not values, compared whenever the shard is opened."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Entry":
        """Makes an entry from its fields as JSON has them."""
        return cls(**{**fields, "frame": Frame(**fields["frame"])})

    def file(self, folder: Path) -> Path:
        """Returns the path of the shard in a store."""
        return folder / f"{self.name}.arrow"

    def is_there(self, file: Path) -> bool:
        """Tells whether the file exists with its recorded size."""
        return file.is_file() and file.stat().st_size == self.bytes

    def open(self, folder: Path, shard_type: type[Shard], *, fresh: bool = False) -> Shard:
        """Opens the shard. A copy in the cache that is damaged, or to be `fresh`, is fetched again.
        Raises: StoreError if it is missing, truncated, or not the one that the manifest names."""
        path = self.file(folder)
        while isinstance(path, Address):
            copy = local_copy(path, self.bytes, self.file_hash, fresh=fresh)
            try:
                return shard_type(copy, self.frame)
            except StoreError:
                if fresh and copy.is_file():
                    raise
                fresh = copy.is_file()  # else another process made room meanwhile
        # A file that is missing is named by `shard_type`, below.
        size = path.stat().st_size if path.is_file() else None
        if size is not None and size != self.bytes:
            raise StoreError(
                f"{path}: has {size:,} bytes, but the manifest says {self.bytes:,}: truncated or "
                f"replaced; {REMEDY}"
            )
        return shard_type(path, self.frame)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The inputs of a store, and its shards in order. It contains no time and no machine name, so
    the same inputs give the same bytes."""

    kind: str
    version: int
    made_from: dict[str, Any]
    shards: list[Entry]

    def count(self, unit: str) -> int:
        """Adds up the documents, tokens or the like of all shards; `unit` is a key of their
        counts."""
        return sum(entry.counts.get(unit, 0) for entry in self.shards)

    def torn(self, folder: Path) -> list[Path]:
        """Lists the files of shards that are missing or have another size."""
        if isinstance(folder, Address):
            # One listing instead of a request for each shard.
            sizes = folder.sizes()
            torn = [
                shard for shard in self.shards if sizes.get(f"{shard.name}.arrow") != shard.bytes
            ]
            return [entry.file(folder) for entry in torn]
        return [file for entry in self.shards if not entry.is_there(file := entry.file(folder))]

    def save(self, folder: Path) -> None:
        """Writes the manifest, with a check of its fields, atomically."""
        # The check is over values, not over the bytes of the file, so that its layout may change.
        fields = asdict(self)
        write_json(folder / MANIFEST, {**fields, "check": _check(fields)})

    @classmethod
    def load(cls, folder: Path, kind: "StoreKind") -> "Manifest":
        """Reads and checks a manifest. Raises: StoreError if it is missing, unfinished or damaged,
        or of another kind or version."""
        path = folder / MANIFEST
        if not path.is_file():
            state = "is unfinished, or not a store" if folder.is_dir() else "does not exist"
            status = ", and with --status shows how far it is" if kind.command == "score" else ""
            raise StoreError(
                f"{folder}: this store of {kind.kind} {state} (no {MANIFEST}); "
                f"`vocagno {kind.command}` makes one{status}"
            )
        try:
            fields = json.loads(path.read_bytes())
            check = fields.pop("check")
            kind_name, version = fields["kind"], fields["version"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path}: not a vocagno manifest: {error!r}") from error
        # Before kind and version are compared: a flipped bit in one of them is damage, not another
        # format.
        if check != _check(fields):
            raise StoreError(
                f"{path}: the manifest is damaged (its check differs); delete it and make the "
                "store again (undamaged shards are kept)"
            )
        if kind_name != kind.kind:
            raise StoreError(f"{path}: holds {kind_name}, expected {kind.kind}")
        if version != kind.version:
            raise StoreError(
                f"{path}: format version {version}, but this vocagno reads {kind.version}; "
                "make the store again, or install the vocagno that wrote it"
            )
        entries = [Entry.of(entry) for entry in fields["shards"]]
        check_names([entry.name for entry in entries], path)
        return cls(kind_name, version, fields["made_from"], entries)


def check_names(names: list[str], where: Path) -> None:
    """Rejects shard names that are duplicates or point outside the store's folder. A name may have
    one folder: `003/shard-03000`. Raises: StoreError."""
    bad = [name for name in names if not _NAME.fullmatch(name)]
    if bad or len(set(names)) != len(names):
        raise StoreError(f"{where}: shard names are duplicated or invalid ({bad[:1]})")


def _check(fields: dict[str, Any]) -> str:
    """Hashes the fields of a manifest, by which `load` detects a damaged one."""
    return digest(json.dumps(fields, sort_keys=True, separators=(",", ":")))


def entry_of(name: str, shard: Shard) -> Entry:
    """Makes the manifest entry of a shard in its current state; reads the whole file."""
    about, file_hash = shard.description, file_digest(shard.path)
    return Entry(name, about.text_hash, about.counts, shard.num_bytes, file_hash, shard.frame())


class RowShard(Shard):
    """A shard that can say which of its rows are damaged."""

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        super().__init__(path, frame)
        # A run reads the scores of a document in every epoch, and compares their checksum only the
        # first time (docs/scores.md, "Opening": 93 us, then 8).
        self._known_whole = np.zeros(len(self), np.bool_)

    def is_whole(self, row: int) -> bool:
        """Tells whether a row matches its checksum."""
        raise NotImplementedError

    def is_whole_once_read(self, row: int) -> bool:
        """Tells whether a row matches its checksum; one that did is not checked again."""
        if not self._known_whole[row]:
            self._known_whole[row] = self.is_whole(row)
        return bool(self._known_whole[row])

    def is_consistent(self) -> bool:
        """Tells whether the description matches the content of the shard."""
        raise NotImplementedError

    def damages(self, unit: str) -> Iterator[str]:
        """Reads the whole shard. Names every damaged row (`unit`: the word for one), and the
        description if that is damaged."""
        for row in range(len(self)):
            if not self.is_whole(row):
                yield f"{self.path}: {unit} {row} of this shard is damaged"
        if not self.is_consistent():
            yield f"{self.path}: the shard's description is damaged"

    def check(self, unit: str) -> None:
        """Raises: StoreError naming the first of the `damages`."""
        for damage in self.damages(unit):
            raise StoreError(f"{damage}; {REMEDY}")


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: rows, scores or texts."""

    kind: str
    version: int
    unit: str
    """The word for the rows of a shard, plural."""
    shard_type: type[RowShard]
    verb: str
    """The word on the progress bar, such as "preparing"."""
    command: str
    """The command of `vocagno` that makes such a store."""

    @property
    def row(self) -> str:
        """The word for one row."""
        return self.unit.removesuffix("s")


_MOST_OPEN = 4096
"""Maximum number of mapped shards per store; systems allow about 65,000 mappings per process."""

AnyShard = TypeVar("AnyShard", bound=RowShard)


class ShardedStore(Generic[AnyShard]):
    """The shards of a finished store. Finding a row costs O(log shards) and reads no other row.

    Opening reads only the manifest.

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path, kind: StoreKind) -> None:
        self.folder: Path = path_of(folder)
        self.manifest: Manifest = Manifest.load(self.folder, kind)
        self._kind = kind
        self._ends = list(accumulate(entry.counts[kind.unit] for entry in self.manifest.shards))
        most = _MOST_OPEN
        if isinstance(self.folder, Address):
            # A mapped copy keeps its space on the disk after the cache has dropped it, until it is
            # closed. So what is open has to fit the bound of the cache, too.
            largest = max((entry.bytes for entry in self.manifest.shards), default=1)
            most = max(1, min(MOST_OPEN, cache_bytes() // largest))
        # A cache of this store: as a decorator of the method it would be one for all stores, and
        # keep them alive.
        self.shard: Callable[[int], AnyShard] = lru_cache(most)(self._open)
        """Shard `number`; it stays open until many other shards have been used."""

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Pickles only the folder: worker processes open the files themselves. Pickling a mapped
        shard would copy it."""
        return type(self), (self.folder,)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def text_hashes(self) -> list[str]:
        """`CorpusShard.text_hash` of each shard, which identifies its texts."""
        return [entry.text_hash for entry in self.manifest.shards]

    @property
    def num_tokens(self) -> int:
        return self.manifest.count("tokens")

    @property
    def num_bytes(self) -> int:
        """Size of all shards on disk."""
        return sum(entry.bytes for entry in self.manifest.shards)

    def locate(self, index: int) -> tuple[AnyShard, int]:
        """Returns the shard that contains row `index` of the store, and the row's number in it.
        Raises: IndexError for a row that the store does not have; StoreError of `Entry.open`."""
        number, row = find_part(index, self._ends, self._kind.unit)
        shard = self.shard(number)
        if isinstance(self.folder, Address) and not shard.is_whole_once_read(row):
            # The copy in the cache is damaged, not the object. It is fetched again, and the mapping
            # of the damaged file dropped with the others, as single ones cannot be.
            self.manifest.shards[number].open(self.folder, self._kind.shard_type, fresh=True)
            cast("Any", self.shard).cache_clear()
            shard = self.shard(number)
        return shard, row

    def shards(self) -> Iterator[AnyShard]:
        """Yields all shards in order; none stays open."""
        return map(self._open, range(len(self.manifest.shards)))

    def _open(self, number: int) -> AnyShard:
        entry = self.manifest.shards[number]
        return cast("AnyShard", entry.open(self.folder, self._kind.shard_type))

    def damages(
        self, advance: Callable[[Entry], None] = lambda entry: None
    ) -> Iterator[tuple[Entry, str]]:
        """Reads the whole store and yields all damage with the shard that has it: the hash of each
        file, then each row.

        Calls `advance` for each shard after it has been read.
        """
        for number, entry in enumerate(self.manifest.shards):
            yield from ((entry, damage) for damage in self._damages_of(number, entry))
            advance(entry)

    def _damages_of(self, number: int, entry: Entry) -> Iterator[str]:
        path = entry.file(self.folder)
        try:
            if isinstance(path, Address):
                # The object is what is verified, not a copy of an earlier day.
                path = local_copy(path, entry.bytes, entry.file_hash, fresh=True)
            elif not path.is_file():
                raise StoreError(f"{path}: the shard is missing")
            if file_digest(path) != entry.file_hash:
                yield f"{path}: differs from its hash in the manifest"
            shard = self._open(number)
        except StoreError as error:
            yield str(error)
        else:
            yield from shard.damages(self._kind.row)


def find_part(index: int, ends: Sequence[int], unit: str) -> tuple[int, int]:
    """Finds the part that has an index. Args: ends: the running totals of the parts' sizes.
    Returns: the number of the part, and the index in it.
    Raises: IndexError that names the `unit` of the index."""
    count = ends[-1] if ends else 0
    if not 0 <= index < count:
        raise IndexError(f"index {index} is out of range for {count} {unit}")
    part = bisect.bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)


REPORT = "refused.jsonl"
"""File of a store that names the documents it omits, the first 1,000 of them: a line each with
`place`, `why` and, of a corpus, `document` (its number)."""
MAX_REFUSED = 0.001
"""Default of `data.max_refused`."""
REFUSED = "refused_documents"
"""The key of a shard's counts for the number of documents that it omits. It is absent if there are
none."""
_AT_LEAST = 10
"""Refused documents that any limit above 0 allows: of a small corpus, a share of 0.1 % would be
less than one document."""
_NAMED = 1_000
"""Most lines of a report."""


class RefusalLimit:
    """Counts the documents that a store omits, and stops above the limit."""

    def __init__(self, folder: Path | str, documents: int, share: float) -> None:
        """Args:
        folder: of the store, or the name of something else.
        documents: number of documents of the whole store.
        share: `data.max_refused`: 0 allows none, another share at least ten documents.
        Raises: ConfigError for a share that is not in [0, 1].
        """
        require(0 <= share <= 1, f"max_refused must be in [0, 1], got {share}")
        self._folder, self._documents, self._share = folder, documents, share
        self._most = max(_AT_LEAST, int(share * documents)) if share else 0
        self._count = 0

    def add(self, shard: Description) -> None:
        """Counts a shard of a store that is being made. Raises: StoreError as `check`."""
        self._count += len(shard.refused)
        for _, place, reason in shard.refused[:1]:
            self.check(self._count, f"One is {place}: {reason}")

    def check(self, count: int, which: str = f"{REPORT} there names them") -> None:
        """Raises: StoreError if these are too many."""
        if count > self._most:
            allowed = f"{self._share:.2%} or {_AT_LEAST}" if self._share else "none"
            raise StoreError(
                f"{self._folder}: the tokens of {count:,} of {self._documents:,} documents cannot "
                f"be placed in their text, and max_refused allows {allowed}. {which}. Fix or "
                "remove these documents, use another tokenizer, or raise max_refused "
                "(data.max_refused of a run, --max_refused of a command); what is made is kept"
            )


def write_report(folder: Path, shards: Sequence[tuple[str, dict[str, int]]]) -> None:
    """Writes the report of a store, if it leaves something out.
    Args: shards: name and counts of each, in order."""
    entries: list[dict[str, Any]] = []
    before = 0
    for name, counts in shards:
        # A shard that omits nothing is not opened: usually the report costs no reading.
        if REFUSED in counts and len(entries) < _NAMED:
            refused = Shard(folder / f"{name}.arrow").description.refused
            entries += [
                {"document": before + row, "place": place, "why": reason}
                for row, place, reason in refused
            ]
        before += counts["documents"]
    write_entries(folder, entries)


def write_entries(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Writes the report, the first 1,000 of these lines; removes it if there are none."""
    path = folder / REPORT
    if not entries:
        # An earlier attempt, with another tokenizer for example, may have left one.
        path.unlink(missing_ok=True)
        return
    with atomic_file(path) as file:
        for entry in entries[:_NAMED]:
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def say_omitted(folder: Path, documents: int, refused: int) -> None:
    """Prints how many documents a store omits, if any."""
    if refused:
        print(
            f"{folder}: omitted {refused:,} of {documents:,} documents, whose tokens cannot be "
            f"placed in their text; {REPORT} there names them",
            file=sys.stderr,
        )
