"""Makes a store from a corpus, shard by shard, with any number of processes."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.data.corpus import Corpus, CorpusShard
from vocagno.data.store.manifest import MANIFEST, Manifest
from vocagno.data.store.shards import Description, Shard, StoreError
from vocagno.data.store.store import RowShard, finish_store
from vocagno.system.files import digest, write_json
from vocagno.system.progress import Progress
from vocagno.system.shared_work import LOCKS, exclusively, share

Advance = Callable[[float, int], None]
"""Called from time to time with the fraction of a shard that is done, and its tokens so far."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: rows, scores or texts."""

    kind: str
    version: int
    unit: str
    """The word for the rows of a shard, plural."""
    shard_type: type[RowShard]
    verb: str
    """The word on the progress bar."""


@dataclass(frozen=True, slots=True)
class Made:
    """What all processes have added to a store since this process began."""

    shards: int
    tokens: int
    seconds: float

    def as_dict(self) -> dict[str, float]:
        """For the last line of a command."""
        rate = self.tokens / self.seconds if self.tokens else 0.0
        return {
            "shards_made": self.shards,
            "seconds": round(self.seconds, 2),
            "tokens_per_second": round(rate, 1),
        }


def store_key(corpus: Corpus, made_from: dict[str, Any]) -> str:
    """The name of a store in the cache: a hash of its text and its other inputs."""
    return digest(corpus.fingerprint, repr(sorted(made_from.items())))


def make_store(
    corpus: Corpus,
    folder: Path,
    kind: StoreKind,
    made_from: dict[str, Any],
    make: Callable[[CorpusShard, Path, Advance], None],
    *,
    show_progress: bool,
) -> Made:
    """Returns when the store is complete. Existing shards are kept.

    Args:
        make: writes one shard to a path atomically.
    Raises: StoreError if the folder contains shards of another text or other settings.
    """
    if _torn(corpus, folder, kind, made_from) == []:
        return Made(0, 0, 0.0)
    with exclusively(MANIFEST, folder):
        if torn := _torn(corpus, folder, kind, made_from):
            _reopen(folder, torn)
        _claim(corpus, folder, kind, made_from)
    shards = {shard.name: shard for shard in corpus.shards}
    there = {name: what for name in shards if (what := _found(folder, shards[name], made_from))}
    with _Tally(kind.verb, corpus, there, show_progress) as tally:

        def make_named(name: str) -> None:
            shard = shards[name]
            make(shard, _path(folder, shard), lambda *far: tally.inside(shard, *far))

        def report(name: str) -> None:
            what = _found(folder, shards[name], made_from)
            assert what is not None
            tally.done(shards[name], what)

        share(
            [name for name in shards if name not in there],
            folder,
            done=lambda name: _found(folder, shards[name], made_from) is not None,
            make=make_named,
            report=report,
        )
    with exclusively(MANIFEST, folder):  # the first process reads all shards for their hashes
        if not (folder / MANIFEST).is_file():
            finish_store(folder, list(shards), kind.shard_type, kind.unit)
    return tally.made()


class _Tally:
    """Counts finished work, for the progress bar and the final summary."""

    def __init__(
        self, verb: str, corpus: Corpus, there: dict[str, Description], show: bool
    ) -> None:
        sizes = {shard.name: shard.text_bytes for shard in corpus.shards}
        self._bytes = sum(sizes[name] for name in there)
        self._documents = sum(what.counts["documents"] for what in there.values())
        self._shards = self._tokens = 0
        self._began = time.monotonic()
        self._progress = Progress(verb, corpus.text_bytes, unit="B", show=show, start=self._bytes)
        self._of = corpus.documents

    def inside(self, shard: CorpusShard, fraction: float, tokens: int) -> None:
        documents = self._documents + int(fraction * shard.documents)
        self._show(self._bytes + int(fraction * shard.text_bytes), documents, self._tokens + tokens)

    def done(self, shard: CorpusShard, what: Description) -> None:
        self._bytes += shard.text_bytes
        self._documents += shard.documents
        self._tokens += what.counts["tokens"]
        self._shards += 1
        self._show(self._bytes, self._documents, self._tokens)

    def _show(self, text_bytes: int, documents: int, tokens: int) -> None:
        rate = tokens / max(1e-9, time.monotonic() - self._began)
        note = f"{documents:,} of {self._of:,} documents, {rate:,.0f} tokens/s"
        self._progress.at(text_bytes, note)

    def made(self) -> Made:
        return Made(self._shards, self._tokens, time.monotonic() - self._began)

    def __enter__(self) -> "_Tally":
        return self

    def __exit__(self, *what: Any) -> None:
        self._progress.__exit__(*what)


def _torn(
    corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any]
) -> list[Path] | None:
    """The missing or truncated shards of a finished store; None if it is not finished."""
    if not (folder / MANIFEST).is_file():
        return None
    store = Manifest.load(folder, kind.kind, kind.version)
    ours = [(shard.name, shard.text_hash) for shard in corpus.shards]
    theirs = [(entry.name, entry.text_hash) for entry in store.shards]
    if ours != theirs or store.made_from != made_from:
        what = "text" if ours != theirs else _first_difference(store.made_from, made_from)
        raise StoreError(
            f"{folder}: contains finished {kind.kind} of another {what}; name another folder, or "
            "delete this one"
        )
    return [file for entry in store.shards if not entry.is_there(file := entry.file(folder))]


def _reopen(folder: Path, torn: list[Path]) -> None:
    """Turns a finished store with missing shards (a partial copy, for example) into an unfinished
    one."""
    (folder / MANIFEST).unlink()
    for file in torn:
        file.unlink(missing_ok=True)
    print(f"{folder}: making {len(torn):,} missing or truncated shards again", file=sys.stderr)


def _claim(corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any]) -> None:
    """Records in the folder what is being made there, so that nothing else is made in it."""
    path = folder / LOCKS / "made-from.json"
    ours = {"kind": kind.kind, "text": corpus.fingerprint, **made_from}
    if not path.is_file():
        write_json(path, ours)
    elif (theirs := json.loads(path.read_bytes())) != ours:
        raise StoreError(
            f"{folder}: {theirs.get('kind')} of another {_first_difference(theirs, ours)} are "
            "being made here; name another folder, or delete this one"
        )


def _first_difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    key = next(key for key in {**found, **expected} if found.get(key) != expected.get(key))
    return f"{key.replace('_', ' ')} ({found.get(key)}, now {expected.get(key)})"


def _path(folder: Path, shard: CorpusShard) -> Path:
    return folder / f"{shard.name}.arrow"


def _found(folder: Path, shard: CorpusShard, made_from: dict[str, Any]) -> Description | None:
    """The description of an existing shard. Raises: StoreError if its inputs are different."""
    path = _path(folder, shard)
    if not path.is_file():
        return None
    what = Shard(path).description
    if what.text_hash != shard.text_hash:
        difference = "text"
    elif what.made_from != made_from:
        difference = _first_difference(what.made_from, made_from)
    else:
        return what
    raise StoreError(
        f"{path}: was made with another {difference}; name another folder, or delete this one"
    )
