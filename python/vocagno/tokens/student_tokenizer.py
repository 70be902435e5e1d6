"""Loads the student's tokenizer and finds the token that ends its documents."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vocagno.errors import ConfigError
from vocagno.tokens.token_spans import TokenSpans

# The end-of-document tokens of Llama 2, GPT-2 and Qwen, Llama 3, Gemma, and DeepSeek.
_USUAL_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>")


@dataclass(frozen=True, slots=True)
class StudentTokenizer:
    """The student's tokenizer and its end-of-document token."""

    spans: TokenSpans
    source: str
    """The path or name that it was loaded from."""
    eos: str
    """The text of the token that ends a document."""
    eos_id: int


def student_tokenizer(source: str, eos: str | None = None) -> StudentTokenizer:
    """Loads the student's tokenizer with its end-of-document token, by default the declared one.
    Prints a warning if that seems to end a turn of a conversation.

    Raises: ConfigError if the tokenizer neither declares such a token nor has exactly one of the
        usual ones, or if `eos` is not a token of it.
    """
    source = str(Path(source).expanduser()) if source.startswith("~") else source
    spans = TokenSpans.from_pretrained(source)
    if eos is None and (eos := _declared_eos(source)) and (warning := eos_warning(spans, eos)):
        print(f"warning: {warning}; set student.eos, or --eos of a command", file=sys.stderr)
    eos = _usual_eos(spans, source) if eos is None else eos
    index = spans.token_id(eos)
    if index is None:
        raise ConfigError(
            f"student.eos: {eos!r} is not a token of {source}; name one of its tokens"
        )
    return StudentTokenizer(spans, source, eos, index)


def eos_warning(spans: TokenSpans, eos: str) -> str | None:
    """Returns a warning if `eos` is not usual for the end of a document, and the tokenizer has a
    usual token: chat models declare the token that ends a turn. None if all is well."""
    usual = _usual_ends(spans)
    if eos in usual or not usual:
        return None
    return (
        f"every document ends in {eos!r}, which {spans.name} declares as its EOS; in a chat model "
        f"that ends a turn, and texts end in {' or '.join(map(repr, usual))}"
    )


def _declared_eos(source: str) -> str | None:
    """Returns the EOS token that a folder, or transformers, declares; None if there is none."""
    path = Path(source)
    if path.is_file():
        return None  # a bare tokenizer.json does not declare it
    if path.is_dir():
        config = path / "tokenizer_config.json"
        return _eos_token(config) if config.is_file() else None
    from transformers import AutoTokenizer

    return cast("str | None", AutoTokenizer.from_pretrained(source).eos_token) or None  # may be ""


def _eos_token(config: Path) -> str | None:
    """Reads the EOS token of a tokenizer_config.json. Raises: ConfigError for a damaged file."""
    try:
        token = json.loads(config.read_bytes()).get("eos_token")
        # transformers writes a string, or an object with the options of an added token.
        token = token["content"] if isinstance(token, dict) else token
    except (ValueError, AttributeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"{config}: not a tokenizer_config.json: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(token, str | None):
        raise ConfigError(f"{config}: eos_token: expected a token's text, got {token!r}")
    return token or None


def _usual_ends(spans: TokenSpans) -> list[str]:
    """Lists the usual end-of-document tokens that a tokenizer has."""
    return [token for token in _USUAL_EOS if spans.token_id(token) is not None]


def _usual_eos(spans: TokenSpans, source: str) -> str:
    """Returns the only usual end-of-document token of a tokenizer that declares none."""
    usual = _usual_ends(spans)
    if len(usual) != 1:
        guess = f" ({' or '.join(usual)}?)" if usual else ""
        raise ConfigError(
            f"student.eos: {source} does not declare which token ends a document{guess}; set "
            "student.eos, or --eos of a command"
        )
    return usual[0]
