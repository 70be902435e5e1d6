"""Finds the `tokenizers.Tokenizer` in an object, a file or a folder, checks the texts that it gets,
and tokenizes them."""

import gzip
import json
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vocagno.errors import InputError
from vocagno.system.files import refuse_pointers

_SLOW = (
    "a slow tokenizer must first be converted to a fast one (transformers' convert_slow_tokenizer)"
)
_NOT_GGUF = (
    "name the tokenizer.json of the model that was converted, a folder that `vocagno unpack` made "
    "of the file, or teacher.gguf_file"
)
_LARGEST = 2**29
"""Size limit of a tokenizer.json in bytes; those of models have up to 40 MB."""

_MAX_UNUSED_IDS = 2**20
"""The number of unused ids that a vocabulary may have in addition to as many as are in use."""


class TokenizerError(InputError):
    """A tokenizer cannot tell which text its tokens cover."""


class FastTokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that is used."""

    def to_str(self, pretty: bool = False) -> str:
        """Returns the text of its tokenizer.json."""
        ...


class HasFastTokenizer(Protocol):
    """The part of a transformers fast tokenizer that is used."""

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` inside."""
        ...


TokenizerSource: TypeAlias = "str | PathLike[str] | FastTokenizer | HasFastTokenizer"
"""A path, a `tokenizers.Tokenizer`, or a fast tokenizer of transformers."""


def private_tokenizer(source: TokenizerSource) -> tuple[Any, str, str, dict[str, int]]:
    """Copies a `tokenizers.Tokenizer`; the copy neither truncates nor pads.

    Returns: the copy, its tokenizer.json, a name for messages, and the ids of the model's pieces.
    Raises: TokenizerError, with the remedy, for a source without offsets, and for ids far beyond
        the number of tokens."""
    if isinstance(source, str | PathLike):
        name = str(source)
        tokenizer = load_definition(_read_definition(Path(source)), name)
        ids = ids_of_pieces(tokenizer, name)
        text = None
    else:
        original, name = _find_tokenizer(source)
        ids = ids_of_pieces(original, name)
        text = definition(original, name)
        tokenizer = load_definition(text, name)
        # tokenizer.json does not contain this option.
        tokenizer.encode_special_tokens = original.encode_special_tokens
    if text is None or tokenizer.truncation is not None or tokenizer.padding is not None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        text = definition(tokenizer, name)
    return tokenizer, text, name, ids


def ids_of_pieces(tokenizer: Any, name: str) -> dict[str, int]:
    """Returns the ids of the model's pieces.
    Raises: TokenizerError for an id far beyond the number of tokens: the largest id determines
        memory and time."""
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder()
    count = len(ids) + len(added)
    limit = 2 * count + _MAX_UNUSED_IDS
    largest = max(max(ids.values(), default=0), max(added, default=0))
    if largest >= limit:
        raise TokenizerError(
            f"{name}: its largest id is {largest}, but it has {count} tokens; expected ids "
            f"below {limit}. Fix that id in its tokenizer.json"
        )
    return ids


def without_vocabulary(text: str) -> dict[str, Any]:
    """Parses a tokenizer.json that `tokenizers` wrote. For BPE and WordPiece, without the pieces
    and merges, which are nearly all of it."""
    head, _, rest = text.partition(',"vocab":{')  # inside a string the quotes would be escaped
    model = head.rpartition('"model":{"type":"')[2]
    is_last = rest.endswith("}}") and model.startswith(("BPE", "WordPiece"))
    return dict(json.loads(head + "}}" if is_last else text))


def _find_tokenizer(source: Any) -> tuple[Any, str]:
    """Finds the `tokenizers.Tokenizer` in an object; returns it and a name for messages."""
    kind = type(source).__name__
    name = str(getattr(source, "name_or_path", "") or kind)
    if kind == "MistralCommonBackend":
        raise TokenizerError(
            f"{name}: mistral-common tokenizers give no offsets. If the folder has a "
            "tokenizer.json, pass its path; else convert the model's tokenizer to one"
        )
    fast = getattr(source, "backend_tokenizer", None) or source  # transformers wraps the fast one
    if type(fast).__module__.startswith("tokenizers.implementations"):
        fast = fast._tokenizer
    if type(fast).__module__.split(".")[0] != "tokenizers":
        raise TokenizerError(
            f"{kind if name == kind else f'{name}: {kind}'} gives no offsets (it is a slow "
            "tokenizer, or not a tokenizer). Pass a fast one (transformers' TokenizersBackend, a "
            "tokenizers.Tokenizer) or the path of a tokenizer.json; transformers' "
            "convert_slow_tokenizer converts a slow one"
        )
    return fast, name


def tokenizer_of_name(name: str) -> Any:
    """Finds a source for `private_tokenizer`: a path, else what transformers loads by name.
    Raises: TokenizerError that lists what was tried."""
    path = Path(name).expanduser()
    is_file_name = name.startswith((".", "/", "~")) or name.endswith((".json", ".gz"))
    if path.is_file() or (path / "tokenizer.json").is_file():
        return path
    if is_file_name and not path.is_dir():
        return path  # reading it raises an error
    if not (path / "config.json").is_file() and any(path.glob("*.gguf")):
        raise TokenizerError(f"tokenizer {name}: a folder of GGUF files; {_NOT_GGUF}")
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        if path.exists():
            return path  # reading it raises an error that names what is missing
        raise TokenizerError(
            f"tokenizer {name}: no such file or folder; finding it on the hub needs "
            "transformers: pip install transformers, or name a tokenizer.json"
        ) from error
    if not path.exists():
        print(f"tokenizer {name}: no file or folder here; asking the hub", file=sys.stderr)
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # it raises many types of errors for a wrong name or file
        raise TokenizerError(
            f"tokenizer {name}: no tokenizer.json(.gz), no folder with one, and transformers "
            f"cannot load it: {type(error).__name__}: {error}"
        ) from error


def definition(tokenizer: Any, name: str) -> str:
    """Returns the tokenizer.json of a tokenizer."""
    try:
        return str(tokenizer.to_str())
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(
            f"{name}: has parts written in Python, whose pieces are unknown: {error}"
        ) from error


def load_definition(text: str, name: str) -> Any:
    """Makes a tokenizer from the text of its tokenizer.json."""
    try:
        from tokenizers import Encoding, Tokenizer
    except ModuleNotFoundError as error:
        message = f"{error}: pip install '.[text]' in the checkout"
        raise ModuleNotFoundError(message, name=error.name) from error
    if not hasattr(Encoding, "offsets"):
        raise TokenizerError(
            "this release of `tokenizers` has no offsets; install a version >=0.22.1,<1"
        )
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"{name}: not a `tokenizers` definition: {error}") from error


def _read_definition(path: Path) -> str:
    """Reads a tokenizer.json, packed or not, from a file or a folder."""
    if path.is_dir():
        folder, path = path, path / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{folder}: no tokenizer.json in this folder; {_SLOW}")
    if not path.is_file():
        raise TokenizerError(
            f"{path}: no such file; expected a tokenizer.json, a tokenizer.json.gz or a folder "
            "with a tokenizer.json"
        )
    refuse_pointers([path], TokenizerError)
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if start == b"GGUF":
                raise TokenizerError(f"{path}: a GGUF file; {_NOT_GGUF}")
            is_packed = start.startswith(b"\x1f\x8b")
            file.seek(0)
            unpacked = gzip.GzipFile(fileobj=file) if is_packed else file
            data = unpacked.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            packed = " after decompression" if is_packed else ""
            raise TokenizerError(
                f"{path}: not a tokenizer.json: it has more than {_LARGEST // 2**20} MiB{packed}"
            )
        return data.decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json: {error}") from error


def tokenize(tokenizer: Any, texts: list[str], name: str, *, with_offsets: bool) -> list[Any]:
    """Tokenizes texts to encodings, without special tokens around them.
    Raises: TokenizerError for a text that the tokenizer cannot read, naming it."""
    encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
    try:
        encodings: list[Any] = encode(texts, add_special_tokens=False)
    except Exception as error:  # `tokenizers` raises no narrower one
        number, reason = next(unreadable(tokenizer, texts), (0, str(error)))
        beginning = texts[number][:40]
        raise TokenizerError(f"{name}: texts[{number}] ({beginning!r}): {reason}") from error
    return encodings


def unreadable(tokenizer: Any, texts: list[str]) -> Iterator[tuple[int, str]]:
    """Yields the number of each text that a tokenizer cannot read, and the reason."""
    for number, text in enumerate(texts):
        try:
            tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except Exception as error:  # noqa: PERF203  # each text has its own reason
            yield (
                number,
                f"cannot be tokenized ({error}); train the tokenizer with an unknown token, or "
                "with tokens for all bytes",
            )


def flat_ids(encodings: Sequence[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Concatenates the ids of encodings; returns them and their boundaries."""
    boundaries = np.zeros(len(encodings) + 1, np.int64)
    np.cumsum([len(encoding) for encoding in encodings], out=boundaries[1:])
    ids = np.empty(int(boundaries[-1]), np.int32)
    # `encoding.ids` is a new list of Python integers. struct copies them in a third of NumPy's time
    # (146,520 ids: 0.8 ms against 2.7 ms); this is half of the cost of spans. The last boundary is
    # the end of the last encoding, where none begins.
    for encoding, start in zip(encodings, boundaries.tolist(), strict=False):
        struct.pack_into(f"{len(encoding)}i", ids.data, 4 * start, *encoding.ids)
    return ids, boundaries


class TextError(InputError):
    """Text cannot be encoded as UTF-8."""


Texts: TypeAlias = Sequence[str] | Iterable[Any]
"""B texts: a list of strings, or an array of them (NumPy, pandas, pyarrow)."""


def as_texts(texts: Texts) -> list[str]:
    """Converts texts to a list of strings. Raises: TypeError for a single string and for a value
    that is not a string, naming it; TextError for a lone surrogate, naming the text."""
    if isinstance(texts, str) or type(texts).__name__.endswith("StringScalar"):
        raise TypeError("texts: expected a list of strings, got one string")
    # Iterating over a pyarrow array would give its own scalars.
    values = texts.to_pylist() if hasattr(texts, "to_pylist") else list(texts)
    checked: list[str] = []
    for index, value in enumerate(values):
        text = value.as_py() if hasattr(value, "as_py") else value  # a scalar of pyarrow
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}]: expected a string, got {type(value).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"texts[{index}]: a lone surrogate at character {error.start} has no UTF-8 bytes; "
                "the text was decoded wrongly, or it is half of a JSON \\u pair"
            ) from error
        checked.append(text)
    return checked
