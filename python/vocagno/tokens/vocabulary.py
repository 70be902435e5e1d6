"""Reads the UTF-8 bytes of each id of a tokenizer from its `tokenizer.json`, and describes it.

The bytes are a hypothesis: `PieceTable.spans` compares them with every text, and where they differ
the spans come from the tokenizer's offsets.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vocagno.system.progress import in_columns

DummyPrefix = Literal["none", "prepend", "metaspace", "metaspace_first"]

_METASPACE: dict[str, DummyPrefix] = {
    "always": "metaspace",
    "first": "metaspace_first",
    "never": "none",
}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of each id, and the tokenizer's treatment of the start of a text."""

    pieces: list[bytes | None]
    """UTF-8 bytes (or a part of a character) of each id; None if the id is not in use."""
    roles: NDArray[np.int8]
    """0 for a piece, and for an added token that has the space of a dummy prefix; 1 for any other
    added token, which is in the text literally and ends a segment; 2 for a special token, which
    may also be outside the text (BOS, EOS)."""
    unknown: int | None
    """Id of the unknown token, if there is one."""
    dummy_prefix: DummyPrefix
    """The space that is added before a segment: "none"; "prepend" (always); "metaspace" (unless the
    segment starts with one); "metaspace_first" (the same, only at the start of the text)."""
    ambiguous: dict[int, "Ambiguity"]
    """The ids that do not determine their text, with the reason."""
    drops: str | None
    """A description of the characters that give no token; None if all give one. Control characters
    except the line break do not count."""
    drops_bytes: bool
    """True if bytes of text give no token unless a piece contains them."""

    @cached_property
    def special(self) -> NDArray[np.bool_]:
        """(V,) True for the ids of special tokens."""
        is_special: NDArray[np.bool_] = self.roles == 2
        return is_special

    @cached_property
    def begins_with_space(self) -> NDArray[np.bool_]:
        """(V,) True for ids whose bytes begin with a space."""
        return np.array([piece is not None and piece[:1] == b" " for piece in self.pieces], bool)

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """(V,) True for ids whose bytes are known and are not only white space."""
        return np.array([bool(piece and piece.strip()) for piece in self.pieces], np.bool_)


@dataclass(frozen=True)
class Ambiguity:
    """The reason why an id does not determine its text, and the places where it still does."""

    reason: str
    is_fine_before: bool = False
    """True if it loses nothing where only special tokens come before it."""
    is_fine_after: bool = False
    """True if it loses nothing where it and all tokens after it are special."""


def read_vocabulary(
    spec: dict[str, Any], ids: dict[str, int], normalize: Callable[[str], str] | None
) -> Vocabulary:
    """Reads the bytes of every id.

    Args:
        spec: a parsed `tokenizer.json`; the pieces of its model are not needed.
        ids: the ids of the model's pieces.
        normalize: the function of its normaliser, if it has one.
    """
    model = spec["model"]
    components = list(_components(spec))
    to_bytes = _bytes_reader(model, components)
    added = {token["id"]: token for token in spec.get("added_tokens", ())}
    size = 1 + max((*ids.values(), *added), default=-1)
    pieces: list[bytes | None] = [None] * size
    for piece, index in ids.items():
        pieces[index] = to_bytes(piece)
    roles = np.zeros(size, np.int8)
    for index, token in added.items():
        pieces[index] = token["content"].encode()
        roles[index] = 2 if token["special"] else 1
        if _has_space_of_prefix(token, normalize):
            pieces[index], roles[index] = b" " + token["content"].encode(), 0
    unknown = model["unk_id"] if "unk_id" in model else ids.get(model.get("unk_token"))
    missing = _missing_bytes(ids, model, components)
    ambiguous = {
        index: ambiguity
        for index, token in added.items()
        if (ambiguity := _ambiguity(token, normalize))
    }
    if unknown is not None and missing:
        ambiguous[unknown] = Ambiguity("stands for any text outside the vocabulary")
    return Vocabulary(
        pieces=pieces,
        roles=roles,
        unknown=unknown,
        dummy_prefix=_dummy_prefix(components),
        ambiguous=ambiguous,
        drops=None if unknown is not None else _describe_dropped(missing, components),
        drops_bytes=unknown is None and bool(missing) and _is_byte_level(components),
    )


def _has_space_of_prefix(token: dict[str, Any], normalize: Callable[[str], str] | None) -> bool:
    """Tells whether an added token includes the space of a dummy prefix.

    The tokenizer then searches for it, with a space before it, in text that is normalised as a
    whole, so it does not end a segment. transformers adds tokens to Llama's tokenizers in this way
    unless they are declared otherwise.
    """
    if normalize is None or not token.get("normalized"):
        return False
    if token["special"] or token.get("lstrip") or token.get("rstrip"):
        return False
    return normalize(token["content"]).replace("▁", " ") == f" {token['content']}"


def _ambiguity(token: dict[str, Any], normalize: Callable[[str], str] | None) -> Ambiguity | None:
    """Returns why an added token may stand for other text than its own; None if it does not."""
    content, special = token["content"], token["special"]
    sides = [side for side in ("lstrip", "rstrip") if token.get(side)]
    if sides:
        return Ambiguity(
            f"absorbs white space of the text ({' and '.join(sides)})",
            is_fine_before=special and sides == ["lstrip"],
            is_fine_after=special and sides == ["rstrip"],
        )
    if normalize is not None and token.get("normalized"):
        normalized = normalize(content).replace("▁", " ").strip()
        if normalized != content.replace("▁", " ").strip():
            return Ambiguity(f"stands for any text that is normalised to {normalized!r}")
    return None


def _is_byte_level(components: list[dict[str, Any]]) -> bool:
    """Tells whether the pieces are written in GPT-2's alphabet of bytes."""
    return any(component["type"] == "ByteLevel" for component in components)


def _missing_bytes(
    ids: dict[str, int], model: dict[str, Any], components: list[dict[str, Any]]
) -> set[int]:
    """Finds the bytes of UTF-8 that have no token of their own; all if no token is a byte."""
    if _is_byte_level(components):
        prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
        forms = {f"{a}{{}}{b}" for a in ("", prefix or "") for b in ("", suffix or "")}
        return {
            byte
            for character, byte in _BYTE_OF.items()
            if byte in _UTF8 and not any(form.format(character) in ids for form in forms)
        }
    if model.get("byte_fallback"):
        return {byte for byte in _UTF8 if f"<0x{byte:02X}>" not in ids}
    return set(_UTF8)


def _describe_dropped(missing: set[int], components: list[dict[str, Any]]) -> str | None:
    """Describes the characters that give no token in a tokenizer without an unknown token."""
    if not _is_byte_level(components):
        return "characters outside its vocabulary give no token" if missing else None
    if lost := sorted(byte for byte in missing if 0x20 <= byte < 0x7F or byte == 0x0A):
        return f"{chr(lost[0])!r} gives no token"
    # A character that loses only some of its bytes is invalid UTF-8, which `decode` detects.
    if any(byte >= 0xC2 for byte in missing) and any(0x80 <= byte < 0xC0 for byte in missing):
        return "some characters outside ASCII give no token"
    return None


def _components(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields normalizers, pre-tokenizers and decoders in order, without nesting, each with its role
    in the `tokenizer.json`."""
    pending = [(role, spec.get(role)) for role in ("decoder", "pre_tokenizer", "normalizer")]
    while pending:
        role, component = pending.pop()
        if not component:
            continue
        keys = ("normalizers", "pretokenizers", "decoders")
        inner = next((component[key] for key in keys if component.get(key)), ())
        pending.extend((role, child) for child in reversed(inner))
        if component["type"] != "Sequence":
            yield {**component, "role": role}


def _dummy_prefix(components: list[dict[str, Any]]) -> DummyPrefix:
    """Reads which space the tokenizer adds before a segment of text."""
    for component in components:
        if component["role"] == "normalizer" and component["type"] == "Prepend":
            return "prepend"
        if component["role"] == "pre_tokenizer" and component["type"] == "Metaspace":
            scheme = component.get("prepend_scheme")
            if scheme is None:  # files from before tokenizers 0.14
                scheme = "always" if component.get("add_prefix_space", True) else "never"
            return _METASPACE[scheme]
        if component["role"] == "pre_tokenizer" and component["type"] == "ByteLevel":
            return "metaspace" if component.get("add_prefix_space", True) else "none"
    return "none"


def continuing(component: dict[str, Any] | None) -> dict[str, Any] | None:
    """Changes a normaliser or pre-tokenizer of a `tokenizer.json` for text that continues another:
    it adds no space before the text, and keeps the spaces at its start."""
    match component:
        case None | {"type": "Prepend"}:
            return None
        case {"type": "Metaspace"}:
            return {**component, "prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return {**component, "add_prefix_space": False}
        case {"type": "Sequence"}:
            key = "normalizers" if "normalizers" in component else "pretokenizers"
            children = component[key]
            # WhitespaceSplit drops the spaces that Metaspace marks. Without Metaspace no piece has
            # a space, so it stays.
            if any(child["type"] == "Metaspace" for child in children):
                children = [child for child in children if child["type"] != "WhitespaceSplit"]
            return {**component, key: [child for child in map(continuing, children) if child]}
    return component


def _bytes_reader(
    model: dict[str, Any], components: list[dict[str, Any]]
) -> Callable[[str], bytes | None]:
    """Returns the function from a piece of the vocabulary to its bytes."""
    prefix = model.get("continuing_subword_prefix") or ""  # "##" of WordPiece
    suffix = model.get("end_of_word_suffix") or ""
    if _is_byte_level(components):
        return lambda piece: _from_byte_level(piece.removeprefix(prefix).removesuffix(suffix))
    marker = next(filter(None, map(_space_marker, components)), None)
    byte_fallback = bool(model.get("byte_fallback"))

    def to_bytes(piece: str) -> bytes:
        if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        piece = piece.removeprefix(prefix).removesuffix(suffix)
        return (piece.replace(marker, " ") if marker else piece).encode()

    return to_bytes


def _space_marker(component: dict[str, Any]) -> str | None:
    """Returns the character (`▁`) for a space in the pieces, if this component inserts it."""
    if component["type"] == "Metaspace":
        return str(component["replacement"])
    if component["type"] == "Replace" and component["role"] == "normalizer":
        return str(component["content"]) if component["pattern"] == {"String": " "} else None
    return None


def _byte_level_alphabet() -> dict[str, int]:
    """Makes GPT-2's alphabet: printable Latin-1 as itself, the other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(unprintable)
    }


_BYTE_OF = _byte_level_alphabet()
_UTF8 = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
"""The bytes that can occur in UTF-8."""


def _from_byte_level(piece: str) -> bytes | None:
    """Returns the bytes of a piece in GPT-2's alphabet; None if it has other characters."""
    try:
        return bytes([_BYTE_OF[character] for character in piece])
    except KeyError:  # a ByteLevel pre-tokenizer never produces a piece outside the alphabet
        return None


_PATHS = {
    "ids": "from the ids if their bytes are those of the text, else from offsets",
    "offsets": "from the tokenizer's offsets, closed",
}
_DUMMIES = {
    "none": "none",
    "prepend": "a space before every text and after every added token",
    "metaspace": "a space before every text and after every added token, unless one is there",
    "metaspace_first": "a space before every text, unless one is there",
}


@dataclass(frozen=True, slots=True)
class TokenizerDescription:
    """A description of how spans are computed with one tokenizer; `str()` gives it as text."""

    name: str
    fingerprint: str
    model: str
    """BPE, Unigram, WordPiece or WordLevel."""
    vocabulary_size: int
    path: str
    """"ids" if the spans of plain ASCII text come from the ids, else "offsets". Documents whose
    bytes differ from those of their ids use the offsets in both cases."""
    normalizer: str | None
    pre_tokenizer: str | None
    dummy_prefix: str
    """none, prepend, metaspace or metaspace_first: the space that is added before a text."""
    byte_fallback: bool
    loses: str | None
    """A description of the text that the ids lose; None if they keep all of the normalised text."""
    prefix: list[str]
    """Special tokens that the tokenizer adds before a text."""
    suffix: list[str]
    """Special tokens that the tokenizer adds after a text."""
    special_tokens: list[str]
    added_tokens: int
    """Number of added tokens, including special ones."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        specials = " ".join(self.special_tokens[:8]) or "none"
        if num_hidden := len(self.special_tokens[8:]):
            specials += f" and {num_hidden} more"
        rows = {
            "tokenizer": self.name,
            "model": self.model + (" with byte fallback" if self.byte_fallback else ""),
            "vocabulary": f"{self.vocabulary_size:,} ids, {self.added_tokens} of them added tokens",
            "spans": _PATHS[self.path],
            "normalizer": self.normalizer or "none",
            "pre-tokenizer": self.pre_tokenizer or "none",
            "dummy prefix": _DUMMIES[self.dummy_prefix],
            "ids keep the text": f"no: {self.loses}" if self.loses else "yes, as normalised",
            "added before a text": " ".join(self.prefix) or "nothing",
            "added after a text": " ".join(self.suffix) or "nothing",
            "special tokens": specials,
        }
        return in_columns(rows)


def component_types(spec: dict[str, Any], role: str) -> str | None:
    """Lists the types of the components with a role, as `Prepend, Replace`; None without any."""
    types = (part["type"] for part in _components(spec) if part["role"] == role)
    return ", ".join(types) or None
