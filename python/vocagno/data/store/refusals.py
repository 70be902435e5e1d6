"""Documents whose tokens cannot be placed in their text: a store leaves them out and names them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocagno.data.store.shards import Description, Shard, StoreError
from vocagno.errors import require
from vocagno.system.files import appearing

REPORT = "refused.jsonl"
"""File of a store that names the documents it omits, the first 1,000 of them: a line each with
`place`, `why` and, of a corpus, `document` (its number)."""
MAX_REFUSED = 0.001
"""Default of `data.max_refused`."""
REFUSED = "refused_documents"
"""Their count in a shard; a shard that leaves nothing out has none."""
_AT_LEAST = 10
_NAMED = 1_000


class RefusalLimit:
    """Counts the documents that a store omits, and stops above the limit."""

    def __init__(self, folder: Path | str, documents: int, share: float) -> None:
        """Args:
        folder: of the store, or the name of something else.
        documents: number of documents of the whole store.
        share: `data.max_refused`: 0 allows none, another share at least ten documents.
        Raises: ConfigError for a share that is not in [0, 1].
        """
        require(0 <= share <= 1, f"max_refused must be in [0, 1], got {share}")
        self._folder, self._documents, self._share = folder, documents, share
        self._most = max(_AT_LEAST, int(share * documents)) if share else 0
        self._count = 0

    def add(self, shard: Description) -> None:
        """Counts a shard of a store that is being made. Raises: StoreError as `check`."""
        self._count += len(shard.refused)
        for _, place, why in shard.refused[:1]:
            self.check(self._count, f"One is {place}: {why}")

    def check(self, count: int, which: str = f"{REPORT} there names them") -> None:
        """Raises: StoreError if these are too many."""
        if count > self._most:
            allowed = f"{self._share:.2%} or {_AT_LEAST}" if self._share else "none"
            raise StoreError(
                f"{self._folder}: the tokens of {count:,} of {self._documents:,} documents cannot "
                f"be placed in their text, and max_refused allows {allowed}. {which}. Fix or "
                "remove these documents, use another tokenizer, or raise max_refused "
                "(data.max_refused of a run, --max_refused of a command); what is made is kept"
            )


def write_report(folder: Path, shards: Sequence[tuple[str, dict[str, int]]]) -> None:
    """Writes the report of a store, if it leaves something out.

    Args: shards: name and counts of each, in order.
    """
    entries: list[dict[str, Any]] = []
    before = 0
    for name, counts in shards:
        if REFUSED in counts and len(entries) < _NAMED:
            found = Shard(folder / f"{name}.arrow").description.refused
            entries += [
                {"document": before + row, "place": at, "why": why} for row, at, why in found
            ]
        before += counts["documents"]
    write_entries(folder, entries)


def write_entries(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Writes the report, the first 1,000 of these lines; removes it if there are none."""
    path = folder / REPORT
    if not entries:
        path.unlink(missing_ok=True)
        return
    with appearing(path) as file:
        for entry in entries[:_NAMED]:
            file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())


def say_omitted(folder: Path, documents: int, refused: int) -> None:
    """Says what a store omits, if there is something."""
    if refused:
        print(
            f"{folder}: omitted {refused:,} of {documents:,} documents, whose tokens cannot be "
            f"placed in their text; {REPORT} there names them",
            file=sys.stderr,
        )
