"""Counts finished work, for the progress bar and the final summary."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vocagno.data.corpus import CorpusShard
from vocagno.system.progress import Progress


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


class Tally:
    """Counts shards as they are found or made, by this process or another."""

    def __init__(
        self, verb: str, shards: Sequence[CorpusShard], there: Sequence[CorpusShard], *, show: bool
    ) -> None:
        """Args:
        shards: what is to be there in the end.
        there: what was there before.
        """
        self._of_documents = sum(shard.documents for shard in shards)
        self._documents = sum(shard.documents for shard in there)
        self._bytes = sum(shard.text_bytes for shard in there)
        self._shards = self._tokens = 0
        self._began = time.monotonic()
        total = sum(shard.text_bytes for shard in shards)
        self._progress = Progress(verb, total, unit="B", show=show, start=self._bytes)

    def inside(self, shard: CorpusShard, fraction: float, tokens: int) -> None:
        """A fraction of a shard, and its tokens so far."""
        documents = self._documents + int(fraction * shard.documents)
        self._show(self._bytes + int(fraction * shard.text_bytes), documents, self._tokens + tokens)

    def done(self, shard: CorpusShard, tokens: int) -> None:
        """A shard that has been made since."""
        self._bytes += shard.text_bytes
        self._documents += shard.documents
        self._tokens += tokens
        self._shards += 1
        self._show(self._bytes, self._documents, self._tokens)

    def _show(self, text_bytes: int, documents: int, tokens: int) -> None:
        rate = tokens / max(1e-9, time.monotonic() - self._began)
        note = f"{documents:,} of {self._of_documents:,} documents, {rate:,.0f} tokens/s"
        self._progress.at(text_bytes, note)

    def made(self) -> Made:
        return Made(self._shards, self._tokens, time.monotonic() - self._began)

    def __enter__(self) -> "Tally":
        return self

    def __exit__(self, *what: Any) -> None:
        self._progress.__exit__(*what)
