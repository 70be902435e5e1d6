"""Documents of a corpus, and the checks on them."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from vocagno.errors import InputError


class CorpusError(InputError):
    """A corpus cannot be read; names file and line."""


class Document(NamedTuple):
    """One document."""

    text: str
    prompt_bytes: int = 0
    """UTF-8 bytes at the start of the text that are a prompt: read but not learnt."""


def json_document(line: bytes, where: str) -> Document:
    """The document in a line of JSON.

    Raises: CorpusError whose message begins with `where`.
    """
    try:
        entry = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(entry, dict) or ("text" not in entry and "completion" not in entry):
        raise CorpusError(
            f"{where}: expected an object with a `text`, or a `prompt` and a `completion`, got "
            f"{line[:60]!r}"
        )
    return document_of(entry, where)


def document_of(fields: dict[str, Any], where: str) -> Document:
    """The document in a record: its `text`, or its `prompt` and `completion`.

    Raises: CorpusError whose message begins with `where`.
    """
    if "text" in fields:
        return Document(_checked(fields["text"], "text", where))
    prompt = _checked(fields.get("prompt"), "prompt", where)
    completion = _checked(fields["completion"], "completion", where)
    return Document(prompt + completion, len(prompt.encode()))


def tokenizer_instead(path: Path) -> str:
    """A hint for an error if `path` is a tokenizer.json(.gz) or a folder with one; else ""."""
    try:
        if path.is_dir():
            found = (path / "tokenizer.json").is_file()
        else:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                found = b'"added_tokens"' in file.read(1024)  # it is near the beginning
    except (OSError, EOFError, zlib.error):
        return ""
    return "; this looks like a tokenizer, not a corpus" if found else ""


def _checked(text: Any, name: str, where: str) -> str:
    if not isinstance(text, str):
        raise CorpusError(f"{where}: `{name}` must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: `{name}` has a lone surrogate at character {error.start}"
        ) from error
    return text
