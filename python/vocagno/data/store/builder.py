"""Makes a store from a corpus, shard by shard, with any number of processes."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vocagno.data.corpus import Corpus, CorpusShard
from vocagno.data.store.claim import Claim, first_difference
from vocagno.data.store.finishing import finish_store, shard_name
from vocagno.data.store.manifest import MANIFEST, Manifest, entry_of
from vocagno.data.store.notes import Notes, origin_of
from vocagno.data.store.refusals import REFUSED, RefusalLimit
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.data.store.store import StoreKind
from vocagno.data.store.tally import Made, Tally
from vocagno.system.files import digest
from vocagno.system.shared_work import exclusively, share

Advance = Callable[[float, int], None]
"""Called from time to time with the fraction of a shard that is done, and its tokens so far."""

AnyItem = TypeVar("AnyItem")


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` consecutive parts of about as many shards each."""

    number: int
    """From 1."""
    count: int

    def of(self, items: Sequence[AnyItem]) -> Sequence[AnyItem]:
        first, end = (len(items) * n // self.count for n in (self.number - 1, self.number))
        return items[first:end]


def store_key(corpus: Corpus, made_from: dict[str, Any]) -> str:
    """The name of a store in the cache: a hash of its text and its other inputs."""
    return digest(corpus.fingerprint, repr(sorted(made_from.items())))


def named_shards(corpus: Corpus) -> dict[str, CorpusShard]:
    """The shards of a corpus by their names in a store."""
    count = len(corpus.shards)
    return {shard_name(number, count): shard for number, shard in enumerate(corpus.shards)}


def make_store(
    corpus: Corpus,
    folder: Path,
    kind: StoreKind,
    made_from: dict[str, Any],
    make: Callable[[CorpusShard, Path, Advance], None],
    *,
    show_progress: bool,
    part: Part | None = None,
) -> Made:
    """Returns when the store is complete. Existing shards are kept.

    Args:
        make: writes one shard to a path atomically.
        part: makes only these shards, without locks, and does not finish the store
            (`finishing.finish_parts` does). No other process may make them at the same time.
    Raises: StoreError if the folder contains shards of another text or other settings, or if more
        documents are omitted than `corpus.max_refused` allows.
    """
    limit = RefusalLimit(folder, corpus.documents, corpus.max_refused)
    if _torn(corpus, folder, kind, made_from) == []:
        limit.check(Manifest.load(folder, kind.kind, kind.version).count(REFUSED))
        return Made(0, 0, 0.0)
    is_known = _claim(corpus, folder, kind, made_from, is_alone=part is not None)
    shards = named_shards(corpus)
    names = list(shards) if part is None else list(part.of(list(shards)))
    there = existing(folder, names)
    if not is_known:  # shards of something else may have been copied here
        # A part looks at one shard of the others, too: finishing compares all.
        for name in {*there, *sorted(existing(folder, list(shards)))[:1]}:
            _description(folder, name, shards[name], made_from)
    notes = Notes(folder)
    wanted, begun = ([shards[name] for name in some] for some in (names, there))
    with Tally(kind.verb, wanted, begun, show=show_progress) as tally:

        def make_named(name: str) -> None:
            began, path, shard = time.monotonic(), _path(folder, name), shards[name]
            make(shard, path, lambda *far: tally.inside(shard, *far))
            made = Shard(path)
            notes.add(entry_of(name, made), time.monotonic() - began, origin_of(made.description))

        def report(name: str) -> None:
            found = _description(folder, name, shards[name], made_from)
            tally.done(shards[name], found.counts["tokens"])
            limit.add(found)

        missing = [name for name in names if name not in there]
        if part is not None:
            for name in missing:
                make_named(name)
                report(name)
            return tally.made()
        share(
            missing,
            folder,
            done=lambda name: _path(folder, name).is_file(),
            make=make_named,
            report=report,
            partial=MAKING,
        )
    with exclusively(MANIFEST, folder):
        if not (folder / MANIFEST).is_file():
            finish_store(folder, names, kind.shard_type, kind.unit, corpus.fingerprint)
    limit.check(Manifest.load(folder, kind.kind, kind.version).count(REFUSED))
    return tally.made()


def _claim(
    corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any], *, is_alone: bool
) -> bool:
    """Records what is being made in the folder. Returns whether it was known before."""
    claim = Claim(kind.kind, corpus.fingerprint, len(corpus.shards), made_from)
    if is_alone:
        if _torn(corpus, folder, kind, made_from):
            raise StoreError(
                f"{folder}: a finished store with missing shards; run without --shards, which "
                "makes them again"
            )
        return claim.save(folder)
    with exclusively(MANIFEST, folder):
        if torn := _torn(corpus, folder, kind, made_from):
            _reopen(folder, torn)
        return claim.save(folder)


def existing(folder: Path, names: Sequence[str]) -> set[str]:
    """The shards that are there, from the lists of files."""
    paths = {name: _path(folder, name) for name in names}
    files: dict[Path, set[str]] = {}
    for parent in {path.parent for path in paths.values()}:
        if parent.is_dir():
            with os.scandir(parent) as entries:
                files[parent] = {entry.name for entry in entries}
    return {name for name, path in paths.items() if path.name in files.get(path.parent, ())}


def _torn(
    corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any]
) -> list[Path] | None:
    """The missing or truncated shards of a finished store; None if it is not finished."""
    if not (folder / MANIFEST).is_file():
        return None
    store = Manifest.load(folder, kind.kind, kind.version)
    ours = [shard.text_hash for shard in corpus.shards]
    theirs = [entry.text_hash for entry in store.shards]
    if ours != theirs or store.made_from != made_from:
        what = "text" if ours != theirs else first_difference(store.made_from, made_from)
        raise StoreError(
            f"{folder}: contains finished {kind.kind} of another {what}; name another folder, or "
            "delete this one"
        )
    return store.torn(folder)


def _reopen(folder: Path, torn: list[Path]) -> None:
    """Turns a finished store with missing shards (a partial copy, for example) into an unfinished
    one."""
    (folder / MANIFEST).unlink()
    for file in torn:
        file.unlink(missing_ok=True)
    print(f"{folder}: making {len(torn):,} missing or truncated shards again", file=sys.stderr)


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.arrow"


def _description(
    folder: Path, name: str, shard: CorpusShard, made_from: dict[str, Any]
) -> Description:
    """The description of an existing shard. Raises: StoreError if its inputs are different."""
    path = _path(folder, name)
    what = Shard(path).description
    if what.text_hash != shard.text_hash:
        difference = "text"
    elif what.made_from != made_from:
        difference = first_difference(what.made_from, made_from)
    else:
        return what
    raise StoreError(
        f"{path}: was made with another {difference}; name another folder, or delete this one"
    )
