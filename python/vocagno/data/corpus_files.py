"""Files of a corpus, on this machine or at an address that fsspec reads (`s3://`, `hf://`)."""

import errno
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from vocagno.data.documents import CorpusError, tokenizer_instead

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt")
_BLOCK = 1 << 23
"""Bytes that are read ahead from a remote file."""
_COPIED = 1 << 20
"""Bytes that are taken from these at once."""


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
        with _as_os_errors(self.name):
            file = self.system.open(self.path, "rb", block_size=_BLOCK)
        return io.BufferedReader(_RemoteBytes(file, self.name), _COPIED)


class _RemoteBytes(io.RawIOBase):
    """A file of fsspec, all of whose errors are OSError."""

    def __init__(self, file: Any, address: str) -> None:
        self._file = file
        self._address = address

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        with _as_os_errors(self._address):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _as_os_errors(address: str) -> Iterator[None]:
    """Each file system raises errors of its own, and OSError without a number."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, _explained(error, address)) from error


def _explained(error: Exception, address: str) -> str:
    """The error, and what to check if it is one of rights."""
    name = type(error).__name__
    words = f"{name}: {' '.join(str(error).split())}"
    if not isinstance(error, PermissionError) and "Credentials" not in name:
        return words
    protocol, _, path = address.partition("://")
    bucket = path.lstrip("/").partition("/")[0]
    if protocol in ("s3", "s3a"):
        return (
            f"{words}; check that the credentials in use (AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) may list and read the bucket {bucket}"
        )
    return f"{words}; check that the credentials in use may list and read {protocol}://{bucket}"


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
            system.info(path)  # raises why
            raise FileNotFoundError
    except FileNotFoundError:
        raise CorpusError(f"{address}: no such file or folder") from None
    except Exception as error:  # each file system raises errors of its own
        raise CorpusError(f"{address}: {_explained(error, address)}") from error
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
