"""Makes a store from a corpus, shard by shard, with any number of processes, and finishes it.

A claim on the folder keeps other stores out of it. Processes note the shards that they make, so the
manifest is written without reading them again.
"""

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from vocagno.data.corpus import Corpus, CorpusShard
from vocagno.data.store.format import MANIFEST, Entry, Manifest, RowShard, StoreKind, entry_of
from vocagno.data.store.refusals import REFUSED, RefusalLimit, write_report
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.data.store.tally import Made, Tally
from vocagno.system.files import digest, write_new_json
from vocagno.system.shared_work import LOCKS, exclusively, share


@dataclass(frozen=True, slots=True)
class Claim:
    """The inputs of a store."""

    kind: str
    text: str
    """`Corpus.fingerprint`."""
    shards: int | None
    """Number of shards; None in stores begun by an older release."""
    made_from: dict[str, Any]

    def save(self, folder: Path) -> bool:
        """Records the claim, unless it is there. Returns whether it was.

        Raises: StoreError if something else is being made there.
        """
        theirs = read_claim(folder)
        is_known = theirs is not None
        if theirs is None:
            fields = {"kind": self.kind, "text": self.text, "shards": self.shards}
            write_new_json(_file(folder), {**fields, **self.made_from})
            theirs = read_claim(folder)  # another process without locks may have been faster
            assert theirs is not None
        self._check(theirs, folder)
        return is_known

    def _check(self, theirs: "Claim", folder: Path) -> None:
        found, ours = (
            {"kind": one.kind, "text": one.text, **one.made_from} for one in (theirs, self)
        )
        if found != ours:
            raise StoreError(
                f"{folder}: {theirs.kind} of another {first_difference(found, ours)} are "
                "being made here; name another folder, or delete this one"
            )


def read_claim(folder: Path) -> Claim | None:
    """The claim on a folder, if there is one."""
    if not _file(folder).is_file():
        return None
    fields = json.loads(_file(folder).read_bytes())
    return Claim(fields.pop("kind"), fields.pop("text"), fields.pop("shards", None), fields)


def first_difference(found: dict[str, Any], expected: dict[str, Any], whose: str = "now") -> str:
    """The first field that differs, with both values. `whose`: the word for the expected one."""
    key = next(key for key in {**found, **expected} if found.get(key) != expected.get(key))
    return f"{key.replace('_', ' ')} ({found.get(key)}, {whose} {expected.get(key)})"


def _file(folder: Path) -> Path:
    return folder / LOCKS / "made-from.json"


@dataclass(frozen=True, slots=True)
class Note:
    """A shard that a process has made."""

    entry: Entry
    """Of the manifest to come."""
    ended: float
    """Seconds since 1970."""
    seconds: float
    """What the shard took."""
    origin: str = ""
    """`origin_of` the shard; "" in notes of older releases."""


class Notes:
    """The notes of this process, a line of JSON each."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: the store's."""
        self._path = folder / MAKING / f"{secrets.token_hex(8)}.jsonl"

    def add(self, entry: Entry, seconds: float, origin: str) -> None:
        """Notes a shard that is in its place. A lost note costs reading the shard."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Note(entry, time.time(), seconds, origin))) + "\n")


def read_notes(folder: Path) -> Iterator[Note]:
    """The notes of all processes."""
    for path in sorted((folder / MAKING).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # else its process was killed, or is writing it
                fields = json.loads(line)
                made = fields["ended"], fields["seconds"], fields.get("origin", "")
                yield Note(Entry.of(fields["entry"]), *made)


def noted_shards(folder: Path) -> dict[str, Note]:
    """The note of each shard that is as it was when it was noted, by name. A shard that was made
    twice with different bytes is not among them."""
    found: dict[str, list[Note]] = {}
    for note in read_notes(folder):
        found.setdefault(note.entry.name, []).append(note)
    return {
        name: note
        for name, (*others, note) in found.items()
        if all(other.entry == note.entry for other in others)
        and note.entry.is_there(note.entry.file(folder))
    }


def origin_of(shard: Description) -> str:
    """Hash of what is equal in every shard of a store: kind, version and inputs."""
    return digest(json.dumps([shard.kind, shard.version, shard.made_from], sort_keys=True))


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
    noted, first = noted_shards(folder), _shard_description(folder, names[0])
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
        return note.entry, note.origin or origin_of(_shard_description(folder, name))
    shard = shard_type(folder / f"{name}.arrow")
    shard.check(unit.removesuffix("s"))
    return entry_of(name, shard), origin_of(shard.description)


def _shard_description(folder: Path, name: str) -> Description:
    return Shard(folder / f"{name}.arrow").description


def _mixed(folder: Path, names: Sequence[str], others: list[str], first: Description) -> StoreError:
    """Args: others: the shards that were made from other inputs than the first one."""
    theirs, ours = (
        {"kind": one.kind, "version": one.version, **one.made_from}
        for one in (_shard_description(folder, others[0]), first)
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
            (`finish_parts` does). No other process may make them at the same time.
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
