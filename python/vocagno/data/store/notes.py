"""What processes note of the shards that they make, so that finishing a store reads no shard."""

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from vocagno.data.store.manifest import Entry
from vocagno.data.store.shards import MAKING


@dataclass(frozen=True, slots=True)
class Note:
    """A shard that a process has made."""

    entry: Entry
    """Of the manifest to come."""
    ended: float
    """Seconds since 1970."""
    seconds: float
    """What the shard took."""


class Notes:
    """The notes of this process, a line of JSON each."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: the store's."""
        self._path = folder / MAKING / f"{secrets.token_hex(8)}.jsonl"

    def add(self, entry: Entry, seconds: float) -> None:
        """Notes a shard that is in its place. A lost note costs reading the shard."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Note(entry, time.time(), seconds))) + "\n")


def read_notes(folder: Path) -> Iterator[Note]:
    """The notes of all processes."""
    for path in sorted((folder / MAKING).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # else its process was killed, or is writing it
                fields = json.loads(line)
                yield Note(Entry.of(fields["entry"]), fields["ended"], fields["seconds"])


def noted_entries(folder: Path) -> dict[str, Entry]:
    """The noted entry of each shard that is as it was when it was noted, by name. A shard that was
    made twice with different bytes is not among them."""
    found: dict[str, list[Entry]] = {}
    for note in read_notes(folder):
        found.setdefault(note.entry.name, []).append(note.entry)
    return {
        name: entry
        for name, (entry, *others) in found.items()
        if all(other == entry for other in others) and entry.is_there(entry.file(folder))
    }
