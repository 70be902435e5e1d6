"""Writes a corpus again, with other texts and further fields: JSON Lines or Parquet, as it was.

Each shard becomes a part, and the parts of a file are joined. Any process may make any part.
"""

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from shutil import copyfileobj
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from vocagno.data.corpus import CorpusShard, ShardTexts
from vocagno.data.corpus_files import CorpusError, CorpusFile
from vocagno.data.sources import ParquetSource, Source, TextFilesSource
from vocagno.system.files import atomic_file


class Rewritten(NamedTuple):
    """The new content of a document."""

    text: str | None
    """The text, or the completion of a document with a prompt; None leaves the document out."""
    fields: dict[str, Any]
    """Further fields, of the same names in every document."""


def files_of(source: Source) -> list[CorpusFile]:
    """Returns the files of a source. Raises: CorpusError for a name of the `datasets` library."""
    if isinstance(source, TextFilesSource):
        return source.files
    if (file := getattr(source, "file", None)) is None:
        raise CorpusError(
            f"{source.name}: only files are written again; save it as one, "
            "`load_dataset(...).to_json('corpus.jsonl')`, and name that: scores are found by the "
            "text"
        )
    return [file]


def output_name(source: Source) -> str:
    """Returns the name of the file that is written for a source. Text files become one file of JSON
    Lines, because text has no fields."""
    files = files_of(source)
    if isinstance(source, TextFilesSource):
        return f"{PurePath(files[0].path).stem if len(files) == 1 else 'texts'}.jsonl"
    return PurePath(files[0].path).name


def write_part(
    path: Path,
    source: Source,
    shard: CorpusShard,
    documents: ShardTexts,
    rewritten: Sequence[Rewritten],
    types: dict[str, pa.DataType],
) -> None:
    """Writes the part of one shard atomically.

    Args:
        documents: the result of `Corpus.read_shard`.
        rewritten: the new content of each document.
        types: the types of the further fields, by their names, for Parquet.
    Raises: CorpusError if a record has one of these fields already.
    """
    with atomic_file(path) as file:
        if isinstance(source, ParquetSource):
            table = source.table(shard.record, shard.num_records)
            _check_names(table.column_names, types, documents.places[0])
            pq.write_table(_rewrite_table(table, rewritten, types), file)
            return
        records = zip(documents.texts, documents.records, documents.places, rewritten, strict=True)
        for text, record, place, new in records:
            fields = {"text": text} if record is None else record
            _check_names(fields, types, place)
            if new.text is not None:
                fields = fields | {_text_field(fields): new.text} | new.fields
                file.write(_json_line(fields))


def join_parts(path: Path, parts: Sequence[Path], partial: Path) -> None:
    """Joins parts to a file atomically. Its suffix says how it is compressed.

    Args: partial: the folder of the unfinished file.
    """
    with atomic_file(path, partial) as file:
        if path.suffix == ".parquet":
            with pq.ParquetWriter(file, pq.read_schema(parts[0]), compression="zstd") as writer:
                for part in parts:
                    writer.write_table(pq.read_table(part))
            return
        with _compressing(file, path.suffix) as stream:
            for part in parts:
                with part.open("rb") as opened:
                    copyfileobj(opened, stream)


def _rewrite_table(
    table: pa.Table, rewritten: Sequence[Rewritten], types: dict[str, pa.DataType]
) -> pa.Table:
    """Replaces the texts of a table, and adds the further fields as columns."""
    stays = [new.text is not None for new in rewritten]
    table = table.filter(pa.array(stays, pa.bool_()))
    kept = [new for new in rewritten if new.text is not None]
    name = _text_field(table.column_names)
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    texts = pa.array([new.text for new in kept], field.type)
    table = table.set_column(index, field, texts)
    for name, dtype in types.items():
        table = table.append_column(name, pa.array([new.fields[name] for new in kept], dtype))
    return table


def _text_field(names: Any) -> str:
    """Returns the field whose text is replaced: a prompt stays as it is."""
    return "text" if "text" in names else "completion"


def _check_names(names: Any, new_names: Any, place: str) -> None:
    """Raises: CorpusError if a record has a field that is to be added."""
    if there := [name for name in new_names if name in names]:
        raise CorpusError(
            f"{place}: has a field `{there[0]}` already, as what this command writes has it; name "
            "the corpus that it was made from, or rename the field"
        )


def _json_line(fields: dict[str, Any]) -> bytes:
    """Makes a line of JSON Lines, in UTF-8."""
    try:
        return (json.dumps(fields, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can write
        return (json.dumps(fields) + "\n").encode()


class _Open(io.RawIOBase):
    """A file that stays open when pyarrow closes its stream: `atomic_file` is yet to flush it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        return self._file.write(content)


@contextmanager
def _compressing(file: BinaryIO, suffix: str) -> Iterator[Any]:
    """Yields a stream into a file that compresses what is written, by the suffix of its name."""
    if suffix == ".gz":
        # Neither time nor name, so that the same content is the same bytes.
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as stream:
            yield stream
    elif suffix == ".zst":
        with pa.CompressedOutputStream(pa.PythonFile(_Open(file), "w"), "zstd") as stream:
            yield stream
    else:
        yield file
