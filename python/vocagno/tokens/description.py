"""Describes the properties of a tokenizer that affect spans."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vocagno.system.terminal import in_columns
from vocagno.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from vocagno.tokens.token_spans import TokenSpans

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
    """How spans are computed with one tokenizer; `str()` gives it as text."""

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
    """What the ids lose of a text; None if they keep all of the normalised text."""
    prefix: list[str]
    """Special tokens that the tokenizer adds before a text."""
    suffix: list[str]
    """Special tokens that the tokenizer adds after a text."""
    special_tokens: list[str]
    added_tokens: int
    """Number of added tokens, including special ones."""

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        specials = " ".join(self.special_tokens[:8]) or "none"
        if more := len(self.special_tokens[8:]):
            specials += f" and {more} more"
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


def describe(
    spans: "TokenSpans", specification: dict[str, Any], vocabulary: Vocabulary, path: str
) -> TokenizerDescription:
    """Builds the description from a definition; `path` as in the description."""
    added = specification.get("added_tokens", [])
    return TokenizerDescription(
        name=spans.name,
        fingerprint=spans.fingerprint,
        model=specification["model"]["type"],
        vocabulary_size=spans.vocabulary_size,
        path=path,
        normalizer=_parts(specification.get("normalizer")),
        pre_tokenizer=_parts(specification.get("pre_tokenizer")),
        dummy_prefix=vocabulary.dummy_prefix,
        byte_fallback=bool(specification["model"].get("byte_fallback")),
        loses=spans.loses,
        prefix=[spans.token(index) or "" for index in spans.prefix_ids],
        suffix=[spans.token(index) or "" for index in spans.suffix_ids],
        special_tokens=[token["content"] for token in added if token["special"]],
        added_tokens=len(added),
    )


def _parts(part: dict[str, Any] | None) -> str | None:
    """The types of a component and its parts: `Prepend, Replace`."""
    if part is None:
        return None
    if part["type"] == "Sequence":
        inner = part.get("normalizers") or part.get("pretokenizers") or []
        return ", ".join(filter(None, map(_parts, inner))) or None
    return str(part["type"])
