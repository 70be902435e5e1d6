"""The `tokenizers.Tokenizer` in whatever a caller has: an object, a file, a folder."""

import gzip
from os import PathLike
from pathlib import Path
from typing import Any

from vocagno.errors import InputError


class TokenizerError(InputError):
    """A tokenizer that cannot say which text its tokens cover."""


def find_tokenizer(source: Any) -> tuple[Any, str]:
    """The `tokenizers.Tokenizer` of a path or object, and a name for it in messages.

    Raises: TokenizerError, with the remedy, for anything that has no offsets.
    """
    if isinstance(source, str | PathLike):
        return load_definition(_read(Path(source)), str(source)), str(source)
    name = getattr(source, "name_or_path", "") or type(source).__name__
    if type(source).__name__ == "MistralCommonBackend":
        raise TokenizerError(
            f"{name}: mistral-common tokenizers give no offsets. If the folder has a "
            "tokenizer.json, pass its path; else convert the model's tokenizer to one"
        )
    fast = getattr(source, "backend_tokenizer", None) or source  # transformers wraps the fast one
    if type(fast).__module__.split(".")[0] != "tokenizers":
        raise TokenizerError(
            f"{name}: {type(source).__name__} gives no offsets (it is a slow tokenizer, or none). "
            "Pass a fast one (transformers' TokenizersBackend, a tokenizers.Tokenizer) or the path "
            "of a tokenizer.json; for a slow one, transformers' convert_slow_tokenizer makes it"
        )
    return fast, str(name)


def definition(tokenizer: Any, name: str) -> str:
    """The tokenizer.json of a tokenizer."""
    try:
        return str(tokenizer.to_str())
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(
            f"{name}: has parts written in Python, whose pieces cannot be known: {error}"
        ) from error


def load_definition(text: str, name: str) -> Any:
    """A tokenizer from the text of its tokenizer.json."""
    try:
        from tokenizers import Encoding, Tokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: pip install 'vocagno[text]'", name=error.name
        ) from error
    if not hasattr(Encoding, "offsets"):
        raise TokenizerError(
            "this release of `tokenizers` has no offsets; install a version >=0.22.1,<1"
        )
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"{name}: not a `tokenizers` definition: {error}") from error


def _read(path: Path) -> str:
    if path.is_dir():
        folder, path = path, path / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{folder}: no tokenizer.json in this folder; a slow tokenizer must first be "
                "converted to a fast one (transformers' convert_slow_tokenizer)"
            )
    if not path.is_file():
        raise TokenizerError(
            f"{path}: no such file; expected a tokenizer.json, a tokenizer.json.gz or a folder "
            "with a tokenizer.json"
        )
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json: {error}") from error
