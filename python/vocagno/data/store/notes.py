"""What processes note of the shards that they make, so that finishing a store reads no shard."""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vocagno.data.store.manifest import Entry
from vocagno.data.store.shards import MAKING, Description
from vocagno.system.files import digest


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
