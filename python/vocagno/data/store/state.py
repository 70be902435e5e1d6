"""Claims and notes in the folder of a store that is being made.

A claim says what the store is made from, so that a folder holds one store only. A note says which
shard a process has made, so that the manifest is written without reading shards again, and that a
command can say how far the store is.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from vocagno.data.corpus import Corpus, CorpusShard
from vocagno.data.store.format import MANIFEST, Entry, Manifest, StoreKind
from vocagno.data.store.remote import cache_folder
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.system.addresses import Address, path_of
from vocagno.system.files import digest, write_new_json
from vocagno.system.shared_work import LOCKS, is_locked


@dataclass(frozen=True, slots=True)
class Claim:
    """The inputs of a store."""

    kind: str
    text: str
    """`Corpus.fingerprint`."""
    shards: int | None
    """Number of shards; None if it is known only in the end (a pipeline of datatrove)."""
    made_from: dict[str, Any]
    shard_bytes: int | None = None
    """`Corpus.shard_bytes`; None if the shards are not those of a `Corpus`."""

    def save(self, folder: Path) -> bool:
        """Records the claim, unless it is there. Returns whether it was.
        Raises: StoreError if something else is being made there."""
        recorded = read_claim(folder)
        is_known = recorded is not None
        if recorded is None:
            # `read_claim` takes these fields out again, and the rest is `made_from`: no input of a
            # store may have one of these names.
            fields = {"kind": self.kind, "text": self.text, "shards": self.shards}
            fields["shard_bytes"] = self.shard_bytes
            write_new_json(_file(folder), {**fields, **self.made_from})
            recorded = read_claim(folder)  # another process without locks may have been faster
            assert recorded is not None
        # The number and the size of the shards are not compared: text that is cut otherwise has
        # another `Corpus.fingerprint`.
        recorded_inputs, inputs = (
            {"kind": claim.kind, "text": claim.text, **claim.made_from}
            for claim in (recorded, self)
        )
        if recorded_inputs != inputs:
            difference = first_difference(recorded_inputs, inputs)
            raise StoreError(
                f"{folder}: {recorded.kind} of another {difference} are being made here; "
                "name another folder, or delete this one"
            )
        return is_known


def folder_for(address: Address) -> Path:
    """Returns the local folder in which the shards of a store at an address are made. The store has
    a claim there."""
    # The claim is part of the name: who deletes a store and begins another one at the same address
    # does not find the shards of the first one here.
    claim = asdict(cast("Claim", read_claim(address)))
    return cache_folder() / "making" / digest(str(address), json.dumps(claim, sort_keys=True))


def read_claim(folder: Path) -> Claim | None:
    """Reads the claim on a folder; None if there is none. Raises: StoreError for a damaged one."""
    if not _file(folder).is_file():
        return None
    try:
        fields = json.loads(_file(folder).read_bytes())
        first = fields.pop("kind"), fields.pop("text"), fields.pop("shards", None)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise StoreError(
            f"{_file(folder)}: this note of what is made here is damaged ({error!r}); delete it, "
            "and give the same command again: finished shards are kept"
        ) from error
    size = fields.pop("shard_bytes", None)
    return Claim(*first, fields, size)


def shard_bytes_of(folder: Path | None) -> int | None:
    """Returns the size of the shards of a store that was begun in the folder; None if there is no
    store, or its shards are not those of a corpus."""
    claim = None if folder is None else read_claim(path_of(folder))
    return None if claim is None else claim.shard_bytes


def check_shard_bytes(corpus: Corpus, folder: Path) -> None:
    """Checks the size of the shards of a store that was begun in the folder, because shards of
    another size have other texts, and the text would be blamed.
    Raises: StoreError, with the option to set, if the store has another text and another size."""
    claim = read_claim(folder)
    size = None if claim is None else claim.shard_bytes
    if claim and size and claim.text != corpus.fingerprint and size != corpus.shard_bytes:
        raise StoreError(
            f"{folder}: its {claim.kind} are in shards of {size:,} bytes of text (--shard_bytes "
            f"{size}), not of {corpus.shard_bytes:,}; give that size, or omit --shard_bytes, and "
            "what is there is kept; or name another folder"
        )


def first_difference(actual: dict[str, Any], expected: dict[str, Any], whose: str = "now") -> str:
    """Names the first field that differs, with both values. `whose`: the word for the expected
    one."""
    key = next(key for key in {**actual, **expected} if actual.get(key) != expected.get(key))
    return f"{key.replace('_', ' ')} ({actual.get(key)}, {whose} {expected.get(key)})"


def _file(folder: Path) -> Path:
    """Returns the file of a claim."""
    return folder / LOCKS / "made-from.json"


@dataclass(frozen=True, slots=True)
class Note:
    """A shard that a process has made."""

    entry: Entry
    """Entry of the shard in the manifest to come."""
    ended: float
    """Time at which the shard was finished, in seconds since 1970."""
    seconds: float
    """Seconds that making the shard took."""
    origin: str
    """`origin_of` the shard."""


class Notes:
    """The notes of this process, a line of JSON each."""

    def __init__(self, folder: Path) -> None:
        # A file of its own for each process: on a network file system, lines that several machines
        # append to one file may be torn.
        self._path = folder / MAKING / f"{secrets.token_hex(8)}.jsonl"

    def add(self, entry: Entry, seconds: float, origin: str) -> None:
        """Notes a shard that is in its place. A lost note costs reading the shard."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Note(entry, time.time(), seconds, origin))) + "\n")


def read_notes(folder: Path) -> Iterator[Note]:
    """Yields the notes of all processes."""
    for path in sorted((folder / MAKING).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # else its process was killed, or is writing it
                fields = json.loads(line)
                yield Note(**{**fields, "entry": Entry.of(fields["entry"])})


def noted_shards(folder: Path) -> dict[str, Note]:
    """Returns the note of each shard that is as it was when it was noted, by name. A shard that was
    made twice with different bytes is not among them: which bytes are there is not known."""
    notes_by_name: dict[str, list[Note]] = {}
    for note in read_notes(folder):
        # Two machines may have made a shard at the same time; the last bits of losses may differ
        # then.
        notes_by_name.setdefault(note.entry.name, []).append(note)
    return {
        name: note
        for name, (*earlier, note) in notes_by_name.items()
        if all(other.entry == note.entry for other in earlier)
        and note.entry.is_there(note.entry.file(folder))
    }


def origin_of(shard: Description) -> str:
    """Hashes what is equal in every shard of a store: kind, version and inputs."""
    return digest(json.dumps([shard.kind, shard.version, shard.made_from], sort_keys=True))


_FLAT = 1000
"""A store of more shards has a folder for each thousand of them."""


def shard_name(number: int, count: int) -> str:
    """Returns the name of shard `number` of a store of `count` shards: its path without the
    suffix."""
    name = f"shard-{number:05d}"
    return name if count <= _FLAT else f"{number // 1000:03d}/{name}"


def named_shards(corpus: Corpus) -> dict[str, CorpusShard]:
    """Returns the shards of a corpus by their names in a store."""
    count = len(corpus.shards)
    return {shard_name(number, count): shard for number, shard in enumerate(corpus.shards)}


def shard_file(folder: Path, name: str) -> Path:
    """Returns the path of a shard of this name."""
    return folder / f"{name}.arrow"


def existing(folder: Path, names: Sequence[str]) -> set[str]:
    """Returns the names of the shards that exist, from lists of the files."""
    if isinstance(folder, Address):
        there = folder.sizes()
        return {name for name in names if f"{name}.arrow" in there}
    # One listing for each folder instead of a question for each of many thousands of shards.
    paths = {name: shard_file(folder, name) for name in names}
    files: dict[Path, set[str]] = {}
    for parent in {path.parent for path in paths.values()}:
        if parent.is_dir():
            with os.scandir(parent) as entries:
                files[parent] = {entry.name for entry in entries}
    return {name for name, path in paths.items() if path.name in files.get(path.parent, ())}


_RECENT = 600.0
"""Seconds over which the speed is measured."""


def state_of(corpus: Corpus, folder: Path, kind: StoreKind) -> dict[str, Any]:
    """Reports how far the store of a corpus in a folder is. It may be of any teacher or student.

    Returns: shards and bytes of text, all and those that are done; how many shards processes are
        making (those with a part, `--shards I/N`, hold no locks and are not counted); and, if a
        shard was finished in the last ten minutes, the speed of all processes and the seconds left.
        At an address, only what is published is known.
    Raises: StoreError if the folder contains a store of another text, or of another kind.
    """
    shards = named_shards(corpus)
    there = existing(folder, list(shards))
    if not _is_of(corpus, folder, kind, there):
        raise StoreError(
            f"{folder}: contains another store than {kind.kind} of {corpus.name}; name the corpus "
            "and --shard_bytes with which it was begun"
        )
    sizes = {name: shard.text_bytes for name, shard in shards.items()}
    done = sum(sizes[name] for name in there)
    # The locks of an address are in the cache of the machine that makes its shards.
    local = () if isinstance(folder, Address) else {*shards} - there
    state: dict[str, Any] = {
        "store": str(folder),
        "finished": (folder / MANIFEST).is_file(),
        "shards": len(shards),
        "shards_done": len(there),
        "shards_under_way": sum(is_locked(name, folder) for name in local),
        "text_bytes": corpus.text_bytes,
        "text_bytes_done": done,
    }
    if (speed := _bytes_per_second(sizes, folder)) is not None:
        state["text_bytes_per_second"] = round(speed)
        state["seconds_left"] = round((corpus.text_bytes - done) / speed)
    return state


def _is_of(corpus: Corpus, folder: Path, kind: StoreKind, there: set[str]) -> bool:
    """Compares the text of the manifest, of the claim, or of the first shard that is there."""
    claim = read_claim(folder)
    # The surest evidence first: the manifest names the text of every shard, the claim that of the
    # corpus, and a shard only its own.
    if (folder / MANIFEST).is_file():
        entries = Manifest.load(folder, kind).shards
        return [entry.text_hash for entry in entries] == [
            shard.text_hash for shard in corpus.shards
        ]
    if claim is not None:
        return (claim.kind, claim.text) == (kind.kind, corpus.fingerprint)
    if not there:
        return True
    name = min(there)
    path, expected = shard_file(folder, name), named_shards(corpus)[name]
    # Windows does not remove a file that is still mapped, as the shard's is until it is collected.
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        if isinstance(path, Address):
            path.get(copy := Path(scratch, path.name))
            path = copy
        shard = Shard(path).description
    return (shard.kind, shard.text_hash) == (kind.kind, expected.text_hash)


def _bytes_per_second(text_bytes: dict[str, int], folder: Path) -> float | None:
    """Computes the bytes of text per second of all processes; None if no shard with text was
    finished recently."""
    now = time.time()
    recent = [note for note in read_notes(folder) if note.ended > now - _RECENT]
    if not recent:
        return None
    began = min(note.ended - note.seconds for note in recent)
    made = {note.entry.name for note in recent}
    # Work on the shards that began earlier counts as if it had been done in the last ten minutes.
    seconds = max(1e-3, now - max(began, now - _RECENT))
    return sum(text_bytes.get(name, 0) for name in made) / seconds or None
