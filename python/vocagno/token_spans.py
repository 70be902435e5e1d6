"""Text to token ids and the bytes of text that each token covers.

From the ids alone where the bytes of the ids are proved to be the bytes of the text, else from the
tokenizer's own character offsets, turned into bytes and closed; the choice is made per document.
"""

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vocagno import _vocagno
from vocagno.errors import InputError
from vocagno.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence


class TokenizerError(InputError):
    """A tokenizer that cannot say which text its tokens cover."""


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
    Raises: TokenizerError, with the remedy, for a tokenizer without offsets.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = _tokenizer(tokenizer)
        if self._tokenizer.truncation is not None or self._tokenizer.padding is not None:
            self._tokenizer = self.tokenizer_copy()
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        self._specification = _definition(self._tokenizer)
        vocabulary = read_vocabulary(json.loads(self._specification))
        self._table = _vocagno.PieceTable(
            vocabulary.pieces, vocabulary.added, vocabulary.dummy_prefix
        )
        self._kinds = np.array([piece == b" " for piece in vocabulary.pieces], np.uint8)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id in use."""
        return len(self._kinds)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokenizer's definition: equal for equal tokenizers, wherever they lie."""
        return hashlib.blake2b(self._specification.encode(), digest_size=16).hexdigest()

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself puts before a text (BOS), if any."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a").ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start])
        raise TokenizerError(f"special tokens change how text is split: {bare} became {full}")

    def token_id(self, token: str) -> int | None:
        """Id of a token given by its string, None if there is none."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def token(self, index: int) -> str | None:
        """The string of an id, None if it is not in use."""
        token: str | None = self._tokenizer.id_to_token(index)
        return token

    def tokenizer_copy(self) -> Any:
        """The `tokenizers.Tokenizer` that does the work, as a copy."""
        return _load(_definition(self._tokenizer))

    def encode(self, texts: "Sequence[str]", *, num_threads: int | None = None) -> TokenizedTexts:
        """Tokenizes B texts, without adding special tokens.

        The spans of a text cover all of it, in order; a token that stands for no text (a lone
        dummy prefix) has an empty span. Parts of one character share its bytes out where the ids
        prove the text, and share one span where offsets were needed.

        Raises: TypeError for a single string; ValueError for a lone surrogate (names the text);
            SpanError for offsets out of order.
        """
        if isinstance(texts, str):
            raise TypeError("texts: expected a list of strings, got one string")
        texts = list(texts)
        _refuse_lone_surrogates(texts)
        if self._tokenizer.truncation is not None or self._tokenizer.padding is not None:
            raise TokenizerError("truncation or padding was switched on after TokenSpans was made")
        ids, boundaries = _flat_ids(
            self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        )
        spans, proved = self._table.spans(ids, boundaries, texts, num_threads)
        result = TokenizedTexts(ids, spans, boundaries, proved)
        self._fill_from_offsets(result, texts)
        return result

    def _fill_from_offsets(self, result: TokenizedTexts, texts: "list[str]") -> None:
        """Writes the spans of the texts that the ids alone did not prove."""
        unproved = np.flatnonzero(~result.proved).tolist()
        if not unproved:
            return
        subset = [texts[i] for i in unproved]
        encodings = self._tokenizer.encode_batch(subset, add_special_tokens=False)
        ids, boundaries = _flat_ids(encodings)
        offsets = np.array(
            [pair for encoding in encodings for pair in encoding.offsets], np.int32
        ).reshape(-1, 2)
        _refuse_collapsed(offsets, boundaries, subset)
        in_bytes = _vocagno.chars_to_bytes(offsets, boundaries, subset)
        closed = _vocagno.close_spans(in_bytes, self._kinds[ids], boundaries, subset)
        for i, start, stop in zip(unproved, boundaries[:-1], boundaries[1:], strict=True):
            result.spans[result.text(i)] = closed[start:stop]


def _flat_ids(encodings: "Sequence[Any]") -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    boundaries = np.zeros(len(encodings) + 1, np.int64)
    lists = [np.array(encoding.ids, np.int32) for encoding in encodings]
    np.cumsum([len(ids) for ids in lists], out=boundaries[1:])
    return np.concatenate(lists) if lists else np.empty(0, np.int32), boundaries


def _refuse_collapsed(
    offsets: NDArray[np.int32], boundaries: NDArray[np.int64], texts: "list[str]"
) -> None:
    """Refuses a tokenizer that gives no token any width; closing would shift its spans."""
    for text, start, stop in zip(texts, boundaries[:-1], boundaries[1:], strict=True):
        pairs = offsets[start:stop]
        if len(pairs) and text.strip() and (pairs[:, 0] == pairs[:, 1]).all():
            raise TokenizerError(
                f"every offset of {text[:40]!r} is empty, as in Llama-3 files from before "
                "tokenizers 0.20.1; get a newer tokenizer.json"
            )


def _refuse_lone_surrogates(texts: "list[str]") -> None:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}]: expected a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}]: a lone surrogate at character {error.start} has no UTF-8 bytes"
            ) from error


def _load(specification: str) -> Any:
    from tokenizers import Encoding, Tokenizer

    if not hasattr(Encoding, "offsets"):
        raise TokenizerError(
            "this release of `tokenizers` has no offsets; install a version >=0.22.1,<1"
        )
    try:
        return Tokenizer.from_str(specification)
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"not a `tokenizers` definition: {error}") from error


def _tokenizer(tokenizer: Any) -> Any:
    """The `tokenizers.Tokenizer` in whatever the caller has."""
    if isinstance(tokenizer, str | PathLike):
        return _load(_read_definition(Path(tokenizer)))
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers wraps the fast one
    if type(fast).__module__.split(".")[0] != "tokenizers":
        raise TokenizerError(
            f"{type(tokenizer).__name__} gives no offsets: pass a fast tokenizer "
            "(transformers' TokenizersBackend, a tokenizers.Tokenizer) or the path of its "
            "tokenizer.json"
        )
    return fast


def _definition(tokenizer: Any) -> str:
    try:
        return str(tokenizer.to_str())
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(
            f"this tokenizer has parts written in Python, whose pieces cannot be known: {error}"
        ) from error


def _read_definition(path: Path) -> str:
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{path}: no such file; expected a tokenizer.json, a tokenizer.json.gz or a folder "
            "with a tokenizer.json (a slow tokenizer must first be converted to a fast one)"
        )
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json: {error}") from error
