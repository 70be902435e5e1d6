"""Reads the documents of a corpus, each checked, from JSON Lines, Parquet, text files or a name for
the `datasets` library.

A source is read in order, starting at any record. A record is a line, a row or a file. It holds one
document, or none (a blank line).
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

from vocagno.data.corpus_files import CorpusError, CorpusFile, corpus_files

DATASETS = "datasets:"
"""Prefix of a corpus that is a name for the `datasets` library."""

_ROWS_AT_ONCE = 1024
"""Rows of Parquet or of a dataset that are decoded together."""


class Document(NamedTuple):
    """The text of one document, and how much of it is a prompt."""

    text: str
    prompt_bytes: int = 0
    """UTF-8 bytes at the start of the text that are a prompt: read but not learnt."""
    record: dict[str, Any] | None = None
    """All fields of a line of JSON; None for records of other sources."""


def _json_document(line: bytes, where: str) -> Document:
    """Reads a document from a line of JSON.
    Raises: CorpusError whose message begins with `where`."""
    try:
        entry = json.loads(line.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not JSON in UTF-8 ({error})") from error
    if not isinstance(entry, dict) or ("text" not in entry and "completion" not in entry):
        raise CorpusError(
            f"{where}: expected an object with a `text`, or a `prompt` and a `completion`, got "
            f"{line[:60]!r}"
        )
    return document_of(entry, where)._replace(record=entry)


def document_of(fields: dict[str, Any], where: str) -> Document:
    """Makes the document of a record: its `text`, or its `prompt` and `completion`. A record with a
    `text` is read by it and by nothing else: a prompt in it is learnt, too.
    Raises: CorpusError whose message begins with `where`."""
    if "text" in fields:
        return Document(_check_text(fields["text"], "text", where))
    prompt = _check_text(fields.get("prompt"), "prompt", where)
    completion = _check_text(fields["completion"], "completion", where)
    return Document(prompt + completion, len(prompt.encode()))


def _check_text(text: Any, name: str, where: str) -> str:
    """Returns the value of field `name`, if it is text.
    Raises: CorpusError if it is not a string, or one that UTF-8 cannot hold."""
    if not isinstance(text, str):
        raise CorpusError(f"{where}: `{name}` must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: `{name}` has a lone surrogate at character {error.start}"
        ) from error
    return text


class Place(NamedTuple):
    """A point between two records of a source."""

    record: int = 0
    """Number of records before the point."""
    offset: int = 0
    """Number of decompressed bytes before the point, if records are lines; else 0."""


class Source(Protocol):
    """A sequence of records that can be read from any of them on."""

    @property
    def name(self) -> str:
        """The name in error messages."""

    def identity(self) -> list[Any]:
        """Returns a value, which JSON can hold, that changes if the records may have changed."""

    def place(self, record: int) -> str:
        """Names a record in words, without its folder, so that all machines name it alike."""

    def read_from(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        """Yields the document of each record from `place` on, and the place after the record.
        A record without a document, such as a blank line, has None.
        Raises: CorpusError naming a record that is not a document."""


def open_sources(corpus: str | Path) -> list[Source]:
    """Opens the sources of a corpus: a file, the files of a folder sorted by name, each on this
    machine or at an address of fsspec, or `datasets:NAME`. The text files of a folder are one
    source, after all others.
    Raises: CorpusError if there is nothing to read."""
    if str(corpus).startswith(DATASETS):
        return [DatasetSource(str(corpus).removeprefix(DATASETS))]
    files = corpus_files(corpus)
    texts = [file for file in files if file.suffix == ".txt"]
    sources: list[Source] = [
        ParquetSource(file) if file.suffix == ".parquet" else LinesSource(file)
        for file in files
        if file.suffix != ".txt"
    ]
    if not texts:
        return sources
    name = texts[0].name if files == texts and len(texts) == 1 else f"{corpus} (*.txt)"
    return [*sources, TextFilesSource(name, texts)]


class _FileSource:
    """A file that stays open between reads, so that a read can continue where the last one ended.
    Only one such source is open at a time."""

    _open: ClassVar["_FileSource | None"] = None
    _unit: str
    """The word for a record in error messages."""

    def __init__(self, file: CorpusFile) -> None:
        self.file = file
        self.name: str = file.name

    def identity(self) -> list[Any]:
        return self.file.stamp()

    def place(self, record: int) -> str:
        return f"{PurePath(self.name).name}, {self._unit} {record + 1}"

    def _take_turn(self) -> None:
        """Closes the source that was open, so that a folder of many files needs one descriptor."""
        if _FileSource._open is not None and _FileSource._open is not self:
            _FileSource._open.close()
        _FileSource._open = self

    def close(self) -> None:
        """Closes the file; the next read opens it again."""
        raise NotImplementedError


class LinesSource(_FileSource):
    """JSON Lines, plain, .gz or .zst: `{"text": ...}` or `{"prompt": ..., "completion": ...}`.

    Other fields are ignored. Lines end only in LF (texts may contain U+2028). A compressed file is
    decompressed once if its shards are read in order, not from the start for each shard.
    """

    _unit = "line"

    def __init__(self, file: CorpusFile) -> None:
        super().__init__(file)
        self._file: Any = None
        self._raw: BinaryIO | None = None
        """The file itself, which `_file` decompresses."""
        self._offset = 0
        """Decompressed bytes that have been read from `_file`."""

    def read_from(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        record = place.record
        try:
            self._go_to(place.offset)
            while line := self._file.readline():
                record, self._offset = record + 1, self._offset + len(line)
                where = f"{self.name}, line {record}"
                # On any line, because files that were joined have a mark in the middle, too.
                line = line.removeprefix(codecs.BOM_UTF8)
                document = _json_document(line, where) if line.strip() else None
                yield Place(record, self._offset), document
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.name, error) from error
        self.close()

    def close(self) -> None:
        for file in (self._file, self._raw):
            if file is not None:
                file.close()
        self._file = self._raw = None

    def _go_to(self, offset: int) -> None:
        """Moves to a decompressed offset; opens the file if it has to."""
        self._take_turn()
        # A decompressor cannot go back: for that, the file is opened again.
        if self._file is None or self._offset > offset:
            self.close()
            self._file, self._offset = self._open_file(), 0
        if self._file.seekable():
            self._file.seek(offset)
            self._offset = offset
        while self._offset < offset:
            skipped = self._file.read(min(offset - self._offset, 1 << 20))
            self._offset += len(skipped)
            if not skipped:
                raise EOFError(f"{self._offset:,} bytes, expected {offset:,} before this shard")

    def _open_file(self) -> Any:
        """Opens the file so that decompressed lines can be read from it."""
        file = self._raw = self.file.open()
        # What a failed download leaves. gzip and zstd themselves read it as a text without lines.
        if self.file.suffix in (".gz", ".zst") and not file.read(1):
            raise EOFError("0 bytes, without the header of a compressed file")
        file.seek(0)
        if self.file.suffix == ".gz":
            return gzip.open(file, "rb")
        if self.file.suffix == ".zst":
            import pyarrow as pa

            return io.BufferedReader(pa.input_stream(file, compression="zstd"), 1 << 20)
        return file


class ParquetSource(_FileSource):
    """Parquet with a column `text`, or columns `prompt` and `completion`."""

    _unit = "row"

    def __init__(self, file: CorpusFile) -> None:
        super().__init__(file)
        self._records: Iterator[tuple[Place, Document]] | None = None
        """The records that the last reading has left."""
        self._place = Place()
        """The place of the first of them."""
        self._batches_left: Iterator[Any] | None = None
        """The batches with all columns that the last `table` has left."""
        self._rest: list[Any] = []
        """The rows before them that the last `table` has decoded but not returned: none, or the end
        of a batch."""
        self._row = 0
        """Number of the first row in `_rest`, or in `_batches_left` if `_rest` is empty."""

    def read_from(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        import pyarrow as pa

        self._take_turn()
        if self._records is None or self._place != place:
            self._records = self._from(place.record)
        try:
            for after, document in self._records:
                self._place = after
                yield after, document
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise _unreadable(self.name, error) from error
        self.close()

    def close(self) -> None:
        self._records = self._batches_left = None

    def _from(self, record: int) -> Iterator[tuple[Place, Document]]:
        """Yields the documents from row `record` on."""
        for batch in self._batches(record, all_columns=False):
            yield from _documents(batch.to_pylist(), record, self.name)
            record += batch.num_rows

    def table(self, record: int, count: int) -> Any:
        """Reads `count` rows from `record` on, with all columns, as a table of pyarrow. Rows that
        directly follow those of the last call are read without a search for them.
        Raises: CorpusError if the file cannot be read, or has fewer rows."""
        import pyarrow as pa

        if self._batches_left is None or self._row != record:
            self._batches_left, self._rest = self._batches(record, all_columns=True), []
        batches, missing = list[Any](), count
        try:
            for batch in chain(self._rest, self._batches_left):
                batches.append(batch.slice(0, missing))
                missing -= batches[-1].num_rows
                if not missing:
                    self._rest, self._row = [batch.slice(batches[-1].num_rows)], record + count
                    return pa.Table.from_batches(batches)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.name, error) from error
        raise CorpusError(f"{self.name}: has {missing:,} rows less than when it was read")

    def _batches(self, record: int, *, all_columns: bool) -> Iterator[Any]:
        """Yields the rows from `record` on in batches, with the columns of the text or all. The row
        group that holds `record` is decoded from its start, so a few rows before it are decoded in
        vain; other row groups before it are not read."""
        import pyarrow.parquet as pq

        with self.file.open() as opened, pq.ParquetFile(opened) as file:
            columns = _columns(file.schema_arrow.names, self.name)
            first, group = 0, 0
            while group < file.num_row_groups:
                rows = file.metadata.row_group(group).num_rows
                if first + rows > record:
                    break
                first, group = first + rows, group + 1
            groups = list(range(group, file.num_row_groups))
            chosen = None if all_columns else columns
            for batch in file.iter_batches(_ROWS_AT_ONCE, groups, chosen) if groups else ():
                skipped = min(max(0, record - first), batch.num_rows)
                first += batch.num_rows
                if skipped < batch.num_rows:
                    yield batch.slice(skipped)


class TextFilesSource:
    """UTF-8 text files, one document each, without a byte order mark."""

    def __init__(self, name: str, files: list[CorpusFile]) -> None:
        self.name = name
        self.files = files

    def identity(self) -> list[Any]:
        return [file.stamp() for file in self.files]

    def place(self, record: int) -> str:
        return PurePath(self.files[record].name).name

    def read_from(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        for number in range(place.record, len(self.files)):
            file = self.files[number]
            try:
                with file.open() as opened:
                    text = opened.read().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise CorpusError(f"{file.name}: not text in UTF-8: {error}") from error
            except OSError as error:
                raise _unreadable(file.name, error) from error
            yield Place(number + 1), Document(text)


class DatasetSource:
    """A dataset for `datasets.load_dataset`: `NAME[:CONFIG[:SPLIT]]`, with the split `train` by
    default. NAME is a dataset on the hub or a folder. Downloads go to that library's cache."""

    def __init__(self, name: str) -> None:
        from datasets import load_dataset

        self.name: str = DATASETS + name
        path, config, split = (*name.split(":", 2), "", "")[:3]
        try:
            loaded = load_dataset(path, config or None, split=split or "train")
        except Exception as error:  # it raises many types of errors for a wrong name
            raise CorpusError(f"{self.name}: {type(error).__name__}: {error}") from error
        # The fingerprint of `datasets` follows from the content and what was done to it.
        self._identity = [name, loaded._fingerprint]
        self._dataset = loaded.select_columns(_columns(loaded.column_names, self.name))

    def identity(self) -> list[Any]:
        return self._identity

    def place(self, record: int) -> str:
        return f"{self.name}, row {record + 1}"

    def read_from(self, place: Place) -> Iterator[tuple[Place, Document | None]]:
        for first in range(place.record, len(self._dataset), _ROWS_AT_ONCE):
            columns = self._dataset[first : first + _ROWS_AT_ONCE]
            cells = zip(*columns.values(), strict=True)
            rows = [dict(zip(columns, row, strict=True)) for row in cells]
            yield from _documents(rows, first, self.name)


def _unreadable(name: str, error: Exception) -> CorpusError:
    """Makes the error for a file that cannot be read, from that of the library."""
    if isinstance(error, OSError) and error.errno is not None:
        return CorpusError(f"{name}: cannot be read: {error}")
    if "too much memory" in str(error):  # the decoder's limit, which pyarrow cannot raise
        return CorpusError(
            f"{name}: was compressed with a window above 128 MiB (zstd --long), which is not read; "
            "compress it again: zstd -dc --long=31 FILE | zstd -o NEW_FILE"
        )
    return CorpusError(f"{name}: the file is damaged or truncated: {error}")


def _columns(names: list[str], where: str) -> list[str]:
    """Returns the columns to read. Raises: CorpusError if they are missing, or there twice."""
    columns = ["text"] if "text" in names else ["prompt", "completion"]
    if all(names.count(name) == 1 for name in columns):
        return columns
    raise CorpusError(
        f"{where}: expected one column `text`, or `prompt` and `completion`, got {', '.join(names)}"
    )


def _documents(
    rows: list[dict[str, Any]], first: int, where: str
) -> Iterator[tuple[Place, Document]]:
    """Yields the documents of rows, the first of which has the number `first` (from 0)."""
    for record, fields in enumerate(rows, first + 1):
        yield Place(record), document_of(fields, f"{where}, row {record}")
