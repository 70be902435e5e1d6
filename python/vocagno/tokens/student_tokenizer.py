"""The student's tokenizer and its end-of-document token."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vocagno.errors import ConfigError
from vocagno.tokens.token_spans import TokenSpans

_USUAL_EOS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>")


@dataclass(frozen=True, slots=True)
class StudentTokenizer:
    """The student's tokenizer and its end-of-document token."""

    spans: TokenSpans
    source: str
    eos: str
    eos_id: int


def student_tokenizer(source: str, eos: str | None = None) -> StudentTokenizer:
    """The student's tokenizer with its end-of-document token, by default the declared one. Says if
    that seems to end a turn of a conversation.
    Raises: ConfigError if the tokenizer does not declare an end-of-document token."""
    source = str(Path(source).expanduser()) if source.startswith("~") else source
    spans = TokenSpans.from_pretrained(source)
    if eos is None and (eos := _declared_eos(source)) and (words := about_end(spans, eos)):
        print(f"warning: {words}; set student.eos, or --eos of a command", file=sys.stderr)
    eos = eos or _usual_eos(spans, source)
    index = spans.token_id(eos)
    if index is None:
        raise ConfigError(f"student.eos: {eos!r} is not a token of {source}")
    return StudentTokenizer(spans, source, eos, index)


def about_end(spans: TokenSpans, eos: str) -> str | None:
    """What there is to say where documents end in a token that is not usual for it, and the
    tokenizer has a usual one, as those of chat models do."""
    usual = _usual_ends(spans)
    if eos in usual or not usual:
        return None
    return (
        f"every document ends in {eos!r}, which {spans.name} declares as its EOS; in a chat model "
        f"that ends a turn, and texts end in {' or '.join(map(repr, usual))}"
    )


def _declared_eos(source: str) -> str | None:
    path = Path(source)
    if path.is_file():
        return None  # a bare tokenizer.json does not declare it
    if path.is_dir():
        declared = path / "tokenizer_config.json"
        return _eos_token(declared) if declared.is_file() else None
    from transformers import AutoTokenizer

    return cast("str | None", AutoTokenizer.from_pretrained(source).eos_token)


def _eos_token(declared: Path) -> str | None:
    """That of a tokenizer_config.json. Raises: ConfigError for a damaged one."""
    try:
        token = json.loads(declared.read_bytes()).get("eos_token")
        token = token["content"] if isinstance(token, dict) else token
    except (ValueError, AttributeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"{declared}: not a tokenizer_config.json: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(token, str | None):
        raise ConfigError(f"{declared}: eos_token: expected a token's text, got {token!r}")
    return token


def _usual_ends(spans: TokenSpans) -> list[str]:
    return [token for token in _USUAL_EOS if spans.token_id(token) is not None]


def _usual_eos(spans: TokenSpans, source: str) -> str:
    found = _usual_ends(spans)
    if len(found) != 1:
        guess = f" ({' or '.join(found)}?)" if found else ""
        raise ConfigError(
            f"student.eos: {source} does not declare which token ends a document{guess}; set "
            "student.eos, or --eos of a command"
        )
    return found[0]
