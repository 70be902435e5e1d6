"""Text to token ids and the bytes of text that each token covers.

From the ids alone where the bytes of the ids are proved to be the bytes of the text, else from the
tokenizer's own character offsets, turned into bytes and closed; the choice is made per document.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno import _vocagno
from vocagno.arrays import as_cu_seqlens, as_ids
from vocagno.errors import InputError
from vocagno.tokenizer_description import TokenizerDescription, describe
from vocagno.tokenizer_guard import PLAIN_PROBES, check_tokenizer, refuse_collapsed
from vocagno.tokenizer_source import (
    TokenizerError,
    definition,
    find_tokenizer,
    load_definition,
    tokenizer_of_name,
)
from vocagno.vocabulary import read_vocabulary


class TextError(InputError):
    """Text that has no UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class TokenizedTexts:
    """B texts as ids and spans, one after the other."""

    ids: NDArray[np.int32]
    """(n,) token ids, without special tokens but those written in the text."""
    spans: NDArray[np.int32]
    """(n, 2) half-open `[start, end)` in UTF-8 bytes of each token's own text."""
    cu_seqlens: NDArray[np.int64]
    """(B + 1,) boundaries of the texts in `ids` and `spans`."""
    proved: NDArray[np.bool_]
    """(B,) True where the spans come from the ids, False where from the tokenizer's offsets."""

    def __len__(self) -> int:
        return len(self.cu_seqlens) - 1

    def text(self, index: int) -> slice:
        """The rows of text `index`."""
        return slice(int(self.cu_seqlens[index]), int(self.cu_seqlens[index + 1]))


class TokenSpans:
    """A tokenizer that also tells the bytes of each token.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, a transformers fast tokenizer, or a path: a
            `tokenizer.json`, the same gzip-compressed, or a folder that holds one. One that
            truncates or pads is copied without that, since it would drop text.
    Raises: TokenizerError, with the remedy, for a tokenizer without offsets or whose offsets are
        wrong on a probe (`tokenizer_guard`).
    """

    def __init__(self, tokenizer: Any) -> None:
        self.name: str
        self._tokenizer, self.name = find_tokenizer(tokenizer)
        if self._tokenizer.truncation is not None or self._tokenizer.padding is not None:
            self._tokenizer = self.tokenizer_copy()
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        self._definition = definition(self._tokenizer, self.name)
        self._vocabulary = read_vocabulary(json.loads(self._definition))
        self._table = _vocagno.PieceTable(
            self._vocabulary.pieces, self._vocabulary.roles, self._vocabulary.dummy_prefix
        )
        check_tokenizer(self._tokenizer, self._vocabulary, self.name)

    @cached_property
    def _path(self) -> str:
        """Where the spans of plain text come from: ids or offsets."""
        return "ids" if self.encode(PLAIN_PROBES).proved.all() else "offsets"

    def __repr__(self) -> str:
        size = f"vocabulary_size={self.vocabulary_size}"
        return f"TokenSpans({self.name!r}, {size}, spans_from={self._path!r})"

    @classmethod
    def from_pretrained(cls, name: str, *, gguf_file: str | None = None) -> "TokenSpans":
        """The tokenizer of a path, else of what transformers finds under a name (a folder, a hub).

        Raises: TokenizerError, saying what was tried.
        """
        return cls(tokenizer_of_name(name, gguf_file))

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id in use."""
        return len(self._table)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokenizer's definition: equal for equal tokenizers, wherever they lie."""
        return hashlib.blake2b(self._definition.encode(), digest_size=16).hexdigest()

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself puts before a text (BOS), if any."""
        return self._around[0]

    @cached_property
    def suffix_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself puts after a text (EOS), if any."""
        return self._around[1]

    @cached_property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a").ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start]), tuple(full[start + len(bare) :])
        raise TokenizerError(
            f"{self.name}: special tokens change how text is split: 'a' is {bare} without them and "
            f"{full} with them; mend the post_processor of its tokenizer.json"
        )

    def token_id(self, token: str) -> int | None:
        """Id of a token given by its string, None if there is none."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def token(self, index: int) -> str | None:
        """The string of an id, None if it is not in use.

        Raises: InputError for a negative one, or one of more than 32 bits.
        """
        if not 0 <= index < 2**32:
            raise InputError(
                f"{self.name}: id {index}: expected one from 0 to {self.vocabulary_size - 1}"
            )
        token: str | None = self._tokenizer.id_to_token(index)
        return token

    def pieces(self) -> list[bytes | None]:
        """The bytes that each id stands for (a space for `▁` or `Ġ`), None where unknown."""
        return list(self._vocabulary.pieces)

    def vocabulary(self) -> dict[str, int]:
        """Ids by their strings, added tokens included."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def tokenizer_copy(self) -> Any:
        """The `tokenizers.Tokenizer` that does the work, as a copy."""
        return load_definition(definition(self._tokenizer, self.name), self.name)

    @cached_property
    def loses(self) -> str | None:
        """What the ids do not tell of a text; None if they tell all of it, as normalised."""
        probes = [*PLAIN_PROBES, *(probe.replace(" ", "  ") for probe in PLAIN_PROBES)]
        proved = self.encode(probes).proved.tolist()
        lost = [probe for probe, is_proved in zip(probes, proved, strict=True) if not is_proved]
        return f"those of {lost[0]!r} are not its bytes" if lost else None

    def describe(self) -> TokenizerDescription:
        """How spans come about with this tokenizer: path, normaliser, dummy prefix, specials."""
        return describe(self, json.loads(self._definition), self._vocabulary, self._path)

    def encode(self, texts: Sequence[str], *, num_threads: int | None = None) -> TokenizedTexts:
        """Tokenizes B texts, without adding special tokens.

        The spans of a text cover all of it, in order; a token that stands for no text (a lone
        dummy prefix) has an empty span. Parts of one character share its bytes out where the ids
        prove the text, and share one span where offsets were needed.

        Raises: TypeError for a single string; TextError (a ValueError) for a lone surrogate, naming
            the text; TokenizerError for offsets without width or out of order.
        """
        texts = _checked_texts(texts)
        if self._tokenizer.truncation is not None or self._tokenizer.padding is not None:
            raise TokenizerError("truncation or padding was switched on after TokenSpans was made")
        ids, boundaries = _flat_ids(
            self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        )
        spans, proved = self._table.spans(ids, boundaries, texts, num_threads)
        result = TokenizedTexts(ids, spans, boundaries, proved)
        self._fill_from_offsets(result, texts)
        return result

    def _fill_from_offsets(self, result: TokenizedTexts, texts: list[str]) -> None:
        """Writes the spans of the texts that the ids alone did not prove."""
        unproved = np.flatnonzero(~result.proved).tolist()
        if not unproved:
            return
        subset = [texts[i] for i in unproved]
        encodings = self._tokenizer.encode_batch(subset, add_special_tokens=False)
        ids, boundaries = _flat_ids(encodings)
        pairs = chain.from_iterable(encoding.offsets for encoding in encodings)
        flat = np.fromiter(chain.from_iterable(pairs), np.int32, count=2 * len(ids))
        offsets = flat.reshape(-1, 2)
        for text, start, stop in zip(subset, boundaries[:-1], boundaries[1:], strict=True):
            rows = slice(start, stop)
            refuse_collapsed(ids[rows], offsets[rows], self._vocabulary, text, self.name)
        try:
            in_bytes = _vocagno.chars_to_bytes(offsets, boundaries, subset)
            closed = self._table.close(in_bytes, ids, boundaries, subset)
        except _vocagno.SpanError as error:
            raise TokenizerError(
                f"{self.name}: {error} (rows are counted over texts {unproved[:5]}..., which begin "
                f"with {subset[0][:40]!r}): its offsets are no places in order; use a current "
                "release of tokenizers, or another tokenizer.json"
            ) from error
        for i, start, stop in zip(unproved, boundaries[:-1], boundaries[1:], strict=True):
            result.spans[result.text(i)] = closed[start:stop]

    def decode(self, ids: ArrayLike, cu_seqlens: ArrayLike | None = None) -> list[str]:
        """The texts of B whole documents kept as ids, without special tokens.

        Args:
            ids: (n,) integers, documents one after the other, special tokens round them or not.
            cu_seqlens: (B + 1,) boundaries of the documents; default: one document.
        Raises: TokenizerError for a tokenizer that does not keep the text (lower-casing, WordPiece:
            the ids do not tell it), and for ids that are no whole document, naming it.
        """
        return self._decoded(*_documents(ids, cu_seqlens))[0]

    def _decoded(
        self, ids: NDArray[np.int32], boundaries: NDArray[np.int64]
    ) -> tuple[list[str], NDArray[np.int32]]:
        if lost := self.loses:
            raise TokenizerError(
                f"{self.name}: its ids do not tell the text ({lost}); keep the texts, and encode"
            )
        try:
            found, spans = self._table.decode(ids, boundaries)
        except _vocagno.SpanError as error:
            raise TokenizerError(f"{self.name}: {error}") from error
        return [self._text(text, index) for index, text in enumerate(found)], spans

    def _text(self, text: bytes, index: int) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(
                f"{self.name}: the ids of document {index} are cut inside a character "
                f"(byte {error.start} of {len(text)}); only whole documents have a text"
            ) from error

    def from_ids(
        self,
        ids: ArrayLike,
        cu_seqlens: ArrayLike | None = None,
        *,
        texts: Sequence[str] | None = None,
        num_threads: int | None = None,
    ) -> TokenizedTexts:
        """Spans of B whole documents kept as ids; nothing is tokenized.

        Args:
            ids, cu_seqlens: as for `decode`. A special token that is not written in the text gets
                an empty span.
            texts: the B documents; default: what the ids decode to.
        Returns: spans in the bytes of the texts. `proved` is False, and the spans are empty, for
            documents whose ids are not those of the given text (never without `texts`).
        Raises: as `decode`, if there are no texts; ValueError for another number of texts.
        """
        ids, boundaries = _documents(ids, cu_seqlens)
        if texts is None:
            found, spans = self._decoded(ids, boundaries)
            return TokenizedTexts(ids, spans, boundaries, np.ones(len(found), bool))
        texts = _checked_texts(texts)
        if len(texts) != len(boundaries) - 1:
            raise ValueError(f"texts: expected {len(boundaries) - 1} documents, got {len(texts)}")
        spans, proved = self._table.spans(ids, boundaries, texts, num_threads)
        return TokenizedTexts(ids, spans, boundaries, proved)


def _documents(
    ids: ArrayLike, cu_seqlens: ArrayLike | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    ids = as_ids(ids)
    boundaries = as_cu_seqlens(cu_seqlens, "cu_seqlens")
    return ids, np.array([0, len(ids)], np.int64) if boundaries is None else boundaries


def _flat_ids(encodings: Sequence[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    boundaries = np.zeros(len(encodings) + 1, np.int64)
    np.cumsum([len(encoding) for encoding in encodings], out=boundaries[1:])
    ids = np.empty(int(boundaries[-1]), np.int32)
    # `encoding.ids` is a new list of Python integers. struct copies them in a third of NumPy's time
    # (146,520 ids: 0.8 ms against 2.7), and they are half of what spans cost.
    for encoding, start in zip(encodings, boundaries.tolist(), strict=False):
        struct.pack_into(f"{len(encoding)}i", ids.data, 4 * start, *encoding.ids)
    return ids, boundaries


def _checked_texts(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError("texts: expected a list of strings, got one string")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}]: expected a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"texts[{index}]: a lone surrogate at character {error.start} has no UTF-8 bytes; "
                "it comes from text decoded wrongly, or from half of a JSON \\u pair"
            ) from error
    return texts
