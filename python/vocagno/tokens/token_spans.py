"""Converts text to token ids and the bytes of text that each token covers.

If the bytes of the ids are the bytes of the text, only the ids are used. Otherwise the spans come
from the tokenizer's own character offsets: they are converted to bytes and closed, so that text
between two tokens goes to one of them. The choice is made for each document.
"""

import hashlib
import json
import warnings
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno._vocagno import PieceTable
from vocagno.alignment.arrays import as_cu_seqlens, as_ids
from vocagno.errors import InputError
from vocagno.tokens.gguf_tokenizer import tokenizer_of_gguf
from vocagno.tokens.id_texts import IdTexts, TokenizedTexts
from vocagno.tokens.offset_spans import OffsetSpans
from vocagno.tokens.tokenizer_checks import PLAIN_PROBES, TokenPlaces, check_tokenizer
from vocagno.tokens.tokenizer_files import (
    TextError,
    Texts,
    TokenizerError,
    TokenizerSource,
    as_texts,
    flat_ids,
    ids_of_pieces,
    load_definition,
    private_tokenizer,
    tokenize,
    tokenizer_of_name,
    unreadable,
    without_vocabulary,
)
from vocagno.tokens.vocabulary import (
    TokenizerDescription,
    component_types,
    continuing,
    read_vocabulary,
)

__all__ = ["TextError", "TokenSpans", "TokenizedTexts"]

_SOME_TEXT = ("a", "0", ".", " a", "\u0430", "\u4e00")
"""Candidates for a text that gives a token, tried before the vocabulary's own pieces."""


class TokenSpans:
    """A tokenizer that also gives the bytes of each token.

    It works on a copy: later changes of the given tokenizer (truncation or padding, added tokens,
    another normaliser) have no effect on it. It can be pickled and copied, and several threads may
    use it at the same time.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, a transformers fast tokenizer, or a path: a
            `tokenizer.json`, the same gzip-compressed, or a folder that contains one. The copy
            neither truncates nor pads, since that would drop text.
    Raises: TokenizerError, with the remedy, for a tokenizer without offsets or whose offsets are
        wrong on a probe (`tokenizer_checks`), and for ids far beyond the number of tokens.
    """

    def __init__(self, tokenizer: TokenizerSource) -> None:
        self._set_up(*private_tokenizer(tokenizer))

    def _set_up(self, tokenizer: Any, definition: str, name: str, ids: dict[str, int]) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._definition = definition
        normalizer = tokenizer.normalizer
        normalize = normalizer.normalize_str if normalizer else None
        vocabulary = read_vocabulary(without_vocabulary(definition), ids, normalize)
        roles = vocabulary.roles.tolist()
        prefix, drops_bytes = vocabulary.dummy_prefix, vocabulary.drops_bytes
        table = PieceTable(vocabulary.pieces, roles, prefix, drops_bytes)
        places = TokenPlaces(tokenizer, vocabulary, table)
        self._vocabulary, self._table = vocabulary, table
        self._id_texts = IdTexts(vocabulary, table, name)
        self._offsets = OffsetSpans(tokenizer, vocabulary, table, places, name)
        check_tokenizer(tokenizer, vocabulary, places, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._definition, self.name, self._tokenizer.encode_special_tokens)

    @cached_property
    def _path(self) -> str:
        """The source of the spans of plain text: "ids" or "offsets"."""
        return "ids" if self.encode(PLAIN_PROBES).proved.all() else "offsets"

    def __repr__(self) -> str:
        size = f"vocabulary_size={self.vocabulary_size}"
        return f"TokenSpans({self.name!r}, {size}, spans_from={self._path!r})"

    @classmethod
    def from_pretrained(cls, name: str, *, gguf_file: str | None = None) -> "TokenSpans":
        """Loads the tokenizer at a path, else the one that transformers finds (folder, hub).

        Args: gguf_file: a file there, whose tokenizer is wanted.
        Raises: TokenizerError that lists what was tried; what `tokenizer_of_gguf` raises.
        """
        if gguf_file is None:
            return cls(tokenizer_of_name(name))
        try:
            return cls(tokenizer_of_gguf(name, gguf_file))
        except TokenizerError:
            raise
        except Exception as error:  # transformers and gguf raise many types of errors
            raise TokenizerError(
                f"tokenizer {name}: {gguf_file}: {type(error).__name__}: {error}"
            ) from error

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id in use."""
        return len(self._table)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokenizer's definition: equal for equal tokenizers in any location."""
        read_as_text = "\nencode_special_tokens" if self._tokenizer.encode_special_tokens else ""
        content = f"{self._definition}{read_as_text}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself adds before a text (BOS), if any."""
        return self._ids_around[0]

    @cached_property
    def suffix_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself adds after a text (EOS), if any."""
        return self._ids_around[1]

    @cached_property
    def _ids_around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the tokenizer adds before and after a text, found by encoding a text with
        them and without them."""
        text, bare = self._some_text()
        full = self._tokenizer.encode(text).ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return tuple(full[:start]), tuple(full[start + len(bare) :])
        raise TokenizerError(
            f"{self.name}: special tokens change how text is split: {text!r} is {bare} without "
            f"them and {full} with them; fix the post_processor of its tokenizer.json"
        )

    def _some_text(self) -> tuple[str, list[int]]:
        """Finds a text that gives only ordinary tokens; returns it and its ids."""
        added = self._tokenizer.get_added_tokens_decoder()
        special = {index for index, token in added.items() if token.special}
        for text in chain(_SOME_TEXT, self._tokenizer.get_vocab(with_added_tokens=False)):
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids and special.isdisjoint(ids):
                return text, ids
        raise TokenizerError(
            f"{self.name}: neither {_SOME_TEXT[0]!r} nor any piece of its vocabulary gives a "
            "token, so its prefix and suffix tokens cannot be found; use another tokenizer.json"
        )

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token string, None if there is none."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def token(self, index: int) -> str | None:
        """Returns the string of an id, None if the id is not in use.

        Raises: InputError for a negative id or one of more than 32 bits.
        """
        if not 0 <= index < 2**32:
            self._refuse_id(index)
        token: str | None = self._tokenizer.id_to_token(index)
        return token

    def _refuse_id(self, index: int) -> NoReturn:
        raise InputError(
            f"{self.name}: id {index}: expected one from 0 to {self.vocabulary_size - 1}"
        )

    def pieces(self) -> list[bytes | None]:
        """Lists the bytes of each id (a space for `▁` or `Ġ`), None if unknown."""
        return list(self._vocabulary.pieces)

    def text_pieces(self) -> list[bytes | None]:
        """Lists `pieces` with None for ids that do not stand for just their bytes: special tokens,
        the unknown token, and ids that do not determine their text."""
        vocabulary = self._vocabulary
        special = np.flatnonzero(vocabulary.special).tolist()
        without_text = {vocabulary.unknown, *vocabulary.ambiguous, *special}
        return [None if i in without_text else p for i, p in enumerate(vocabulary.pieces)]

    def line_ends(self) -> NDArray[np.bool_]:
        """Returns (V,) True for ids that contain a line break, and so end a line of text."""
        return self._line_ends.copy()  # `guided_batch` asks for each batch, and may change its own

    @cached_property
    def _line_ends(self) -> NDArray[np.bool_]:
        ends = np.array([piece is not None and b"\n" in piece for piece in self._vocabulary.pieces])
        if not ends.any():
            warnings.warn(
                f"{self.name}: no token holds a line break, so that rules of lines "
                "(guidance.window_max_loss) judge each document as one line",
                stacklevel=4,
            )
        return ends

    def vocabulary(self) -> dict[str, int]:
        """Returns the ids by their strings, including added tokens."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def tokenizer_copy(self) -> Any:
        """Copies the underlying `tokenizers.Tokenizer`."""
        return _load_tokenizer(self._definition, self.name, self._tokenizer.encode_special_tokens)

    def continuing_tokenizer(self) -> Any:
        """Makes a copy of the underlying `tokenizers.Tokenizer` for a text that continues another:
        it puts no space before the text, and reads special tokens as text."""
        tokenizer = _load_tokenizer(self._definition, self.name, encode_special_tokens=True)
        spec = without_vocabulary(self._definition)
        parts = {name: continuing(spec.get(name)) for name in ("normalizer", "pre_tokenizer")}
        # tokenizers makes components only from whole definitions, so they get an empty model.
        empty = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, **parts}
        changed = load_definition(json.dumps(empty), self.name)
        tokenizer.normalizer, tokenizer.pre_tokenizer = changed.normalizer, changed.pre_tokenizer
        return tokenizer

    @cached_property
    def loses(self) -> str | None:
        """A description of what the ids lose of a text; None if they keep the normalised text."""
        if self._vocabulary.drops:
            return self._vocabulary.drops
        # Doubled spaces show tokenizers that keep only single ones.
        probes = [*PLAIN_PROBES, *(probe.replace(" ", "  ") for probe in PLAIN_PROBES)]
        proved = self.encode(probes).proved.tolist()
        lost = [probe for probe, is_proved in zip(probes, proved, strict=True) if not is_proved]
        return f"the ids of {lost[0]!r} are not its bytes" if lost else None

    def describe(self) -> TokenizerDescription:
        """Describes how spans are computed: path, normaliser, dummy prefix, special tokens."""
        definition = without_vocabulary(self._definition)
        model, added = definition["model"], definition.get("added_tokens", [])
        return TokenizerDescription(
            name=self.name,
            fingerprint=self.fingerprint,
            model=model["type"],
            vocabulary_size=self.vocabulary_size,
            path=self._path,
            normalizer=component_types(definition, "normalizer"),
            pre_tokenizer=component_types(definition, "pre_tokenizer"),
            dummy_prefix=self._vocabulary.dummy_prefix,
            byte_fallback=bool(model.get("byte_fallback")),
            loses=self.loses,
            prefix=[self.token(index) or "" for index in self.prefix_ids],
            suffix=[self.token(index) or "" for index in self.suffix_ids],
            special_tokens=[token["content"] for token in added if token["special"]],
            added_tokens=len(added),
        )

    def encode(self, texts: Texts, *, num_threads: int | None = None) -> TokenizedTexts:
        """Tokenizes B texts, without adding special tokens.

        The spans of a text cover all of it, in order; a token without text (a lone dummy prefix)
        has an empty span. Tokens that are parts of one character divide its bytes if the spans come
        from the ids, and share one span if they come from offsets. With offsets, every token is
        compared with the text at its span.

        Args:
            texts: a list of strings, or an array of them (NumPy, pandas, pyarrow).
        Raises: TypeError for a single string and for a value that is not a string, naming it;
            TextError (a ValueError) for a lone surrogate, naming the text; TokenizerError, naming
            the text, for offsets without width, out of order or of other text, and for a text that
            the tokenizer cannot read.
        """
        texts = as_texts(texts)  # an iterator yields them only once, and an error names one of them
        tokens, refused = self.try_encode(texts, num_threads=num_threads)
        for number, reason in refused.items():
            place = f"texts[{number}], which begins with {texts[number][:40]!r}"
            raise TokenizerError(f"{self.name}: {place}: {reason}")
        return tokens

    def try_encode(
        self, texts: Texts, *, num_threads: int | None = None
    ) -> tuple[TokenizedTexts, dict[int, str]]:
        """Tokenizes B texts like `encode`, but raises no error for texts whose tokens cannot be
        placed: a corpus should not stop for one document.

        Returns: the tokens of all B texts, where a text that cannot be placed has no tokens; and
            the reason, by the number of that text.
        Raises: TypeError and TextError like `encode`.
        """
        texts, refused = as_texts(texts), dict[int, str]()
        try:
            encodings = tokenize(self._tokenizer, texts, self.name, with_offsets=False)
        except TokenizerError:
            refused = dict(unreadable(self._tokenizer, texts))
            texts = ["" if number in refused else text for number, text in enumerate(texts)]
            encodings = tokenize(self._tokenizer, texts, self.name, with_offsets=False)
        ids, boundaries = flat_ids(encodings)
        spans, proved = self._table.spans(ids, boundaries, texts, num_threads)
        result = TokenizedTexts(ids, spans, boundaries, proved)
        unproved = np.flatnonzero(~proved).tolist()
        if unproved:
            closed_spans, ends, misplaced = self._offsets.encode([texts[i] for i in unproved])
            for index, start, stop in zip(unproved, ends[:-1], ends[1:], strict=True):
                spans[result.text(index)] = closed_spans[start:stop]
            refused |= {unproved[number]: reason for number, reason in misplaced.items()}
        return result.without(refused) if refused else result, dict(sorted(refused.items()))

    @property
    def has_dummy_prefix(self) -> bool:
        """True if it puts a space before a text that has none (Llama 2, TinyLlama)."""
        return self._vocabulary.dummy_prefix != "none"

    def decode(
        self, ids: ArrayLike, cu_seqlens: ArrayLike | None = None, *, continues: bool = False
    ) -> list[str]:
        """Decodes B whole documents stored as ids to their texts, without special tokens.

        Args:
            ids: (n,) integers, concatenated documents, with or without special tokens around them.
            cu_seqlens: (B + 1,) boundaries of the documents; default: one document.
            continues: whether the ids continue others, as a response its prompt. They then start
                without a dummy prefix: a space there is in the text.
        Returns: the texts. A space at the start of a text, or behind an added token, is left to the
            tokenizer where the ids do not tell whether it was in the text (`Metaspace` adds one
            unless there is one): the returned text is without it.
        Raises: TokenizerError for a tokenizer that does not keep the text (lower-casing,
            WordPiece), for ids that do not determine their text (the unknown token, added tokens
            that absorb white space), and for ids that are not a whole document, naming document and
            token. A cut is noticed inside a character or where a dummy prefix is missing.
        """
        return self.texts_and_tokens(ids, cu_seqlens, continues=continues)[0]

    def texts_and_tokens(
        self, ids: ArrayLike, cu_seqlens: ArrayLike | None = None, *, continues: bool = False
    ) -> tuple[list[str], TokenizedTexts]:
        """Does the work of `decode` and `from_ids` in one pass. Args, Raises: see `decode`."""
        documents = self._documents_with_text(ids, cu_seqlens)
        return self._id_texts.decode(*documents, continues=continues)

    def bytes_with_dummy_prefixes(
        self, ids: ArrayLike, cu_seqlens: ArrayLike | None = None
    ) -> tuple[list[bytes], TokenizedTexts, NDArray[np.bool_]]:
        """Decodes texts that may be cut inside a character. Args, Raises: see `decode`.

        Returns: their bytes, with the spaces of dummy prefixes; their ids and spans; and (n,) True
            for tokens that begin with a space that may be a dummy prefix.
        """
        return self._id_texts.with_dummy_prefixes(*self._documents_with_text(ids, cu_seqlens))

    def _documents_with_text(
        self, ids: ArrayLike, cu_seqlens: ArrayLike | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Converts the arguments of `decode`; refuses a tokenizer that loses text."""
        documents = as_documents(ids, cu_seqlens)
        if lost := self.loses:
            raise TokenizerError(
                f"{self.name}: its ids do not determine the text ({lost}); keep the texts, and "
                "encode them"
            )
        return documents

    def is_special(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Returns (n,) True for the ids of special tokens, such as BOS and EOS.

        Raises: InputError for an id beyond the vocabulary.
        """
        ids = as_ids(ids)
        is_known = (ids >= 0) & (ids < self.vocabulary_size)
        if not is_known.all():
            self._refuse_id(int(ids[~is_known][0]))
        return self._vocabulary.special[ids]

    def from_ids(
        self,
        ids: ArrayLike,
        cu_seqlens: ArrayLike | None = None,
        *,
        texts: Texts | None = None,
        num_threads: int | None = None,
    ) -> TokenizedTexts:
        """Computes the spans of B whole documents stored as ids; nothing is tokenized.

        Args:
            ids, cu_seqlens: as for `decode`. A special token that is not written in the text gets
                an empty span.
            texts: the B documents; default: the decoded ids.
        Returns: spans in the bytes of the texts. `proved` is False, and the spans are empty, for
            documents whose ids are not those of the given text (never without `texts`).
        Raises: the errors of `decode`, without `texts`; ValueError for another number of texts.
        """
        ids, boundaries = as_documents(ids, cu_seqlens)
        if texts is None:
            return self.texts_and_tokens(ids, boundaries)[1]
        texts = as_texts(texts)
        if len(texts) != len(boundaries) - 1:
            raise ValueError(f"texts: expected {len(boundaries) - 1} documents, got {len(texts)}")
        spans, proved = self._table.spans(ids, boundaries, texts, num_threads)
        return TokenizedTexts(ids, spans, boundaries, proved)


def as_documents(
    ids: ArrayLike, cu_seqlens: ArrayLike | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Converts ids and their boundaries to arrays; without boundaries they are one document."""
    ids = as_ids(ids)
    boundaries = as_cu_seqlens(cu_seqlens, "cu_seqlens")
    return ids, np.array([0, len(ids)], np.int64) if boundaries is None else boundaries


def _load_tokenizer(definition: str, name: str, encode_special_tokens: bool) -> Any:
    """Loads a tokenizer from its definition, which does not say how special tokens are read."""
    tokenizer = load_definition(definition, name)
    tokenizer.encode_special_tokens = encode_special_tokens
    return tokenizer


def _rebuild(definition: str, name: str, encode_special_tokens: bool) -> TokenSpans:
    """Makes a `TokenSpans` from its pickled state."""
    tokenizer = _load_tokenizer(definition, name, encode_special_tokens)
    spans = TokenSpans.__new__(TokenSpans)
    spans._set_up(tokenizer, definition, name, ids_of_pieces(tokenizer, name))
    return spans
