"""Spells the tokens of a new vocabulary with tokens of an old one, for a model that changes its
tokenizer.

V: ids of the new vocabulary, P: old tokens of all spellings, one after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.tokens.token_spans import TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError, tokenize, unreadable

_BATCH_SIZE = 16_384
"""The number of texts that a tokenizer gets in one call; an encoding takes about 1 kB."""


@dataclass(frozen=True, slots=True, eq=False)
class Spellings:
    """The old tokens whose bytes, one after the other, are the bytes of each new token."""

    old_ids: NDArray[np.int64]
    """(P,) ids of the old tokens of all spellings."""
    weights: NDArray[np.float32]
    """(P,) the share of each old token in the bytes of the new one."""
    cu_pieces: NDArray[np.int64]
    """(V + 1,) boundaries of the new tokens' spellings in `old_ids`. A spelling is empty if the
    token has no text of its own, cannot be spelled, or is never written (`spell`)."""
    unspelled: int
    """Number of new tokens whose text the old vocabulary cannot spell."""
    never_written: int
    """Number of new tokens whose text the new tokenizer writes with another token, unless the old
    vocabulary has such a token, too."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(V,) number of old tokens that spell each new one; 0 for none."""
        return np.diff(self.cu_pieces)


def spell(new: TokenSpans, old: TokenSpans) -> Spellings:
    """Spells every token of a new vocabulary with tokens of an old one.

    A token that both vocabularies have is spelled by itself. The old tokenizer cuts any other token
    as if it were in the middle of a text: without a space before it, and with special tokens read
    as text. Bytes that are not UTF-8 (a cut character), and bytes that the tokenizer changes, are
    cut into the longest old tokens from left to right.

    Of several new tokens with the same text only the one is spelled that the new tokenizer writes.
    Vocabularies with byte fallback have `A` twice, as a character and as a byte. A second row with
    the same logit would take half of the probability of each `A`. Where the old vocabulary has such
    a second token too, of the same name, that one spells it.
    """
    new_pieces, old_pieces = new.text_pieces(), old.text_pieces()
    written = _written_ids(new, new_pieces)
    id_of_piece = _written_ids(old, old_pieces)
    old_names = old.vocabulary()
    new_names = {index: name for name, index in new.vocabulary().items()}
    duplicate_ids: dict[bytes, set[int]] = {}
    for index, piece in enumerate(old_pieces):
        if piece and id_of_piece[piece] != index:
            duplicate_ids.setdefault(piece, set()).add(index)
    longest = max(map(len, id_of_piece), default=0)
    texts = [text_of(piece or b"") for piece in new_pieces]
    ids_of_texts = ids_in_context(texts, old.continuing_tokenizer(), old.name)
    spellings: list[list[int]] = []
    unspelled = never_written = 0
    for index, (piece, ids) in enumerate(zip(new_pieces, ids_of_texts, strict=True)):
        if not piece:
            spelling = []
        elif written[piece] != index:
            same_name = old_names.get(new_names[index], -1)
            spelling = [same_name] if same_name in duplicate_ids.get(piece, ()) else []
            never_written += not spelling
        elif piece in id_of_piece:
            spelling = [id_of_piece[piece]]
        # 0xff is in no text, so that a token without bytes (the unknown one) spells nothing.
        elif b"".join(old_pieces[i] or b"\xff" for i in ids) == piece:
            spelling = ids
        else:
            spelling = _longest_first(piece, id_of_piece, longest)
            unspelled += not spelling
        spellings.append(spelling)
    sizes = np.fromiter(map(len, spellings), np.int64, len(spellings))
    flat_ids = (index for spelling in spellings for index in spelling)
    old_ids = np.fromiter(flat_ids, np.int64, int(sizes.sum()))
    old_bytes = np.array([len(piece or b"") for piece in old_pieces], np.float64)[old_ids]
    new_bytes = np.array([len(piece or b"") for piece in new_pieces], np.float64)
    return Spellings(
        old_ids=old_ids,
        weights=(old_bytes / np.repeat(new_bytes, sizes)).astype(np.float32),
        cu_pieces=np.concatenate([[0], np.cumsum(sizes)]),
        unspelled=unspelled,
        never_written=never_written,
    )


def _written_ids(spans: TokenSpans, pieces: list[bytes | None]) -> dict[bytes, int]:
    """Finds the id that a tokenizer writes for each text of its vocabulary.

    Where several ids have the text, it is the one that the tokenizer gives for that text, or the
    least one if it gives none of them as a single token.
    """
    ids_of_piece: dict[bytes, list[int]] = {}
    for index, piece in enumerate(pieces):
        if piece:
            ids_of_piece.setdefault(piece, []).append(index)
    written = {piece: ids[0] for piece, ids in ids_of_piece.items()}
    repeated = [piece for piece, ids in ids_of_piece.items() if len(ids) > 1]
    texts = [text_of(piece) for piece in repeated]
    ids_of_texts = ids_in_context(texts, spans.continuing_tokenizer(), spans.name)
    for piece, ids in zip(repeated, ids_of_texts, strict=True):
        if len(ids) == 1 and ids[0] in ids_of_piece[piece]:
            written[piece] = ids[0]
    return written


def _longest_first(piece: bytes, id_of_piece: dict[bytes, int], longest: int) -> list[int]:
    """Cuts bytes into the longest tokens from left to right; empty if some bytes fit none."""
    ids, start = [], 0
    while start < len(piece):
        stops = range(min(len(piece), start + longest), start, -1)
        stop = next((stop for stop in stops if piece[start:stop] in id_of_piece), None)
        if stop is None:
            return []
        ids.append(id_of_piece[piece[start:stop]])
        start = stop
    return ids


def ids_in_context(texts: list[str], tokenizer: Any, name: str) -> Iterator[list[int]]:
    """Yields the ids of each text by a `TokenSpans.continuing_tokenizer`, which takes it for the
    middle of a text. A text that it cannot read gets no ids."""
    for start in range(0, len(texts), _BATCH_SIZE):
        batch = texts[start : start + _BATCH_SIZE]
        try:
            encodings = tokenize(tokenizer, batch, name, with_offsets=False)
        except TokenizerError:  # it has no token for some character, and no unknown token
            for number, _ in unreadable(tokenizer, batch):
                batch[number] = ""
            encodings = tokenize(tokenizer, batch, name, with_offsets=False)
        yield from (encoding.ids for encoding in encodings)


def text_of(piece: bytes) -> str:
    """Decodes the bytes of a token; empty for a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return ""
