"""Where the documents of a corpus come from: JSON Lines, Parquet, text files, a `datasets` name.

A source is read in order, from any of its records on. A record is a line, a row or a file, and
holds one document or (a blank line) none.
"""

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vocagno.errors import InputError

DATASETS = "datasets:"
"""What a corpus begins with that is a name for the `datasets` library."""

_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_SUFFIXES = (*_LINES, ".parquet", ".txt")
_ROWS_AT_ONCE = 1024


class CorpusError(InputError):
    """A corpus that cannot be read; names file and line."""


class Document(NamedTuple):
    """One document."""

    text: str
    prompt_bytes: int = 0
    """How much of the text, in UTF-8 bytes, is a prompt, which is read and not learnt."""


class Place(NamedTuple):
    """A point between two records of a source."""

    record: int = 0
    """Records before it."""
    offset: int = 0
    """Bytes before it, unpacked, where records are lines."""


class Source(Protocol):
    """Some records in order."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def identity(self) -> list[Any]:
        """Differs (as JSON) when what is read may differ."""

    def read(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        """The records from a place on, each with the place behind it.

        Raises: CorpusError for a record that is no document, naming it.
        """


def open_sources(corpus: str | Path) -> list[Source]:
    """The sources of a corpus: a file, the files of a folder by name, or `datasets:NAME`.

    Raises: CorpusError if there is nothing that can be read.
    """
    if str(corpus).startswith(DATASETS):
        return [DatasetSource(str(corpus).removeprefix(DATASETS))]
    path = Path(corpus).absolute()
    if path.is_dir():
        entries = sorted(path.iterdir())
        files = [entry for entry in entries if entry.is_file() and entry.name.endswith(_SUFFIXES)]
        if not files:
            raise CorpusError(f"{path}: a folder without {', '.join(_SUFFIXES)} files")
        if others := [entry.name for entry in entries if entry not in files]:
            print(
                f"{path}: not read, being no {', '.join(_SUFFIXES)} file: {', '.join(others)}",
                file=sys.stderr,
            )
    elif path.is_file():
        files = [path]
        if not path.name.endswith(_SUFFIXES):
            raise CorpusError(f"{path}: expected a file named {' or '.join(_SUFFIXES)}")
    else:
        raise CorpusError(
            f"{path}: no such file or folder; expected {', '.join(_SUFFIXES)}, a folder of these, "
            f"or {DATASETS}NAME"
        )
    texts = [file for file in files if file.suffix == ".txt"]
    sources: list[Source] = [
        ParquetSource(file) if file.suffix == ".parquet" else LinesSource(file)
        for file in files
        if file.suffix != ".txt"
    ]
    return [*sources, TextFilesSource(path, texts)] if texts else sources


class LinesSource:
    """JSON Lines, plain, .gz or .zst: `{"text": ...}` or `{"prompt": ..., "completion": ...}`.

    Other fields are ignored. Lines end in LF alone (texts may hold U+2028).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._at = 0

    @property
    def name(self) -> str:
        return str(self.path)

    def identity(self) -> list[Any]:
        return _stamp(self.path)

    def read(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        record = place.record
        try:
            self._go_to(place.offset)
            while line := self._file.readline():
                record, self._at = record + 1, self._at + len(line)
                where = f"{self.path}, line {record}"
                document = _json_document(line, where) if line.strip() else None
                yield Place(record, self._at), document
        except (OSError, EOFError, zlib.error) as error:
            raise CorpusError(f"{self.path}: the file is damaged or cut short: {error}") from error

    def _go_to(self, offset: int) -> None:
        """The file stays open, so that a packed one is unpacked once if its shards are read in
        order, and not from the start for each."""
        if self._file is None or self._at > offset:
            self._file, self._at = self._opened(), 0
        if self._file.seekable():
            self._file.seek(offset)
            self._at = offset
        while self._at < offset:
            skipped = self._file.read(min(offset - self._at, 1 << 20))
            self._at += len(skipped)
            if not skipped:
                raise EOFError(f"{self._at:,} bytes, expected {offset:,} before this shard")

    def _opened(self) -> Any:
        if self.path.suffix == ".gz":
            return gzip.open(self.path, "rb")
        if self.path.suffix == ".zst":
            import pyarrow as pa

            return io.BufferedReader(pa.input_stream(str(self.path), compression="zstd"), 1 << 20)
        return self.path.open("rb")


class ParquetSource:
    """Parquet with a column `text`, or `prompt` and `completion`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path)

    def identity(self) -> list[Any]:
        return _stamp(self.path)

    def read(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.path) as file:
                columns = _columns(file.schema_arrow.names, self.name)
                first, group = 0, 0
                while group < file.num_row_groups:
                    rows = file.metadata.row_group(group).num_rows
                    if first + rows > place.record:
                        break
                    first, group = first + rows, group + 1
                groups = list(range(group, file.num_row_groups))
                batches = file.iter_batches(_ROWS_AT_ONCE, groups, columns) if groups else ()
                for batch in batches:
                    values = [batch.column(column).to_pylist() for column in columns]
                    skipped = max(0, place.record - first)
                    yield from _rows(columns, values, first, skipped, self.name)
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{self.path}: not a whole Parquet file: {error}") from error


class TextFilesSource:
    """Text files in UTF-8, each of them one document."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.folder, self.files = folder, files

    @property
    def name(self) -> str:
        return f"{self.folder} (*.txt)" if self.folder.is_dir() else str(self.folder)

    def identity(self) -> list[Any]:
        return [_stamp(file) for file in self.files]

    def read(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        for number in range(place.record, len(self.files)):
            file = self.files[number]
            try:
                text = file.read_bytes().decode("utf-8")
            except (UnicodeDecodeError, OSError) as error:
                raise CorpusError(f"{file}: not text in UTF-8: {error}") from error
            yield Place(number + 1), Document(text)


class DatasetSource:
    """A dataset as `datasets.load_dataset` knows it: `NAME[:CONFIG[:SPLIT]]`, the split `train` by
    default; NAME is one on the hub or a folder. It is downloaded where that library keeps it."""

    def __init__(self, name: str) -> None:
        from datasets import load_dataset

        self._name = name
        path, _, rest = name.partition(":")
        config, _, split = rest.partition(":")
        try:
            loaded = load_dataset(path, config or None, split=split or "train")
        except Exception as error:  # it raises errors of many kinds for a wrong name
            raise CorpusError(f"{self.name}: {type(error).__name__}: {error}") from error
        self._columns = _columns(loaded.column_names, self.name)
        self._dataset = loaded.select_columns(self._columns)
        self._fingerprint = loaded._fingerprint

    @property
    def name(self) -> str:
        return DATASETS + self._name

    def identity(self) -> list[Any]:
        return [self._name, self._fingerprint]

    def read(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        for first in range(place.record, len(self._dataset), _ROWS_AT_ONCE):
            rows = self._dataset[first : first + _ROWS_AT_ONCE]
            values = [rows[column] for column in self._columns]
            yield from _rows(self._columns, values, first, 0, self.name)


def _stamp(path: Path) -> list[Any]:
    stat = path.stat()
    return [str(path), stat.st_size, stat.st_mtime_ns]


def _columns(names: list[str], where: str) -> list[str]:
    for wanted in (["text"], ["prompt", "completion"]):
        if set(wanted) <= set(names):
            return wanted
    raise CorpusError(
        f"{where}: expected a column `text`, or `prompt` and `completion`, got {', '.join(names)}"
    )


def _rows(
    columns: list[str], values: list[list[Any]], first: int, skipped: int, where: str
) -> Iterator[tuple[Place, Document]]:
    for index, cells in enumerate(zip(*values, strict=True)):
        if index >= skipped:
            record = first + index + 1
            fields = dict(zip(columns, cells, strict=True))
            yield Place(record), _document(fields, f"{where}, row {record}")


def _json_document(line: bytes, where: str) -> Document:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(entry, dict) or ("text" not in entry and "completion" not in entry):
        raise CorpusError(
            f"{where}: expected an object with a `text`, or a `prompt` and a `completion`, got "
            f"{line[:60]!r}"
        )
    return _document(entry, where)


def _document(fields: dict[str, Any], where: str) -> Document:
    if "text" in fields:
        return Document(_checked(fields["text"], "text", where))
    prompt = _checked(fields.get("prompt"), "prompt", where)
    completion = _checked(fields["completion"], "completion", where)
    return Document(prompt + completion, len(prompt.encode()))


def _checked(text: Any, name: str, where: str) -> str:
    if not isinstance(text, str):
        raise CorpusError(f"{where}: `{name}` must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: `{name}` holds a lone surrogate at character {error.start}"
        ) from error
    return text
