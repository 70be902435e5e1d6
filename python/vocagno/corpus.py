"""A corpus: JSON Lines (plain or .gz) or a folder of them, cut into shards of some megabytes.

Every line is `{"text": ...}`; other fields are ignored. Blank lines hold no document.
"""

import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from vocagno.errors import InputError
from vocagno.files import digest, write_json

SHARD_BYTES = 2_000_000
"""Text of a shard, the unit of work that processes share and that a killed run repeats."""

_SUFFIXES = (".jsonl", ".jsonl.gz")
_INDEX_VERSION = 1


class CorpusError(InputError):
    """A corpus that cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class CorpusShard:
    """Some consecutive documents of one file."""

    name: str
    file: str
    line: int
    """Lines of the file before this shard."""
    offset: int
    """Bytes of the (uncompressed) file before this shard."""
    num_lines: int
    first_document: int
    documents: int
    text_bytes: int
    text_hash: str
    """Names the texts of its documents, in order, whatever the file or its other fields."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The shards of a corpus, whose texts are on disk."""

    path: Path
    shards: list[CorpusShard]
    _open: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def _at(self, path: Path, offset: int) -> Any:
        """A file at a place. It stays open, so that a packed one is unpacked once if its shards are
        read in order, and not from the start for each."""
        if self._open.get("path") != path:
            self._open.update(path=path, file=_opened(path))
        self._open["file"].seek(offset)
        return self._open["file"]

    @property
    def fingerprint(self) -> str:
        """Names the texts, in order."""
        return digest(*(shard.text_hash for shard in self.shards))

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    def texts(self, shard: CorpusShard) -> list[str]:
        """Reads the documents of one shard.

        Raises: CorpusError if they are not what they were when the corpus was scanned.
        """
        path = Path(shard.file)
        texts: list[str] = []
        lines = _lines(self._at(path, shard.offset), path)
        for number in range(shard.line + 1, shard.line + shard.num_lines + 1):
            text = _document(next(lines, b""), path, number)
            texts.extend(() if text is None else (text,))
        if texts_hash(text_hash(text) for text in texts) != shard.text_hash:
            raise CorpusError(f"{shard.file}: the file has changed since it was scanned; run again")
        return texts


def text_hash(text: str) -> bytes:
    """16 bytes that name one document by its UTF-8 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def texts_hash(hashes: Iterator[bytes]) -> str:
    """Names a sequence of documents by their hashes."""
    return hashlib.blake2b(b"".join(hashes), digest_size=16).hexdigest()


def scan(path: Path, cache: Path | None = None) -> Corpus:
    """Reads a corpus once: checks every line, counts, hashes, cuts into shards.

    The result is kept in `cache`, if given, until a file's size or time of change differs.

    Raises: CorpusError for a missing or empty corpus or a line that is no document.
    """
    files = corpus_files(path)
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = digest(json.dumps([_INDEX_VERSION, SHARD_BYTES, stats]))
    if cache is None:
        return Corpus(path, _scanned(path, files))
    index = cache / "corpora" / f"{key}.json"
    index.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(index.with_suffix(".lock")):  # one process reads, the others wait for it
        if not index.is_file():
            write_json(index, [asdict(shard) for shard in _scanned(path, files)])
    return Corpus(path, [CorpusShard(**entry) for entry in json.loads(index.read_bytes())])


def read_batches(path: Path, batch_bytes: int = SHARD_BYTES) -> Iterator[list[str]]:
    """The documents of a corpus in order, as lists of at least so many bytes of text; not hashed.

    Raises: as `scan`, when it comes to the line.
    """
    texts: list[str] = []
    size, is_empty = 0, True
    for file in corpus_files(path):
        for _, text in _parsed(file):
            if text is None:
                continue
            is_empty = False
            texts.append(text)
            size += len(text.encode())
            if size >= batch_bytes:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts
    if is_empty:
        raise _empty(path)


def _empty(path: Path) -> CorpusError:
    return CorpusError(f"{path}: the corpus is empty; expected lines of " + '{"text": ...}')


def _scanned(path: Path, files: list[Path]) -> list[CorpusShard]:
    shards = list(_shards(files))
    if not shards:
        raise _empty(path)
    return shards


def corpus_files(path: Path) -> list[Path]:
    """The files of a corpus in their order (by name, in a folder)."""
    path = path.absolute()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        if not files:
            raise CorpusError(f"{path}: a folder without {' or '.join(_SUFFIXES)} files")
        others = sorted(entry.name for entry in path.iterdir() if entry not in files)
        if others:
            print(f"{path}: not read, being no {' or '.join(_SUFFIXES)}: {', '.join(others)}",
                  file=sys.stderr)  # fmt: skip
        return files
    if not path.is_file():
        raise CorpusError(f"{path}: no such file or folder; expected JSON Lines, plain or .gz")
    return [path]


def _shards(files: list[Path]) -> Iterator[CorpusShard]:
    number = first_document = 0
    for file in files:
        line = offset = 0
        for num_lines, num_bytes, hashes, text_bytes in _cuts(file):
            if hashes:
                name, documents = f"shard-{number:05d}", len(hashes)
                hashed = texts_hash(iter(hashes))
                yield CorpusShard(
                    name, str(file), line, offset, num_lines, first_document, documents,
                    text_bytes, hashed,
                )  # fmt: skip
                number, first_document = number + 1, first_document + documents
            line, offset = line + num_lines, offset + num_bytes


def _cuts(file: Path) -> Iterator[tuple[int, int, list[bytes], int]]:
    """Lines, bytes, document hashes and text bytes of each shard of a file."""
    num_lines = num_bytes = text_bytes = 0
    hashes: list[bytes] = []
    for line_bytes, text in _parsed(file):
        num_lines, num_bytes = num_lines + 1, num_bytes + line_bytes
        if text is not None:
            hashes.append(text_hash(text))
            text_bytes += len(text.encode())
        if text_bytes >= SHARD_BYTES:
            yield num_lines, num_bytes, hashes, text_bytes
            num_lines = num_bytes = text_bytes = 0
            hashes = []
    if num_lines:
        yield num_lines, num_bytes, hashes, text_bytes


def _parsed(file: Path) -> Iterator[tuple[int, str | None]]:
    """The bytes of each line of a file, and the document it holds, if any."""
    with _opened(file) as lines:
        for number, line in enumerate(_lines(lines, file), start=1):
            yield len(line), _document(line, file, number)


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Lines ended by LF alone (texts may hold U+2028); a damaged .gz is an error of the corpus."""
    try:
        for line in file:  # noqa: UP028 - `yield from` would close the file with this generator
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: the file is damaged or cut short: {error}") from error


def _document(line: bytes, path: Path, number: int) -> str | None:
    where = f"{path}, line {number}"
    if not line.strip():
        return None
    try:
        entry = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(entry, dict) or "text" not in entry:
        raise CorpusError(f"{where}: expected an object with a `text`, got {line[:60]!r}")
    text = entry["text"]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: `text` must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: `text` holds a lone surrogate at character {error.start}"
        ) from error
    return text
