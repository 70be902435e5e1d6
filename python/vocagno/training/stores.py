"""Makes a store out of a corpus, shard by shard, by however many processes are at it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.corpus import Corpus, CorpusShard
from vocagno.files import digest
from vocagno.shards import MANIFEST, Manifest, Shard, StoreError, finish_store
from vocagno.sharing import share
from vocagno.training.progress import Progress


@dataclass(frozen=True, slots=True)
class StoreKind:
    """One of the two kinds of stores."""

    kind: str
    version: int
    unit: str
    verb: str
    """What the progress bar says is being done."""


def store_key(corpus: Corpus, made_from: dict[str, Any]) -> str:
    """Names a store in the cache by its text and by all else that it is made from."""
    return digest(corpus.fingerprint, repr(sorted(made_from.items())))


def make_store(
    corpus: Corpus,
    folder: Path,
    kind: StoreKind,
    made_from: dict[str, Any],
    make: Callable[[CorpusShard, Path, dict[str, Any], Callable[[float], None]], None],
    *,
    show_progress: bool,
) -> None:
    """Returns when the store is complete; shards that are there already stay as they are.

    Args:
        make: writes one shard to a path, with the description given, at one stroke; tells its last
            argument now and then which fraction of the shard is done.
    Raises: StoreError if the folder holds shards of another text or other settings.
    """
    if (folder / MANIFEST).is_file():
        store = Manifest.load(folder, kind.kind, kind.version)
        ours = [(shard.name, shard.text_hash) for shard in corpus.shards]
        theirs = [(shard["name"], shard["text_hash"]) for shard in store.shards]
        if ours != theirs or store.made_from != made_from:
            what = "text" if ours != theirs else _first_difference(store.made_from, made_from)
            raise StoreError(
                f"{folder}: holds finished {kind.kind} of another {what}; name another folder, or "
                "delete this one"
            )
        return
    shards = {shard.name: shard for shard in corpus.shards}
    total = sum(shard.text_bytes for shard in corpus.shards)
    finished = 0
    with Progress(kind.verb, total, unit="B", show=show_progress) as progress:

        def make_named(name: str) -> None:
            shard = shards[name]
            description = {**made_from, "text_hash": shard.text_hash}

            def advance(fraction: float) -> None:
                progress.at(finished + int(fraction * shard.text_bytes))

            make(shard, _path(folder, shard), description, advance)

        def report(name: str) -> None:
            nonlocal finished
            finished += shards[name].text_bytes
            progress.at(finished)

        share(
            list(shards),
            folder,
            done=lambda name: _done(folder, shards[name], made_from),
            make=make_named,
            report=report,
        )
    finish_store(
        folder, list(shards),
        kind=kind.kind, version=kind.version, unit=kind.unit, made_from=made_from,
    )  # fmt: skip


def _first_difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    key = next(key for key in {**found, **expected} if found.get(key) != expected.get(key))
    return f"{key.replace('_', ' ')} ({found.get(key)}, now {expected.get(key)})"


def _path(folder: Path, shard: CorpusShard) -> Path:
    return folder / f"{shard.name}.arrow"


def _done(folder: Path, shard: CorpusShard, made_from: dict[str, Any]) -> bool:
    """Whether a shard is there; refuses one that was made from something else."""
    path = _path(folder, shard)
    if not path.is_file():
        return False
    metadata = Shard(path).metadata
    expected = {**made_from, "text_hash": shard.text_hash}
    found = {key: metadata.get(key) for key in expected}
    if found != expected:
        raise StoreError(
            f"{path}: was made with another {_first_difference(found, expected)}; name another "
            "folder, or delete this one"
        )
    return True
