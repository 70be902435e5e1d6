"""The manifest of a store: a list of its shards with their hashes."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vocagno.data.store.shards import Frame, Shard, StoreError
from vocagno.system.files import digest, file_digest, write_json

MANIFEST = "manifest.json"
_NAME = re.compile(r"(?:[^./\\:\0][^/\\:\0]*/)?[^./\\:\0][^/\\:\0]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard at the time when the store was finished."""

    name: str
    text_hash: str
    counts: dict[str, int]
    bytes: int
    file_hash: str
    """`files.file_digest` of the whole file, compared by `verify`."""
    frame: Frame
    """Compared whenever the shard is opened."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Entry":
        """From its fields as JSON has them."""
        return cls(**{**fields, "frame": Frame(**fields["frame"])})

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.arrow"

    def is_there(self, file: Path) -> bool:
        """Whether the file exists with its recorded size."""
        return file.is_file() and file.stat().st_size == self.bytes

    def open(self, folder: Path, shard_type: type[Shard]) -> Shard:
        """Opens the shard.

        Raises: StoreError if it is missing, truncated, or not the one that the manifest names.
        """
        path = self.file(folder)
        size = path.stat().st_size if path.is_file() else None
        if size is not None and size != self.bytes:
            raise StoreError(
                f"{path}: has {size:,} bytes, but the manifest says {self.bytes:,}: truncated or "
                "replaced; delete it and the manifest, and make the store again (other shards are "
                "kept)"
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
        """Number of documents, tokens or the like of all shards."""
        return sum(entry.counts.get(unit, 0) for entry in self.shards)

    def torn(self, folder: Path) -> list[Path]:
        """The files of shards that are missing or truncated."""
        return [file for entry in self.shards if not entry.is_there(file := entry.file(folder))]

    def save(self, folder: Path) -> None:
        fields = {
            "kind": self.kind,
            "version": self.version,
            "made_from": self.made_from,
            "shards": [asdict(entry) for entry in self.shards],
        }
        write_json(folder / MANIFEST, {**fields, "check": _check(fields)})

    @classmethod
    def load(cls, folder: Path, kind: str, version: int) -> "Manifest":
        """Reads and checks a manifest.

        Raises: StoreError if it is missing, unfinished or damaged, or of another kind or version.
        """
        path = folder / MANIFEST
        if not path.is_file():
            state = "is unfinished, or not a store" if folder.is_dir() else "does not exist"
            raise StoreError(f"{folder}: this store of {kind} {state} (no {MANIFEST})")
        try:
            fields = json.loads(path.read_bytes())
            check = fields.pop("check")
            found_kind, found_version = fields["kind"], fields["version"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreError(f"{path}: not a vocagno manifest: {error!r}") from error
        if check != _check(fields):
            raise StoreError(
                f"{path}: the manifest is damaged (its check differs); delete it and make the "
                "store again (undamaged shards are kept)"
            )
        if found_kind != kind:
            raise StoreError(f"{path}: holds {found_kind}, expected {kind}")
        if found_version != version:
            raise StoreError(
                f"{path}: format version {found_version}, but this vocagno reads {version}; "
                "make the store again, or install the vocagno that wrote it"
            )
        entries = [Entry.of(entry) for entry in fields["shards"]]
        check_names([entry.name for entry in entries], path)
        return cls(found_kind, found_version, fields["made_from"], entries)


def check_names(names: list[str], where: Path) -> None:
    """Rejects shard names that are duplicates or point outside the store's folder. A name may have
    one folder: `003/shard-03000`.

    Raises: StoreError.
    """
    bad = [name for name in names if not _NAME.fullmatch(name)]
    if bad or len(set(names)) != len(names):
        raise StoreError(f"{where}: shard names are duplicated or invalid ({bad[:1]})")


def _check(fields: dict[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True, separators=(",", ":")))


def entry_of(name: str, shard: Shard) -> Entry:
    """The manifest entry for the shard in its current state; reads the whole file."""
    what, file_hash = shard.description, file_digest(shard.path)
    return Entry(name, what.text_hash, what.counts, shard.num_bytes, file_hash, shard.frame())
