"""How far a store is that processes are making."""

import time
from dataclasses import dataclass
from pathlib import Path

from vocagno.data.corpus import Corpus
from vocagno.data.store.building import existing, named_shards, read_claim, read_notes
from vocagno.data.store.format import MANIFEST, Manifest, StoreKind
from vocagno.data.store.shards import Shard, StoreError
from vocagno.system.shared_work import is_locked

_RECENT = 600.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True, slots=True)
class State:
    """Shards of a store, and bytes of their text."""

    is_finished: bool
    """Whether there is a manifest."""
    shards: int
    done: int
    under_way: int
    """Shards whose locks are held. Processes with a part (`--shards I/N`) hold none."""
    text_bytes: int
    text_bytes_done: int
    bytes_per_second: float | None
    """Of all processes, over the last ten minutes; None if no shard was finished in them."""

    @property
    def seconds_left(self) -> float | None:
        """At that speed."""
        speed = self.bytes_per_second
        return None if speed is None else (self.text_bytes - self.text_bytes_done) / speed


def state_of(corpus: Corpus, folder: Path, kind: StoreKind) -> State:
    """How far the store of a corpus in a folder is. It may be of any teacher or student.

    Raises: StoreError if the folder contains a store of another text, or of another kind.
    """
    shards = named_shards(corpus)
    there = existing(folder, list(shards))
    if not _is_of(corpus, folder, kind, there):
        raise StoreError(
            f"{folder}: contains another store than {kind.kind} of {corpus.name}; name the corpus "
            "and --shard_bytes with which it was begun"
        )
    return State(
        is_finished=(folder / MANIFEST).is_file(),
        shards=len(shards),
        done=len(there),
        under_way=sum(is_locked(name, folder) for name in shards if name not in there),
        text_bytes=corpus.text_bytes,
        text_bytes_done=sum(shards[name].text_bytes for name in there),
        bytes_per_second=_speed({name: shards[name].text_bytes for name in shards}, folder),
    )


def _is_of(corpus: Corpus, folder: Path, kind: StoreKind, there: set[str]) -> bool:
    """Compares the text of the manifest, of the claim, or of the first shard that is there."""
    claim = read_claim(folder)
    if (folder / MANIFEST).is_file():
        entries = Manifest.load(folder, kind.kind, kind.version).shards
        return [entry.text_hash for entry in entries] == [one.text_hash for one in corpus.shards]
    if claim is not None:
        return (claim.kind, claim.text) == (kind.kind, corpus.fingerprint)
    if not there:
        return True
    name = min(there)
    shard, expected = Shard(folder / f"{name}.arrow").description, named_shards(corpus)[name]
    return (shard.kind, shard.text_hash) == (kind.kind, expected.text_hash)


def _speed(text_bytes: dict[str, int], folder: Path) -> float | None:
    now = time.time()
    recent = [note for note in read_notes(folder) if note.ended > now - _RECENT]
    if not recent:
        return None
    began = min(note.ended - note.seconds for note in recent)
    made = {note.entry.name for note in recent}
    # Work on the shards that began earlier counts as if it had been done in the last ten minutes.
    seconds = max(1e-3, now - max(began, now - _RECENT))
    return sum(text_bytes.get(name, 0) for name in made) / seconds
