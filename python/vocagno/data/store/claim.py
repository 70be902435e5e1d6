"""What is being made in the folder of a store, so that nothing else is made in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.data.store.shards import StoreError
from vocagno.system.files import write_new_json
from vocagno.system.shared_work import LOCKS


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
