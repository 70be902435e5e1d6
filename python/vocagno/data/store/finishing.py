"""Finishes a store: the manifest of its shards."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from vocagno.data.store.claim import read_claim
from vocagno.data.store.manifest import MANIFEST, Entry, Manifest, entry_of
from vocagno.data.store.notes import noted_entries
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.data.store.store import RowShard

_FLAT = 1000
"""A store of more shards has a folder for each thousand of them."""


def shard_name(number: int, count: int) -> str:
    """The name of shard `number` of a store of `count` shards: its path without the suffix."""
    name = f"shard-{number:05d}"
    return name if count <= _FLAT else f"{number // 1000:03d}/{name}"


def finish_store(
    folder: Path, names: Sequence[str], shard_type: type[RowShard], unit: str
) -> Manifest:
    """Writes the manifest when all shards exist. Any process may do so, and repeat it.

    A shard that was noted by the process that made it is not read. Of others every row is compared
    with its checksum first, so that the hashes are of undamaged data.

    Raises: StoreError if a shard is missing or damaged, or does not belong to the same store as the
        others.
    """
    if not names:
        raise ValueError("a store needs a shard")
    noted, first = noted_entries(folder), Shard(folder / f"{names[0]}.arrow").description
    entries = [
        noted[name] if name in noted else _read(folder, name, first, shard_type, unit)
        for name in names
    ]
    manifest = Manifest(first.kind, first.version, first.made_from, entries)
    manifest.save(folder)
    for parent in {(folder / name).parent for name in names} | {folder}:
        # Another process may be removing it, and what remains does no harm.
        shutil.rmtree(parent / MAKING, ignore_errors=True)
    return manifest


def _read(
    folder: Path, name: str, first: Description, shard_type: type[RowShard], unit: str
) -> Entry:
    shard = shard_type(folder / f"{name}.arrow")
    shard.check(unit.removesuffix("s"))
    what = shard.description
    if (what.kind, what.version, what.made_from) != (first.kind, first.version, first.made_from):
        raise StoreError(f"{shard.path}: not from the same store as the first shard")
    return entry_of(name, shard)


def finish_parts(folder: Path, shard_type: type[RowShard], unit: str) -> None:
    """Writes the manifest of a store whose parts were made by processes that share no locks, unless
    it is there.

    Raises: StoreError if nothing was made here, or shards are missing; as `finish_store`.
    """
    if (folder / MANIFEST).is_file():
        return
    claim = read_claim(folder)
    if claim is None or claim.shards is None:
        raise StoreError(f"{folder}: no store is being made here in parts")
    names = [shard_name(number, claim.shards) for number in range(claim.shards)]
    missing = [name for name in names if not (folder / f"{name}.arrow").is_file()]
    if missing:
        numbers = ", ".join(name.rpartition("-")[2].lstrip("0") or "0" for name in missing[:5])
        more = ", ..." if len(missing) > 5 else ""
        raise StoreError(
            f"{folder}: {len(missing):,} of {claim.shards:,} shards are missing (numbers "
            f"{numbers}{more}); run their parts again"
        )
    finish_store(folder, names, shard_type, unit)
