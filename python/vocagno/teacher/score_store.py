"""Stores of teacher scores: one loss per teacher token, with byte spans, in memory-mapped shards.

A store belongs to a text and a teacher, not to a student: any tokenizer can be aligned to it. Its
scores are matched to documents by a hash of their text.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.data.corpus import text_hash, texts_hash
from vocagno.data.rows import RowStore
from vocagno.data.store.format import MANIFEST, REFUSED, RowShard, ShardedStore, StoreKind
from vocagno.data.store.shards import (
    CodedSpans,
    Description,
    Frame,
    Lists,
    Refused,
    StoreError,
    checksum,
    decode_spans,
    encode_spans,
    list_column,
    write_shard,
)
from vocagno.system.addresses import path_of
from vocagno.teacher.candidate_frames import BLOCK_TOKENS, candidates_in, frames_of
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.windows import ROUNDING

_SHORT_DOCUMENT = BLOCK_TOKENS
"""Up to this many tokens a document is read completely: finding a part would cost as much."""
_CACHED_DOCUMENTS = 32
"""Number of long documents whose token edges are cached."""

KIND = "scores"
VERSION = 2
UNIT = "documents"


@dataclass(frozen=True, slots=True)
class DocumentScores:
    """The teacher's tokens and losses of one document."""

    spans: NDArray[np.int32]
    """(M, 2) half-open `[start, end)` in UTF-8 bytes of each teacher token."""
    nll: NDArray[np.floating[Any]]
    """(M,) loss of each token in nats, stored as float16; NaN if a token has no loss."""
    first_row: int = 0
    """Number of tokens that come before these in the document; 0 for a complete document."""
    num_unscored: int = 0
    """Number of requested tokens whose loss was NaN or infinite. (The first token of a document
    read without a BOS, and tokens without text, are not requested.) It is 0 in scores that are read
    from a store; `ScoreShard.unscored` has it."""
    missing: str = ""
    """The reason for which a document that may have text has no tokens here; else empty."""
    candidates: Candidates | None = None
    """The teacher's candidates at each token, if the store has them and they were requested."""

    @classmethod
    def none(cls, reason: str) -> "DocumentScores":
        """Makes the scores of a document that has none, for the given reason."""
        return cls(np.empty((0, 2), np.int32), np.empty(0, np.float16), missing=reason)


REFUSED_BY_TEACHER = DocumentScores.none("the teacher's tokens cannot be placed in its text")
"""The scores of a document that the teacher could not read."""


def write_scores(
    path: Path,
    hashes: list[bytes],
    documents: list[DocumentScores],
    made_from: dict[str, Any],
    *,
    refused: Sequence[Refused] = (),
    frames: list[list[bytes]] | None = None,
) -> None:
    """Writes one shard of scores atomically.

    Args:
        hashes: `corpus.text_hash` of each document.
        made_from: the inputs of the scores, apart from the texts; stored in the manifest. If it has
            `candidates`, each token of a document has that number of candidates.
        refused: the documents without tokens, because they cannot be placed in the text.
        frames: the candidates of each document, if they are already encoded (`frames_of`).
    Raises: ValueError for an infinite loss, for one that is negative by more than rounding (NaN:
        none), or for other counts of candidates.
    """
    coded_spans = [encode_spans(document.spans) for document in documents]
    losses = [document.nll.astype(np.float16) for document in documents]
    for text, loss, spans in zip(hashes, losses, coded_spans, strict=True):
        if len(loss) != len(spans.lengths):
            raise ValueError(f"{len(loss)} losses for {len(spans.lengths)} spans ({text.hex()})")
        if np.isinf(loss).any() or (loss < -ROUNDING).any():
            raise ValueError(f"an infinite or negative loss ({text.hex()})")
    unscored = np.array([document.num_unscored for document in documents], np.uint32)
    count = num_candidates(made_from)
    if frames is None:
        frames = [_frames(document, count, made_from) for document in documents]
    frame_bytes = [np.frombuffer(b"".join(document), np.uint8) for document in frames]
    sizes = [np.array(list(map(len, document)), np.int32) for document in frames]
    rows = zip(hashes, losses, coded_spans, unscored, frame_bytes, sizes, strict=True)
    checks = [_document_checksum(*row) for row in rows]
    columns = {
        "text_hash": pa.array(hashes, pa.binary(16)),
        "nll": list_column(losses, pa.float16(), large=True),
        "length": list_column([spans.lengths for spans in coded_spans], pa.uint8(), large=True),
        "long_length": list_column([spans.long_lengths for spans in coded_spans], pa.int32()),
        "start": list_column([spans.starts for spans in coded_spans], pa.int32()),
        "unscored": pa.array(unscored),
        "check": pa.array(checks, pa.uint32()),
    }
    if count:
        columns["candidates"] = list_column(frame_bytes, pa.uint8(), large=True)
        columns["candidate_sizes"] = list_column(sizes, pa.int32())
    counts = _counts(sum(map(len, losses)), unscored, len(refused))
    description = Description(KIND, VERSION, made_from, texts_hash(iter(hashes)), counts, refused)
    write_shard(path, columns, description)


def _counts(tokens: int, unscored: NDArray[Any], refused: int) -> dict[str, int]:
    """Makes the counts that a shard's description holds.
    Args: unscored: (documents,) number of unscored tokens of each. refused: number of documents."""
    return {
        "documents": len(unscored),
        "tokens": tokens,
        "unscored_documents": int((unscored > 0).sum()),
        "unscored_tokens": int(unscored.sum()),
        **({REFUSED: refused} if refused else {}),
    }


def _document_checksum(
    text: bytes,
    nll: NDArray[np.float16],
    spans: CodedSpans,
    num_unscored: np.uint32,
    *candidates: NDArray[Any],
) -> int:
    """The CRC-32 of everything that a shard stores of one document."""
    columns = (nll, spans.lengths, spans.long_lengths, spans.starts)
    return checksum(text, *columns, num_unscored.tobytes(), *candidates)


def num_candidates(made_from: dict[str, Any]) -> int:
    """The number of candidates of each token of scores with these inputs; 0 without candidates."""
    return int(made_from.get("candidates", 0))


def _frames(document: DocumentScores, count: int, made_from: dict[str, Any]) -> list[bytes]:
    """Encodes the candidates of a document, `count` for each token.
    Raises: ValueError for another number of candidates, and if they are sampled or have entropies
        where `made_from` says that they do not, or the reverse."""
    candidates, num_tokens = document.candidates, len(document.nll)
    if candidates is None and (count == 0 or num_tokens == 0):
        return []
    shape = None if candidates is None else candidates.ids.shape
    if candidates is None or shape != (num_tokens, count):
        raise ValueError(f"candidates of shape {shape}, expected {(num_tokens, count)}")
    properties = {"sampled": candidates.is_sampled, "entropy": candidates.entropy is not None}
    for name, value in properties.items():
        if num_tokens and value != made_from.get(name, False):
            raise ValueError(f"candidates: {name} is {value}, and their inputs say {not value}")
    return frames_of(candidates)


class ScoreStore(ShardedStore["ScoreShard"]):
    """The scores of a whole corpus. Finding any document costs O(1).

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path | str) -> None:
        folder = path_of(folder)
        if not (folder / MANIFEST).is_file() and any(folder.glob("*.parquet")):
            raise StoreError(f"{folder}: Parquet; `vocagno scores import` makes a store of it")
        super().__init__(folder, SCORES)
        self._edges = lru_cache(maxsize=_CACHED_DOCUMENTS)(self._find_edges)

    def is_refused(self) -> NDArray[np.bool_]:
        """(documents,) True for a document that the teacher could not read."""
        is_refused = np.zeros(len(self), np.bool_)
        for number in self.shards_with_refused():
            first = self._ends[number] - self.manifest.shards[number].counts[UNIT]
            is_refused[[first + row for row in self.shard(number).refused]] = True
        return is_refused

    def shards_with_refused(self) -> list[int]:
        """The numbers of the shards with documents that the teacher could not read."""
        entries = enumerate(self.manifest.shards)
        return [number for number, entry in entries if REFUSED in entry.counts]

    @property
    def candidates(self) -> int:
        """Number of candidates of each token; 0 if the store has none."""
        return num_candidates(self.manifest.made_from)

    @property
    def has_entropy(self) -> bool:
        """True if candidates come with the entropy of the teacher's whole distribution."""
        return bool(self.manifest.made_from.get("entropy", False))

    @property
    def is_sampled(self) -> bool:
        """True if the less likely candidates were drawn at random (`teacher.sampled`)."""
        return bool(self.manifest.made_from.get("sampled", False))

    def warning_of_pieces(self, rows: RowStore | None = None) -> str | None:
        """Warns of scores of the pieces of other rows (`vocagno score --rows`) than these.

        Args: rows: of the student that trains; None where whole documents are read.
        """
        scored = self.manifest.made_from.get("rows")
        if scored is None or (rows is not None and scored == rows.manifest.made_from):
            return None
        return (
            f"{self.folder}: the teacher has read the documents in the pieces of other rows, so "
            "its context is not the student's, and it loses more where a piece begins; score "
            "without --rows, or with the rows that train"
        )

    def document(self, index: int, *, candidates: bool = False) -> DocumentScores:
        """The scores of document `index` of the corpus. Their checksum is verified.

        Args: candidates: decodes the candidates, too.
        Raises: StoreError for a damaged document, or if the store has no candidates.
        """
        return self._whole(*self.locate(index), candidates=candidates)

    def _whole(self, shard: "ScoreShard", row: int, *, candidates: bool) -> DocumentScores:
        """The scores of a document whose place in the store is known."""
        if row in shard.refused:
            return REFUSED_BY_TEACHER
        nll = self._losses(shard, row)
        decoded = self._candidates(shard, row, slice(0, len(nll))) if candidates else None
        return DocumentScores(decode_spans(shard.coded_spans(row)), nll, candidates=decoded)

    def piece(
        self, index: int, first_byte: int, end_byte: int, *, candidates: bool = False
    ) -> DocumentScores:
        """The scores of the tokens that share text with `[first_byte, end_byte)` of a document, and
        of the token after them. The cost does not grow with the document once its edges are cached.

        Args: candidates: decodes the candidates, too.
        Raises: StoreError for a damaged document, or if the store has no candidates.
        """
        shard, row = self.locate(index)
        nll = self._losses(shard, row)
        if len(nll) <= _SHORT_DOCUMENT:
            return self._whole(shard, row, candidates=candidates)
        starts, ends, empty = self._edges(index)
        first = int(np.searchsorted(ends, first_byte, side="right"))
        following = int(np.searchsorted(starts, end_byte, side="left"))
        # Empty tokens cover nothing, so the token after the piece is the next one with text.
        following += int(np.argmin(empty[following:])) if following < len(empty) else 0
        rows = slice(first, min(max(first, following + 1), len(nll)))
        # An empty token keeps its own place in memory, but has the edges of the one before it.
        spans = np.stack([np.where(empty[rows], ends[rows], starts[rows]), ends[rows]], axis=1)
        decoded = self._candidates(shard, row, rows) if candidates else None
        return DocumentScores(spans, nll[rows], first, candidates=decoded)

    def _candidates(self, shard: "ScoreShard", row: int, rows: slice) -> Candidates:
        """Decodes the candidates of some tokens of a verified document."""
        if not self.candidates:
            raise StoreError(
                f"{self.folder}: has no candidates; `vocagno score --candidates` into another "
                "folder makes them"
            )
        data, sizes = shard.frames(row)
        decoded = candidates_in(data, sizes, len(shard.nll[row]), self.candidates, rows)
        return replace(decoded, is_sampled=self.is_sampled)

    def _losses(self, shard: "ScoreShard", row: int) -> NDArray[np.float16]:
        """The losses of a document as stored. They are verified, with the spans, when they are
        first read."""
        if not shard.is_whole_once_read(row):
            raise StoreError(
                f"{shard.path}: document {row} of this shard is damaged (its checksum differs);"
                f" `vocagno scores verify {self.folder} --discard` removes damaged shards, and"
                " `vocagno score` makes them again"
            )
        return shard.nll[row]

    def _find_edges(
        self, index: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """Starts and ends of a long document's tokens, and which tokens are empty. An empty token
        gets the edges of the token before it, so both never decrease and can be searched."""
        shard, row = self.locate(index)
        self._losses(shard, row)
        spans = decode_spans(shard.coded_spans(row))
        empty = spans[:, 0] >= spans[:, 1]
        starts, ends = np.maximum.accumulate(np.where(empty[:, None], 0, spans), axis=0).T
        return np.ascontiguousarray(starts), np.ascontiguousarray(ends), empty


class ScoreShard(RowShard):
    """The scores of a part of a corpus, in one file whose columns are looked up once."""

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        super().__init__(path, frame)
        self.text_hashes: NDArray[Any] = self.values("text_hash")
        """(documents,) 16 bytes each: `corpus.text_hash`."""
        self.nll: Lists = self.lists("nll")
        self.lengths: Lists = self.lists("length")
        self._long_lengths = self.lists("long_length")
        self._starts = self.lists("start")
        self.unscored: NDArray[Any] = self.values("unscored")
        """(documents,) number of tokens of each document whose loss was NaN or infinite."""
        self.checks: NDArray[Any] = self.values("check")
        """(documents,) CRC-32 of each document."""
        has_candidates = num_candidates(self.description.made_from) > 0
        names = ("candidates", "candidate_sizes") if has_candidates else ()
        self._frames: list[Lists] = [self.lists(name) for name in names]
        self.refused: set[int] = {document.row for document in self.description.refused}
        """The documents without tokens, because they cannot be placed in the text."""

    def coded_spans(self, row: int) -> CodedSpans:
        """The spans of a document as they are stored."""
        return CodedSpans(self.lengths[row], self._long_lengths[row], self._starts[row])

    @property
    def candidate_bytes(self) -> int:
        """Size of all encoded candidates of the shard."""
        return sum(len(column.values) for column in self._frames[:1])

    def frames(self, row: int) -> list[NDArray[Any]]:
        """The encoded frames of a document's candidates and the size of each frame in bytes; an
        empty list if the shard has no candidates."""
        return [column[row] for column in self._frames]

    def is_whole(self, row: int) -> bool:
        """Tests a document against its checksum."""
        lists = (self.nll, self.lengths, self._long_lengths, self._starts, *self._frames)
        # Damaged offsets would make the slices below reach outside their column.
        if not all(column.is_sound(row) for column in lists):
            return False
        text = self.text_hashes[row].tobytes()
        content = self.nll[row], self.coded_spans(row), self.unscored[row], *self.frames(row)
        return _document_checksum(text, *content) == int(self.checks[row])

    def is_consistent(self) -> bool:
        """Tests the counts and the hash of the description against the content of the shard."""
        counts = _counts(len(self.nll.values), self.unscored, len(self.refused))
        text_hash = texts_hash(bytes(text) for text in self.text_hashes.tolist())
        return (counts, text_hash) == (self.description.counts, self.description.text_hash)


SCORES = StoreKind(KIND, VERSION, UNIT, ScoreShard, "scoring", "score")


NOT_SCORED = DocumentScores.none("not scored")
"""The scores of a document that was not scored."""


class MatchedScores:
    """The scores of the documents in a store of rows.

    If the corpus has changed since it was scored (documents edited, moved, removed, added), each
    document is found by the hash of its text. A document without scores has no teacher tokens; nor
    has one that the teacher could not read.
    """

    def __init__(self, store: ScoreStore, rows: RowStore, candidates: bool = False) -> None:
        """Reads the shards with refused documents if the shards' hashes match, else all.
        Args: candidates: decodes the candidates of each piece, too."""
        self.store = store
        self.tokenizers: tuple[str | None, str | None] = (
            rows.manifest.made_from.get("tokenizer"),
            store.manifest.made_from.get("tokenizer"),
        )
        """`TokenSpans.fingerprint` of the student's and of the teacher's tokenizer; None for one
        that the manifests do not name."""
        self.warning: str | None = store.warning_of_pieces(rows)
        """A sentence to show; None if there is nothing to say."""
        self.text_hashes: list[str] = rows.text_hashes
        """`RowStore.text_hashes` of the rows, whose numbers of documents `piece` takes."""
        self._candidates = candidates
        self.missing_documents: int = 0
        self.refused_documents: int = 0
        """Number of documents that the teacher could not read."""
        self.missing_share: float = 0.0
        """Share of the rows' tokens that are in missing or refused documents."""
        self._places: NDArray[np.int64] | None = None  # None: documents have the same numbers
        is_same = rows.text_hashes == store.text_hashes
        if is_same and not store.shards_with_refused():
            return
        hashes, tokens = rows.documents(store.shards_with_refused() if is_same else None)
        places = np.arange(len(hashes))
        if not is_same:
            self._places = places = ScoresOfTexts(store).places(hashes)
        missing = (places < 0) & (tokens > 0)
        # The place of a missing document is -1, so it reads the last entry: not refused.
        refused = np.append(store.is_refused(), False)[places] & (tokens > 0)
        self.missing_documents, self.refused_documents = int(missing.sum()), int(refused.sum())
        # `num_tokens` counts predicted tokens, `tokens` also the first one of each row.
        num_tokens = max(1, rows.num_tokens + len(rows))
        self.missing_share = float(tokens[missing | refused].sum() / num_tokens)

    def check(self, min_coverage: float, name: str = "the corpus") -> str | None:
        """A sentence that says how much of the corpus has no scores; None if all has some.

        Args: name: of the corpus, for the sentence.
        Raises: StoreError if less than `min_coverage` of the tokens are in documents with scores.
        """
        gaps = []
        if self.missing_documents:
            gaps.append(f"{self.missing_documents:,} documents of {name} have no scores here")
        if self.refused_documents:
            gaps.append(f"the teacher could not read {self.refused_documents:,} of {name}")
        if not gaps:
            return None
        share = f"{self.missing_share:.2%} of its tokens"
        message = f"{self.store.folder}: {' and '.join(gaps)} ({share})"
        if 1 - self.missing_share < min_coverage:
            remedy = (
                "documents without scores were edited or added since the corpus was scored, or it "
                "is another corpus; run `vocagno score` on it"
                if self.missing_documents
                else "use another teacher, or lower the limit"
            )
            raise StoreError(
                f"{message}, and guidance.min_coverage is {min_coverage:.2%}: {remedy}"
            )
        return message

    def piece(self, document: int, first_byte: int, end_byte: int) -> DocumentScores:
        """The scores of the tokens that share text with `[first_byte, end_byte)` of a document of
        the rows, and of the token after them; `NOT_SCORED` for a document without scores."""
        if self._places is not None:
            document = int(self._places[document])
        if document < 0:
            return NOT_SCORED
        return self.store.piece(document, first_byte, end_byte, candidates=self._candidates)


class ScoresOfTexts:
    """The scores of texts in a store, found by the hash of the text. It takes 32 bytes of memory
    for each document, and pickles as the store's folder."""

    def __init__(self, store: ScoreStore, *, check: bool = True, candidates: bool = False) -> None:
        """Args:
            check: reads and verifies all documents now. Otherwise only their hashes are read, and a
                document is verified together with its hash when it is first looked up.
            candidates: decodes the candidates of each document, too.
        Raises: StoreError for a damaged document if `check` is set.
        """
        self.store = store
        self._check = check
        self._candidates = candidates
        hashes = []
        for shard in store.shards():
            if check:
                shard.check("document")
            hashes.append(shard.text_hashes)
        self._hashes: NDArray[np.uint64] = np.concatenate(hashes).view(np.uint64).reshape(-1, 2)
        self._order = np.argsort(self._hashes[:, 0], kind="stable")
        self._sorted = self._hashes[self._order, 0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the folder, and the manifest's hash, which tells stores in one folder apart where
        pickles are compared (a cache keyed by them)."""
        manifest = (self.store.folder / MANIFEST).read_bytes()
        manifest_hash = hashlib.blake2b(manifest).hexdigest()
        options = self._check, self._candidates
        return _open_scores, (str(self.store.folder), manifest_hash, *options)

    def places(self, hashes: NDArray[Any]) -> NDArray[np.int64]:
        """The first document with each hash of 16 bytes (`corpus.text_hash`), or -1."""
        # Sorted by the first eight bytes. Of equal ones the first is compared, so two documents
        # that share them by chance (one in 2 ** 64) would lose the second, never mix them up.
        words = hashes.view(np.uint64).reshape(-1, 2)
        if not len(self._order):
            return np.full(len(words), -1, np.int64)
        nearest = np.searchsorted(self._sorted, words[:, 0])
        places = self._order[np.minimum(nearest, len(self._order) - 1)]
        return np.where((self._hashes[places] == words).all(1), places, -1)

    def find(self, texts: Sequence[str]) -> list[DocumentScores]:
        """The scores of each text, or `NOT_SCORED`. Raises: StoreError for damaged scores."""
        places = self.places(np.frombuffer(b"".join(map(text_hash, texts)), "V16"))
        return [
            NOT_SCORED if place < 0 else self.store.document(place, candidates=self._candidates)
            for place in places.tolist()
        ]


def _open_scores(folder: str, _manifest_hash: str, check: bool, candidates: bool) -> ScoresOfTexts:
    """Opens the store that `ScoresOfTexts.__reduce__` pickled."""
    return ScoresOfTexts(ScoreStore(Path(folder)), check=check, candidates=candidates)
