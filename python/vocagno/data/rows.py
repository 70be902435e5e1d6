"""Packs tokenized documents into training rows of a fixed length, and stores and reads these rows.

The documents of a shard are concatenated, each as BOS (if the student's tokenizer adds one), its
tokens, EOS. A row holds `seq_len + 1` ids and the next row starts with the last of them. So every
token of a shard except the first is predicted once. The last row of a shard is padded. A row knows
which bytes of its document each token covers, and which runs of tokens (pieces) share a document.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vocagno.data.corpus import texts_hash
from vocagno.data.store.format import REFUSED, RowShard, ShardedStore, StoreKind, find_part
from vocagno.data.store.shards import (
    CodedSpans,
    Description,
    Frame,
    Lists,
    PieceSpans,
    Refused,
    StoreError,
    checksum,
    decode_spans,
    encode_spans,
    list_column,
    write_shard,
)
from vocagno.tokens.token_spans import TokenizedTexts

NUMBERED_BY_SHARD = {"documents": "numbered in each shard"}
"""Field of `made_from` in a store whose shards were made without knowing how many documents precede
them. `RowStore` numbers the documents over all shards."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as the collator takes it: `n <= seq_len + 1` tokens without padding."""

    ids: NDArray[np.int32]
    """(n,) token ids."""
    spans: NDArray[np.int32]
    """(n, 2) byte spans in the document of the token's piece; empty for BOS and EOS."""
    documents: NDArray[np.int64]
    """(P,) document of the corpus that each piece is from."""
    num_tokens: NDArray[np.int32]
    """(P,) number of tokens of each piece; their sum is n."""
    num_prompt: NDArray[np.int32]
    """(P,) number of tokens at the start of each piece that belong to a prompt: read, never
    learnt."""

    @property
    def new_bytes(self) -> NDArray[np.int64]:
        """(n,) the bytes of each token (`bytes_of_tokens`)."""
        return bytes_of_tokens(self.spans, self.num_tokens)


def bytes_of_pieces(
    spans: NDArray[np.int32], num_tokens: NDArray[np.int32]
) -> tuple[list[int], list[int]]:
    """Returns the first byte of each piece in its document, and the byte at which it ends.
    Args: as for `bytes_of_tokens`."""
    first_tokens = np.cumsum(num_tokens) - num_tokens
    first_bytes: list[int] = np.minimum.reduceat(spans[:, 0], first_tokens).tolist()
    end_bytes: list[int] = np.maximum.reduceat(spans[:, 1], first_tokens).tolist()
    return first_bytes, end_bytes


def bytes_of_tokens(
    spans: NDArray[np.int32], num_tokens: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Counts the bytes of each token, so that they add up to those of the text: a byte counts for
    the first token that covers it. Tokens with the same span, such as the parts of a character
    whose spans are from offsets, divide what it adds.

    Args:
        spans: (n, 2) byte spans of the tokens of pieces, one piece after the other.
        num_tokens: (P,) number of tokens of each piece.
    Returns: (n,) bytes; 0 for a token without text (BOS, EOS).
    """
    # Each piece is shifted by 4 GiB more, so that no piece overlaps one before it.
    offsets = np.repeat(np.arange(len(num_tokens)) << 32, num_tokens)
    start, end = spans.T + offsets
    before = np.append(0, np.maximum.accumulate(end))[:-1]
    new = np.maximum(end - np.maximum(start, before), 0)
    is_first = np.ones(len(new), bool)
    is_first[1:] = (start[1:] != start[:-1]) | (end[1:] != end[:-1])
    if is_first.all():
        return np.asarray(new, np.int64)
    first = np.flatnonzero(is_first)
    lengths = np.diff(np.append(first, len(new)))
    total, count, place = (np.repeat(values, lengths) for values in (new[first], lengths, first))
    # The first ones take what is left over.
    sizes: NDArray[np.int64] = total // count + (np.arange(len(new)) - place < total % count)
    return sizes


@dataclass(frozen=True, slots=True)
class Stream:
    """The documents of a shard as one sequence of n tokens."""

    ids: NDArray[np.int32]
    """(n,) token ids."""
    spans: NDArray[np.int32]
    """(n, 2) byte spans in the document of the token; empty for BOS and EOS."""
    documents: NDArray[np.int64]
    """(n,) document of the corpus that each token is from."""
    is_prompt: NDArray[np.bool_]
    """(n,) true for the tokens of a prompt."""


def join_documents(
    tokens: TokenizedTexts,
    first_document: int,
    prefix_ids: tuple[int, ...],
    eos_id: int,
    prompt_bytes: Sequence[int] | None = None,
    *,
    skipped: Collection[int] = (),
) -> Stream:
    """Concatenates documents, each between its BOS and EOS.

    Args:
        first_document: number of the first document in the corpus.
        prompt_bytes: length of each document's prompt in bytes. The tokens that end within it, and
            the BOS before them, are not learnt.
        skipped: documents of which nothing is in the stream.
    """
    empty = np.zeros((1, 2), np.int32)
    prefix, prefix_spans = np.array(prefix_ids, np.int32), np.repeat(empty, len(prefix_ids), axis=0)
    eos = np.array([eos_id], np.int32)
    ids, spans, sizes, prompts = [eos[:0]], [empty[:0]], [], [np.empty(0, bool)]
    for index in range(len(tokens)):
        if index in skipped:
            sizes.append(0)
            continue
        rows = tokens.text(index)
        ids += [prefix, tokens.ids[rows], eos]
        spans += [prefix_spans, tokens.spans[rows], empty]
        sizes.append(len(prefix) + rows.stop - rows.start + 1)
        first_learnt = 0
        if prompt_bytes is not None and prompt_bytes[index]:
            is_answer = tokens.spans[rows][:, 1] > prompt_bytes[index]
            # EOS is learnt in any case: a document may be a prompt with an empty completion.
            first_learnt = len(prefix) + int(np.argmax(np.append(is_answer, True)))
        prompts.append(np.arange(sizes[-1]) < first_learnt)
    documents = np.repeat(np.arange(len(tokens), dtype=np.int64) + first_document, sizes)
    return Stream(np.concatenate(ids), np.concatenate(spans), documents, np.concatenate(prompts))


def cut_rows(stream: Stream, seq_len: int) -> list[Row]:
    """Cuts a stream into rows that overlap by one token; the last one may be shorter."""
    starts = range(0, len(stream.ids) - 1, seq_len)
    return [_row(stream, slice(start, start + seq_len + 1)) for start in starts]


def document_rows(stream: Stream) -> list[Row]:
    """Makes a row of each document of a stream, of any length."""
    heads = np.flatnonzero(np.diff(stream.documents, prepend=stream.documents[:1] - 1)).tolist()
    return [_row(stream, slice(*ends)) for ends in pairwise([*heads, len(stream.ids)])]


def _row(stream: Stream, tokens: slice) -> Row:
    """Makes a row of some tokens; a piece begins where the next token is of another document."""
    documents = stream.documents[tokens]
    heads = np.flatnonzero(np.diff(documents, prepend=documents[0] - 1))
    counts = np.diff(heads, append=len(documents)).astype(np.int32)
    prompts = np.add.reduceat(stream.is_prompt[tokens], heads, dtype=np.int32)
    return Row(stream.ids[tokens], stream.spans[tokens], documents[heads], counts, prompts)


_LISTS = {
    "long_length": pa.int32(),
    "start": pa.int32(),
    "document": pa.int64(),
    "text_hash": pa.binary(16),
    "first_byte": pa.int32(),
    "num_tokens": pa.int32(),
    "num_prompt": pa.int32(),
}
"""Columns with a list for each row, and the type of its values, in the order of the checksum."""


def write_rows(
    path: Path,
    rows: list[Row],
    seq_len: int,
    vocabulary_size: int,
    hashes: list[bytes],
    first_document: int,
    made_from: dict[str, Any],
    *,
    refused: Sequence[Refused] = (),
) -> None:
    """Writes one shard of rows atomically.

    Args:
        refused: the documents without rows.
        hashes: `corpus.text_hash` of each document of the shard.
        first_document: number of the shard's first document in the corpus.
    """
    width = seq_len + 1
    ids = np.zeros((len(rows), width), np.int32)
    lengths = np.zeros((len(rows), width), np.uint8)
    text_hashes = np.frombuffer(b"".join(hashes), "V16")
    lists = []  # for each row, its lists in the order of `_LISTS`
    checks = []
    for number, row in enumerate(rows):
        first_bytes, n = _first_bytes(row), len(row.ids)
        spans = encode_spans(row.spans, PieceSpans(row.num_tokens, first_bytes))
        ids[number, :n], lengths[number, :n] = row.ids, spans.lengths
        by_piece = (
            row.documents,
            text_hashes[row.documents - first_document],
            first_bytes,
            row.num_tokens,
            row.num_prompt,
        )
        lists.append((spans.long_lengths, spans.starts, *by_piece))
        checks.append(checksum(ids[number, :n], spans.lengths, *lists[-1]))
    id_type = pa.uint16() if vocabulary_size <= 1 << 16 else pa.int32()
    columns = {
        "ids": pa.FixedSizeListArray.from_arrays(pa.array(ids.ravel()).cast(id_type), width),
        "length": pa.FixedSizeListArray.from_arrays(pa.array(lengths.ravel()), width),
    }
    for number, (name, value_type) in enumerate(_LISTS.items()):
        columns[name] = list_column([row_lists[number] for row_lists in lists], value_type)
    columns["check"] = pa.array(checks, pa.uint32())
    counts = {
        "rows": len(rows),
        "documents": len(hashes),
        "tokens": sum(len(row.ids) - 1 for row in rows),
        **({REFUSED: len(refused)} if refused else {}),
    }
    text_hash = texts_hash(hashes)
    description = Description(ROWS.kind, ROWS.version, made_from, text_hash, counts, refused)
    write_shard(path, columns, description)


def _first_bytes(row: Row) -> NDArray[np.int32]:
    """Returns the byte at which the text of each piece begins: the start of its first non-empty
    span, or 0 if all are empty."""
    stops = np.cumsum(row.num_tokens)
    filled = np.flatnonzero(row.spans[:, 1] > row.spans[:, 0])
    # The next one from the head of each piece on; the end of the row if there is none.
    nearest = np.append(filled, len(row.spans))[np.searchsorted(filled, stops - row.num_tokens)]
    has_text, first_bytes = nearest < stops, np.zeros(len(stops), np.int32)
    first_bytes[has_text] = row.spans[nearest[has_text], 0]
    return first_bytes


class RowStore(ShardedStore["RowsShard"]):
    """All rows of a prepared corpus. Reading any row costs O(seq_len).

    Raises: StoreError for a store that is missing, unfinished, damaged, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ROWS)
        entries, made_from = self.manifest.shards, self.manifest.made_from
        counts = (entry.counts["documents"] for entry in entries[:-1])
        is_numbered = not NUMBERED_BY_SHARD.items() <= made_from.items()
        # What is added to the numbers of documents in each shard.
        self._first_documents = [0] * len(entries) if is_numbered else [0, *accumulate(counts)]

    def __getitem__(self, index: int) -> Row:
        shard, row = self.locate(index)
        return shard[row]

    def _open(self, number: int) -> "RowsShard":
        shard = super()._open(number)
        shard.first_document = self._first_documents[number]
        return shard

    def documents(
        self, numbers: Iterable[int] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Reads the `corpus.text_hash` (16 bytes) and the number of tokens of each document. The
        first token of a row counts again, although it is the last one of the row before it.

        Both are zero for a document without a row: one that is omitted, or an empty one that is
        the only one in its shard.

        Args: numbers: of the shards to read, default all; both are zero for documents of others.
        """
        count = self.manifest.count("documents")
        hashes, tokens = np.zeros(count, "V16"), np.zeros(count, np.int64)
        for shard in self.shards() if numbers is None else map(self.shard, numbers):
            shard.check(ROWS.row)
            documents = shard.documents.values + shard.first_document
            hashes[documents] = shard.text_hashes.values
            np.add.at(tokens, documents, shard.num_tokens.values)
        return hashes, tokens


class RowsShard(RowShard):
    """A shard of rows. Its columns are looked up once, when it is opened."""

    def __init__(self, path: Path, frame: Frame | None = None) -> None:
        super().__init__(path, frame)
        self.first_document: int = 0
        """Number that is added to those of the documents in the file."""
        width = self.batch.schema.field("ids").type.list_size
        self._ids = self.values("ids").reshape(len(self), width)
        self._lengths = self.values("length").reshape(len(self), width)
        self._checks = self.values("check")
        self._lists = tuple(map(self.lists, _LISTS))
        self.documents: Lists
        self.text_hashes: Lists
        self.num_tokens: Lists
        _, _, self.documents, self.text_hashes, _, self.num_tokens, _ = self._lists

    def __getitem__(self, index: int) -> Row:
        row = self._row_if_whole(index)
        if row is None:
            raise StoreError(
                f"{self.path}: row {index} of this shard is damaged (its checksum differs); "
                f"delete the folder {self.path.parent} and run `vocagno prepare` again"
            )
        return row

    def is_whole(self, row: int) -> bool:
        return self._row_if_whole(row) is not None

    def is_consistent(self) -> bool:
        """Tells whether the counts of rows and tokens match the description."""
        counts = self.description.counts
        tokens = int(self.num_tokens.values.sum(dtype=np.int64)) - len(self)
        return (counts["rows"], counts["tokens"]) == (len(self), tokens)

    def _row_if_whole(self, index: int) -> Row | None:
        """Reads a row and compares it with its checksum; returns None if it is damaged."""
        # Before any list is read: a damaged offset may point outside the mapped file.
        if not all(column.is_sound(index) for column in self._lists):
            return None
        lists = [column[index] for column in self._lists]
        long_lengths, starts, documents, _, first_bytes, num_tokens, num_prompt = lists
        n = int(num_tokens.sum())
        ids = self._ids[index, :n].astype(np.int32)
        lengths = self._lengths[index, :n]
        if checksum(ids, lengths, *lists) != self._checks[index]:
            return None
        spans = decode_spans(
            CodedSpans(lengths, long_lengths, starts), PieceSpans(num_tokens, first_bytes)
        )
        return Row(ids, spans, documents + self.first_document, num_tokens, num_prompt)


ROWS = StoreKind("rows", 2, "rows", RowsShard, "preparing", "prepare")

_NONE = np.empty(0, np.int32)
EMPTY_ROW = Row(_NONE, np.empty((0, 2), np.int32), np.empty(0, np.int64), _NONE, _NONE)


class RowsWithEmpty:
    """A store of rows, followed by one empty row, which a process without a row of its own takes in
    validation."""

    def __init__(self, rows: RowStore) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) + 1

    def __getitem__(self, index: int) -> Row:
        return self.rows[index] if index < len(self.rows) else EMPTY_ROW


Piece = TypeVar("Piece", covariant=True)


class PieceSource(Protocol[Piece]):
    """A store that gives a part of a document: its text, or its scores."""

    def piece(self, document: int, first_byte: int, end_byte: int) -> Piece:
        """Reads bytes `[first_byte, end_byte)` of a document."""
        ...


class MixedRows:
    """The rows of several corpora, one corpus after the other; documents are numbered in the same
    way."""

    def __init__(self, stores: Mapping[str, RowStore]) -> None:
        """Args: stores: the rows of each corpus, by its name; all of the same length."""
        self.stores: dict[str, RowStore] = dict(stores)
        self._row_ends = list(accumulate(map(len, self.stores.values())))
        counts = (store.manifest.count("documents") for store in self.stores.values())
        self.document_ends: list[int] = list(accumulate(counts))
        """Number of documents up to and with each corpus."""

    def __len__(self) -> int:
        return self._row_ends[-1]

    def __getitem__(self, index: int) -> Row:
        corpus, row = find_part(index, self._row_ends, ROWS.unit)
        local_row = list(self.stores.values())[corpus][row]
        return replace(local_row, documents=local_row.documents + self.first_document(corpus))

    def first_document(self, corpus: int) -> int:
        """Returns the number of the first document of a corpus, given the number of the corpus."""
        return self.document_ends[corpus - 1] if corpus else 0

    def place(self, index: int) -> tuple[str, int]:
        """Returns the name of the corpus that has a row, and the row's number there."""
        corpus, row = find_part(index, self._row_ends, ROWS.unit)
        return list(self.stores)[corpus], row


class MixedPieces(Generic[Piece]):
    """The texts or scores of several corpora, whose documents are numbered by `MixedRows`."""

    def __init__(self, parts: Sequence[PieceSource[Piece]], document_ends: Sequence[int]) -> None:
        """Args:
        parts: a store of texts or scores for each corpus.
        document_ends: `MixedRows.document_ends`.
        """
        self.parts: list[PieceSource[Piece]] = list(parts)
        self._ends = list(document_ends)

    def piece(self, document: int, first_byte: int, end_byte: int) -> Piece:
        """Reads bytes `[first_byte, end_byte)` of a document from the store of its corpus."""
        part, number = find_part(document, self._ends, "documents")
        return self.parts[part].piece(number, first_byte, end_byte)
