"""Teacher scores: one loss a teacher token, on byte spans, in memory-mapped shards.

A store belongs to a text and to a teacher, and to no student: any tokenizer can be aligned to it.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.shards import (
    Shard,
    ShardedStore,
    StoreError,
    checksum,
    list_column,
    write_shard,
)
from vocagno.span_codec import CodedSpans, decode_spans, encode_spans

_WHOLE = 8_192
"""Tokens of a document up to which it is read whole: finding a part would cost as much."""
_KEPT = 32
"""Long documents whose tokens' places are kept."""

KIND = "scores"
VERSION = 1
UNIT = "documents"


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """One document as the teacher read it."""

    spans: NDArray[np.int32]
    """(M, 2) half-open `[start, end)` in UTF-8 bytes of each teacher token."""
    nll: NDArray[np.float16]
    """(M,) loss of each token in nats; NaN where it has none (no token before it)."""
    first_row: int = 0
    """Tokens of the document before these, if they are a part of it."""


def write_scores(
    path: Path, hashes: list[bytes], documents: list[DocumentScores], metadata: dict[str, Any]
) -> None:
    """Writes one shard of scores, whole or not at all.

    Args:
        hashes: `corpus.text_hash` of each document.
        metadata: what the scores were made from; goes into the manifest as it is.
    """
    coded = [encode_spans(document.spans) for document in documents]
    losses = [document.nll.astype(np.float16) for document in documents]
    for text, loss, spans in zip(hashes, losses, coded, strict=True):
        if len(loss) != len(spans.lengths):
            raise ValueError(f"{len(loss)} losses for {len(spans.lengths)} spans ({text.hex()})")
    checks = [_check(*row) for row in zip(hashes, losses, coded, strict=True)]
    columns = {
        "text_hash": pa.array(hashes, pa.binary(16)),
        "nll": list_column(losses, pa.float16(), large=True),
        "length": list_column([spans.lengths for spans in coded], pa.uint8(), large=True),
        "long_length": list_column([spans.long_lengths for spans in coded], pa.int32()),
        "start": list_column([spans.starts for spans in coded], pa.int32()),
        "check": pa.array(checks, pa.uint32()),
    }
    tokens = sum(len(loss) for loss in losses)
    counts = {"documents": len(hashes), "tokens": tokens}
    write_shard(path, columns, {"kind": KIND, "version": VERSION, **metadata, **counts})


def _check(text: bytes, nll: NDArray[np.float16], spans: CodedSpans) -> int:
    return checksum(text, nll, spans.lengths, spans.long_lengths, spans.starts)


class ScoreStore(ShardedStore["_ScoreShard"]):
    """The scores of a whole corpus; a document costs O(1), wherever it stands.

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, KIND, VERSION, UNIT, _ScoreShard)
        self._edges = lru_cache(maxsize=_KEPT)(self._find_edges)

    def check_text(self, corpus_hashes: list[str], name: str) -> None:
        """Refuses a store whose shards are not of these texts (`CorpusShard.text_hash`)."""
        ours = self.text_hashes
        if ours != corpus_hashes:
            pairs = zip(ours, corpus_hashes, strict=False)
            differing = [number for number, (a, b) in enumerate(pairs) if a != b]
            place = differing[0] if differing else min(len(ours), len(corpus_hashes))
            raise StoreError(
                f"{self.folder}: these scores are of another text than {name} (they differ from "
                f"shard {place} on; {len(self)} documents are scored); run `vocagno score` on it"
            )

    def check_tokenizer(self, fingerprint: str, name: str) -> None:
        """Refuses scores that were made with another tokenizer than the teacher's."""
        ours = self.manifest.made_from["tokenizer"]
        if ours != fingerprint:
            raise StoreError(
                f"{self.folder}: these scores were made with another tokenizer (hash {ours}) than "
                f"{name} (hash {fingerprint}); name the teacher that made them, or score again"
            )

    def document(self, index: int) -> DocumentScores:
        """The scores of document `index` of the corpus, checked against their checksum."""
        nll, coded = self._row(index)
        return DocumentScores(decode_spans(coded), nll)

    def piece(self, index: int, first_byte: int, end_byte: int) -> DocumentScores:
        """The scores of the tokens that share text with `[first_byte, end_byte)` of a document, and
        of the one behind them; costs no more for a long document, once its index is made."""
        nll, coded = self._row(index)
        if len(nll) <= _WHOLE:
            return DocumentScores(decode_spans(coded), nll)
        starts, ends, empty = self._edges(index)
        first = int(np.searchsorted(ends, first_byte, side="right"))
        behind = int(np.searchsorted(starts, end_byte, side="left"))
        behind += int(np.argmin(empty[behind:])) if behind < len(empty) else 0  # one with text
        rows = slice(first, max(first, behind + 1))
        spans = np.stack([np.where(empty[rows], ends[rows], starts[rows]), ends[rows]], axis=1)
        return DocumentScores(spans, nll[rows], first)

    def _row(self, index: int) -> tuple[NDArray[np.float16], CodedSpans]:
        """Losses and coded spans as they are stored, checked the first time they are read."""
        shard, row = self.locate(index)
        nll = shard.row("nll", row)
        spans = CodedSpans(
            shard.row("length", row), shard.row("long_length", row), shard.row("start", row)
        )
        if not shard.is_checked[row]:
            if _check(shard.text_hashes[row].tobytes(), nll, spans) != shard.checks[row]:
                raise StoreError(
                    f"{shard.path}: document {row} of this shard is damaged (its checksum differs);"
                    " delete the shard and run `vocagno score` again"
                )
            shard.is_checked[row] = True
        return nll, spans

    def _find_edges(
        self, index: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """Starts and ends of a long document's tokens, and which are empty; an empty one (which
        covers nothing, wherever it stands) has those of the token before it, so both never
        decrease."""
        spans = decode_spans(self._row(index)[1])
        empty = spans[:, 0] >= spans[:, 1]
        starts, ends = np.maximum.accumulate(np.where(empty[:, None], 0, spans), axis=0).T
        return np.ascontiguousarray(starts), np.ascontiguousarray(ends), empty


class _ScoreShard(Shard):
    """A shard with its columns looked up once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.checks = self.values("check")
        self.is_checked = np.zeros(len(self.checks), np.bool_)
        self.text_hashes = self.values("text_hash")
        lists = ("nll", "length", "long_length", "start")
        self._lists = {name: (self.offsets(name), self.values(name)) for name in lists}

    def row(self, column: str, index: int) -> NDArray[Any]:
        """One row of a column of lists, a view."""
        offsets, values = self._lists[column]
        return values[offsets[index] : offsets[index + 1]]
