"""Finishes a store: the manifest of its shards."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from vocagno.data.store.claim import first_difference, read_claim
from vocagno.data.store.manifest import MANIFEST, Entry, Manifest, entry_of
from vocagno.data.store.notes import Note, noted_shards, origin_of
from vocagno.data.store.refusals import write_report
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.data.store.store import RowShard, StoreKind
from vocagno.system.files import digest
from vocagno.system.shared_work import LOCKS

_FLAT = 1000
"""A store of more shards has a folder for each thousand of them."""


def shard_name(number: int, count: int) -> str:
    """The name of shard `number` of a store of `count` shards: its path without the suffix."""
    name = f"shard-{number:05d}"
    return name if count <= _FLAT else f"{number // 1000:03d}/{name}"


def finish_store(
    folder: Path,
    names: Sequence[str],
    shard_type: type[RowShard],
    unit: str,
    text: str | None = None,
) -> Manifest:
    """Writes the manifest when all shards exist. Any process may do so, and repeat it.

    A shard that was noted by the process that made it is not read. Of others every row is compared
    with its checksum first, so that the hashes are of undamaged data.

    Args: text: `Corpus.fingerprint` of what the store is of, if that is known.
    Raises: StoreError if a shard is missing or damaged, was made from other inputs than the first
        one, or is of another text.
    """
    if not names:
        raise ValueError("a store needs a shard")
    noted, first = noted_shards(folder), _description(folder, names[0])
    origin = origin_of(first)
    found = {name: _found(folder, name, noted.get(name), shard_type, unit) for name in names}
    if others := [name for name in names if found[name][1] != origin]:
        raise _mixed(folder, names, others, first)
    entries = [entry for entry, _ in found.values()]
    if text is not None and text != digest(*(entry.text_hash for entry in entries)):
        raise StoreError(
            f"{folder}: some shards are of another text than the store; delete {folder / LOCKS} "
            "and make the store again, which names them"
        )
    write_report(folder, [(entry.name, entry.counts) for entry in entries])
    manifest = Manifest(first.kind, first.version, first.made_from, entries)
    manifest.save(folder)
    for parent in {(folder / name).parent for name in names} | {folder}:
        # Another process may be removing it, and what remains does no harm.
        shutil.rmtree(parent / MAKING, ignore_errors=True)
    return manifest


def _found(
    folder: Path, name: str, note: Note | None, shard_type: type[RowShard], unit: str
) -> tuple[Entry, str]:
    """The entry of a shard and its `origin_of`, from its note where there is one."""
    if note is not None:
        return note.entry, note.origin or origin_of(_description(folder, name))
    shard = shard_type(folder / f"{name}.arrow")
    shard.check(unit.removesuffix("s"))
    return entry_of(name, shard), origin_of(shard.description)


def _description(folder: Path, name: str) -> Description:
    return Shard(folder / f"{name}.arrow").description


def _mixed(folder: Path, names: Sequence[str], others: list[str], first: Description) -> StoreError:
    """Args: others: the shards that were made from other inputs than the first one."""
    theirs, ours = (
        {"kind": one.kind, "version": one.version, **one.made_from}
        for one in (_description(folder, others[0]), first)
    )
    return StoreError(
        f"{folder}: {len(others):,} of {len(names):,} shards ({_some(others)}) were made with "
        f"another {first_difference(theirs, ours, 'the others')}; delete the wrong ones and "
        f"{LOCKS}, and make them again with the options of the others"
    )


def _some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Looks for the files of a finished store, and reads none.

    Raises: StoreError if some are missing or truncated.
    """
    if torn := [file.relative_to(folder).as_posix() for file in manifest.torn(folder)]:
        raise StoreError(
            f"{folder}: {len(torn):,} of {len(manifest.shards):,} shards of this finished store "
            f"({_some(torn)}) are missing or truncated; delete them and {MANIFEST}, and make the "
            "store again (other shards are kept)"
        )


def finish_parts(folder: Path, kind: StoreKind) -> None:
    """Writes the manifest of a store whose parts were made by processes that share no locks, unless
    it is there.

    Raises: StoreError if nothing was made here, or shards are missing; as `finish_store` and
        `check_files`.
    """
    if (folder / MANIFEST).is_file():
        return check_files(folder, Manifest.load(folder, kind.kind, kind.version))
    claim = read_claim(folder)
    if claim is None or claim.shards is None:
        raise StoreError(f"{folder}: no store is being made here in parts")
    names = [shard_name(number, claim.shards) for number in range(claim.shards)]
    missing = [name for name in names if not (folder / f"{name}.arrow").is_file()]
    if missing:
        numbers = [name.rpartition("-")[2].lstrip("0") or "0" for name in missing]
        raise StoreError(
            f"{folder}: {len(missing):,} of {claim.shards:,} shards are missing (numbers "
            f"{_some(numbers)}); run their parts again"
        )
    finish_store(folder, names, kind.shard_type, kind.unit, claim.text)
