"""Makes a store from a corpus, shard by shard, with any number of processes, and finishes it."""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vocagno.data.corpus import Corpus, CorpusShard
from vocagno.data.store.format import (
    MANIFEST,
    REFUSED,
    REPORT,
    Entry,
    Manifest,
    RefusalLimit,
    StoreKind,
    entry_of,
    write_report,
)
from vocagno.data.store.remote import gather, publish
from vocagno.data.store.shards import MAKING, Description, Shard, StoreError
from vocagno.data.store.state import (
    Claim,
    Note,
    Notes,
    check_shard_bytes,
    existing,
    first_difference,
    folder_for,
    named_shards,
    noted_shards,
    origin_of,
    read_claim,
    shard_file,
    shard_name,
)
from vocagno.system.addresses import Address, path_of
from vocagno.system.files import digest
from vocagno.system.progress import Progress
from vocagno.system.shared_work import LOCKS, exclusively, share


@dataclass(frozen=True, slots=True)
class MakeResult:
    """Counts of what all processes have added to a store since this process began."""

    shards: int
    tokens: int
    seconds: float

    def as_dict(self) -> dict[str, float]:
        """Returns the counts as the last line of a command prints them."""
        return {
            "shards_made": self.shards,
            "seconds": round(self.seconds, 2),
            "tokens_per_second": round(self.tokens / self.seconds if self.tokens else 0.0, 1),
        }


class Tally(AbstractContextManager["Tally"]):
    """Counts shards as they are found or made, by this process or another."""

    def __init__(
        self, verb: str, shards: Sequence[CorpusShard], there: Sequence[CorpusShard], *, show: bool
    ) -> None:
        """Args:
        shards: what is to be there in the end.
        there: what was there before.
        """
        # The bar counts bytes of text: these are known from the start, the number of tokens is not.
        self._of_documents = sum(shard.documents for shard in shards)
        self._documents = sum(shard.documents for shard in there)
        self._bytes = sum(shard.text_bytes for shard in there)
        self._shards = self._tokens = 0
        self._began = time.monotonic()
        self._rate = 0.0
        total = sum(shard.text_bytes for shard in shards)
        self._progress = Progress(verb, total, unit="B", show=show, start=self._bytes)

    def inside(self, shard: CorpusShard, fraction: float, tokens: int) -> None:
        """Shows a fraction of a shard that is being made, and its tokens so far."""
        text_bytes = self._bytes + int(fraction * shard.text_bytes)
        documents = self._documents + int(fraction * shard.documents)
        note = f"{documents:,} of {self._of_documents:,} documents"
        # The rate shown is that of the call before: the first call for a batch of documents comes
        # when the time of all of them has passed, but only the first tokens are counted.
        note += f", {self._rate:,.0f} tokens/s" if self._rate else ""
        self._rate = (self._tokens + tokens) / max(1e-9, time.monotonic() - self._began)
        self._progress.at(text_bytes, note)

    def done(self, shard: CorpusShard, tokens: int) -> None:
        """Counts a shard that has been made since the tally began."""
        self._bytes += shard.text_bytes
        self._documents += shard.documents
        self._tokens += tokens
        self._shards += 1
        self.inside(shard, fraction=0.0, tokens=0)  # what follows has not begun

    def result(self) -> MakeResult:
        """Returns the counts until now."""
        return MakeResult(self._shards, self._tokens, time.monotonic() - self._began)

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)


def finish_store(
    folder: Path, names: Sequence[str], kind: StoreKind, text: str | None = None
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
    noted, first = noted_shards(folder), Shard(shard_file(folder, names[0])).description
    origin = origin_of(first)
    described = {
        name: _entry_and_origin(shard_file(folder, name), name, noted.get(name), kind)
        for name in names
    }
    if differing := [name for name in names if described[name][1] != origin]:
        raise _mixed_error(folder, names, differing, first)
    entries = [entry for entry, _ in described.values()]
    # The inputs may be equal although the text is not: shards of another corpus, copied here, were
    # made into a store without a word.
    if text is not None and text != digest(*(entry.text_hash for entry in entries)):
        raise StoreError(
            f"{folder}: some shards are of another text than the store; delete {folder / LOCKS} "
            "and make the store again, which names them"
        )
    write_report(folder, [(entry.name, entry.counts) for entry in entries])
    # The manifest comes last: a folder that has one is a finished store to every reader.
    manifest = Manifest(first.kind, first.version, first.made_from, entries)
    manifest.save(folder)
    for parent in {(folder / name).parent for name in names} | {folder}:
        # Another process may be removing it, and what remains does no harm.
        shutil.rmtree(parent / MAKING, ignore_errors=True)
    return manifest


def _entry_and_origin(
    path: Path, name: str, note: Note | None, kind: StoreKind
) -> tuple[Entry, str]:
    """Returns the entry of a shard and its `origin_of`, from its note where there is one. Without
    one, every row is compared with its checksum."""
    if note is not None:
        return note.entry, note.origin
    shard = kind.shard_type(path)
    shard.check(kind.row)
    return entry_of(name, shard), origin_of(shard.description)


def _mixed_error(
    folder: Path, names: Sequence[str], differing: list[str], first: Description
) -> StoreError:
    """Makes the error for shards that were made from other inputs than the first one."""
    inputs, expected = (
        {"kind": shard.kind, "version": shard.version, **shard.made_from}
        for shard in (Shard(shard_file(folder, differing[0])).description, first)
    )
    return StoreError(
        f"{folder}: {len(differing):,} of {len(names):,} shards ({_some(differing)}) were made "
        f"with another {first_difference(inputs, expected, 'the others')}; delete the wrong ones "
        f"and {LOCKS}, and make them again with the options of the others"
    )


def _some(names: Sequence[str]) -> str:
    """Joins the first five names, with dots if there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def check_files(folder: Path, manifest: Manifest) -> None:
    """Looks for the files of a finished store, and reads none.
    Raises: StoreError if some are missing or truncated."""
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
        `check_files`."""
    folder = path_of(folder)
    if (folder / MANIFEST).is_file():
        return check_files(folder, Manifest.load(folder, kind))
    claim = read_claim(folder)
    # Only the claim says how many shards there are to be; what is in the folder may lack the last
    # ones.
    if claim is None or claim.shards is None:
        raise StoreError(f"{folder}: no store is being made here in parts")
    names = [shard_name(number, claim.shards) for number in range(claim.shards)]
    there = existing(folder, names)
    if missing := [name for name in names if name not in there]:
        numbers = [name.rpartition("-")[2].lstrip("0") or "0" for name in missing]
        raise StoreError(
            f"{folder}: {len(missing):,} of {claim.shards:,} shards are missing (numbers "
            f"{_some(numbers)}); run their parts again"
        )
    here = folder_for(folder) if isinstance(folder, Address) else folder
    _finish(folder, here, names, kind, claim.text)
    if here != folder:
        shutil.rmtree(here)


def _finish(folder: Path, here: Path, names: Sequence[str], kind: StoreKind, text: str) -> None:
    """Writes the manifest of a store all of whose shards exist, at its address if it has one.
    Args: here: the local folder with the shards; `folder` itself without an address."""
    if isinstance(folder, Address):
        gather(folder, here, names, to_finish=True)
    finish_store(here, names, kind, text)
    if isinstance(folder, Address):
        # The manifest last: from then on others read the address as a finished store.
        for name in (REPORT, MANIFEST):
            if (here / name).is_file():
                (folder / name).put(here / name)


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
        """Returns the items of this part."""
        # A part ends where the next one begins, whatever `count` divides, so that no item is lost
        # or made twice by jobs that do not know each other.
        first, end = (len(items) * n // self.count for n in (self.number - 1, self.number))
        return items[first:end]


def store_key(corpus: Corpus, made_from: dict[str, Any]) -> str:
    """Computes the name of a store in the cache: a hash of its text and its other inputs."""
    return digest(corpus.fingerprint, repr(sorted(made_from.items())))


def make_store(
    corpus: Corpus,
    folder: Path,
    kind: StoreKind,
    made_from: dict[str, Any],
    make: Callable[[CorpusShard, Path, Advance], None],
    *,
    show_progress: bool,
    part: Part | None = None,
) -> MakeResult:
    """Makes the shards that a store lacks, and returns when it is complete. The others are kept.

    Args:
        folder: of the store, or an address.
        make: writes one shard to a path atomically.
        part: makes only these shards, without locks, and does not finish the store
            (`finish_parts` does). No other process may make them at the same time.
    Raises: StoreError if the folder contains shards of another text or other settings, or if more
        documents are omitted than `corpus.max_refused` allows.
    """
    folder = path_of(folder)
    limit = RefusalLimit(folder, corpus.documents, corpus.max_refused)
    check_shard_bytes(corpus, folder)
    # None, of a store that is not finished, is not equal to []. Too many refused documents are an
    # error also where nothing is left to make: the limit may be lower than in the first attempt.
    if _torn(corpus, folder, kind, made_from) == []:
        limit.check(Manifest.load(folder, kind).count(REFUSED))
        return MakeResult(0, 0, 0.0)
    is_known = _claim(corpus, folder, kind, made_from, is_alone=part is not None)
    shards = named_shards(corpus)
    names = list(shards) if part is None else list(part.of(list(shards)))
    # Everything is made in a local folder, whose name for an address follows from the claim above.
    here = folder
    if isinstance(folder, Address):
        here = folder_for(folder)
        gather(folder, here, names)
    there = existing(here, names)
    if not is_known:  # shards of something else may have been copied here
        # A part looks at one shard of the others, too: finishing compares all.
        for name in {*there, *sorted(existing(here, list(shards)))[:1]}:
            _description(here, name, shards[name], made_from)
    notes = Notes(here)
    all_shards, present = ([shards[name] for name in some] for some in (names, there))
    with Tally(kind.verb, all_shards, present, show=show_progress) as tally:

        def make_named(name: str) -> None:
            began, path, shard = time.monotonic(), shard_file(here, name), shards[name]
            # At an address a shard is in its place here only once it is uploaded. Until then it
            # waits in a folder of partial files, so that a failed upload does not cost making it a
            # second time.
            new = path if here == folder else path.parent / MAKING / path.name
            if not new.is_file():  # else publishing failed
                make(shard, new, lambda *far: tally.inside(shard, *far))
            if isinstance(folder, Address):
                publish(new, path, folder / f"{name}.arrow")
            made = Shard(path)
            notes.add(entry_of(name, made), time.monotonic() - began, origin_of(made.description))

        def report(name: str) -> None:
            # Another process may have made it, with other options: its inputs are compared as well.
            description = _description(here, name, shards[name], made_from)
            tally.done(shards[name], description.counts["tokens"])
            limit.add(description)

        missing = [name for name in names if name not in there]
        if part is not None:
            for name in missing:
                make_named(name)
                report(name)
            return tally.result()
        share(
            missing,
            here,
            done=lambda name: shard_file(here, name).is_file(),
            make=make_named,
            report=report,
            partial=MAKING,
        )
    # The processes end together. The first one writes the manifest; the others wait, and find it.
    with exclusively(MANIFEST, here):
        if not (folder / MANIFEST).is_file():
            _finish(folder, here, names, kind, corpus.fingerprint)
    # `report` saw only the shards that were made since; the manifest counts the earlier ones, too.
    limit.check(Manifest.load(folder, kind).count(REFUSED))
    return tally.result()


def _claim(
    corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any], *, is_alone: bool
) -> bool:
    """Records what is being made in the folder. Returns whether it was known before."""
    size = corpus.shard_bytes
    claim = Claim(kind.kind, corpus.fingerprint, len(corpus.shards), made_from, size)
    # Jobs with a part run where files cannot be locked, and addresses have no locks. Two of them
    # may claim at the same moment: `Claim.save` lets the first one win.
    has_locks = not (is_alone or isinstance(folder, Address))
    with exclusively(MANIFEST, folder) if has_locks else nullcontext():
        if torn := _torn(corpus, folder, kind, made_from):
            if is_alone:
                raise StoreError(
                    f"{folder}: a finished store with missing shards; run without --shards, which "
                    "makes them again"
                )
            # A partial copy, for example: the store is unfinished again.
            (folder / MANIFEST).unlink()
            for file in torn:
                file.unlink(missing_ok=True)
            print(
                f"{folder}: making {len(torn):,} missing or truncated shards again", file=sys.stderr
            )
        return claim.save(folder)


def _torn(
    corpus: Corpus, folder: Path, kind: StoreKind, made_from: dict[str, Any]
) -> list[Path] | None:
    """Lists the missing or truncated shards of a finished store; None if it is not finished.
    Raises: StoreError if the store is of another text or other inputs."""
    if not (folder / MANIFEST).is_file():
        return None
    store = Manifest.load(folder, kind)
    # This is `Corpus.fingerprint`, from the hashes in the manifest: no shard is opened.
    inputs = {"text": digest(*(entry.text_hash for entry in store.shards)), **store.made_from}
    expected = {"text": corpus.fingerprint, **made_from}
    if inputs != expected:
        raise StoreError(
            f"{folder}: contains finished {kind.kind} of another "
            f"{first_difference(inputs, expected)}; name another folder, or delete this one"
        )
    return store.torn(folder)


def _description(
    folder: Path, name: str, shard: CorpusShard, made_from: dict[str, Any]
) -> Description:
    """Reads the description of an existing shard.
    Raises: StoreError if its text or its inputs are different."""
    path = shard_file(folder, name)
    description = Shard(path).description
    inputs = {"text": description.text_hash, **description.made_from}
    expected = {"text": shard.text_hash, **made_from}
    if inputs != expected:
        # A copy has no claim, which knows the size of its shards.
        size = ""
        if description.text_hash != shard.text_hash:
            size = "; if it is the same corpus, its shards have another size: give --shard_bytes"
        raise StoreError(
            f"{path}: was made with another {first_difference(inputs, expected)}{size}; name "
            "another folder, or delete this one"
        )
    return description
