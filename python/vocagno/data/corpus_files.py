"""Files of a corpus, on this machine or at an address that fsspec reads (`s3://`, `hf://`)."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from vocagno.data.documents import CorpusError, tokenizer_instead

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt")
_BLOCK = 1 << 23
"""Bytes that are read ahead from a remote file."""


class CorpusFile(Protocol):
    """A file that can be opened any number of times."""

    @property
    def name(self) -> str:
        """The name in error messages."""

    @property
    def suffix(self) -> str:
        """The last one, with its dot."""

    def stamp(self) -> list[Any]:
        """Changes (as JSON) if the content may have changed."""

    def open(self) -> BinaryIO:
        """Its bytes; seekable. Raises: OSError."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def suffix(self) -> str:
        return self.path.suffix

    def stamp(self) -> list[Any]:
        """Path, size and time."""
        stat = self.path.stat()
        return [str(self.path), stat.st_size, stat.st_mtime_ns]

    def open(self) -> BinaryIO:
        return self.path.open("rb")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of an fsspec file system."""

    system: Any
    path: str
    """Without the protocol."""

    @property
    def name(self) -> str:
        return str(self.system.unstrip_protocol(self.path))

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix

    def stamp(self) -> list[Any]:
        """Name and what the file system tells of its content: size, and time or ETag."""
        return [self.name, str(self.system.ukey(self.path))]

    def open(self) -> BinaryIO:
        opened: BinaryIO = self.system.open(self.path, "rb", block_size=_BLOCK)
        return opened


def corpus_files(corpus: str | Path) -> list[CorpusFile]:
    """The files of a corpus: one, or those of a folder sorted by name.

    Raises: CorpusError if there is nothing to read.
    """
    return _remote(str(corpus)) if "://" in str(corpus) else _local(Path(corpus).absolute())


def _local(path: Path) -> list[CorpusFile]:
    if path.is_dir():
        entries = sorted(path.iterdir())
        files = [entry for entry in entries if entry.is_file() and entry.name.endswith(SUFFIXES)]
        _check(str(path), files, [entry.name for entry in sorted({*entries} - {*files})], path)
        return [LocalFile(file) for file in files]
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            what = f"expected a file named {' or '.join(SUFFIXES)}"
            raise CorpusError(f"{path}: {what}{tokenizer_instead(path)}")
        return [LocalFile(path)]
    raise CorpusError(
        f"{path}: no such file or folder; expected {', '.join(SUFFIXES)}, a folder of these, "
        "datasets:NAME, or an address such as s3://BUCKET/FOLDER"
    )


def _remote(address: str) -> list[CorpusFile]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        is_folder, entries = system.isdir(path), []
        if is_folder:
            entries = sorted(one["name"] for one in system.ls(path, detail=True))
        elif not system.isfile(path):
            raise CorpusError(f"{address}: no such file or folder")
    except CorpusError:
        raise
    except Exception as error:  # each file system raises errors of its own
        raise CorpusError(f"{address}: {type(error).__name__}: {error}") from error
    if not is_folder:
        if not path.endswith(SUFFIXES):
            raise CorpusError(f"{address}: expected a file named {' or '.join(SUFFIXES)}")
        return [RemoteFile(system, path)]
    files = [name for name in entries if name.endswith(SUFFIXES)]
    others = [PurePosixPath(name).name for name in entries if name not in files]
    _check(address, files, others)
    return [RemoteFile(system, name) for name in files]


def _check(
    name: str, files: Sequence[object], others: Sequence[str], path: Path | None = None
) -> None:
    """Refuses a folder without files of a corpus, and names the others."""
    if not files:
        what = f"a folder without {', '.join(SUFFIXES)} files"
        raise CorpusError(f"{name}: {what}{tokenizer_instead(path) if path else ''}")
    if others:
        skipped = ", ".join(others)
        print(f"{name}: skipped (not {', '.join(SUFFIXES)}): {skipped}", file=sys.stderr)
