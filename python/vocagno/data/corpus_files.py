"""Files of a corpus, on this machine or at an address that fsspec reads (`s3://`, `hf://`)."""

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from vocagno.errors import InputError
from vocagno.system.addresses import explained

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt")
_BLOCK = 1 << 23
"""Bytes that are read ahead from a remote file."""
_COPIED = 1 << 20
"""Bytes that are taken from these at once."""


class CorpusError(InputError):
    """A corpus cannot be read; names file and line."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file that can be opened any number of times."""

    path: str
    """Of this machine, or of a file system, without its protocol."""
    system: Any = None
    """The fsspec file system; None: this machine."""

    @property
    def name(self) -> str:
        """The name in error messages."""
        return self.path if self.system is None else str(self.system.unstrip_protocol(self.path))

    @property
    def suffix(self) -> str:
        """The last one, with its dot."""
        return PurePath(self.path).suffix

    def stamp(self) -> list[Any]:
        """Changes (as JSON) if the content may have changed: name, size and time, or what the file
        system tells of its content (an ETag)."""
        if self.system is not None:
            return [self.name, str(self.system.ukey(self.path))]
        stat = Path(self.path).stat()
        return [self.path, stat.st_size, stat.st_mtime_ns]

    def open(self) -> BinaryIO:
        """Its bytes; seekable. Raises: OSError."""
        if self.system is None:
            return Path(self.path).open("rb")
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
        raise OSError(number, explained(error, address)) from error


def corpus_files(corpus: str | Path) -> list[CorpusFile]:
    """The files of a corpus: one, or those of a folder sorted by name.

    Raises: CorpusError if there is nothing to read.
    """
    return _remote(str(corpus)) if "://" in str(corpus) else _local(Path(corpus).absolute())


def _local(path: Path) -> list[CorpusFile]:
    if path.is_dir():
        names = [entry.name for entry in sorted(path.iterdir())]
        found = [name for name in names if name.endswith(SUFFIXES) and (path / name).is_file()]
        _check(str(path), found, names)
        return [CorpusFile(str(path / name)) for name in found]
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise CorpusError(f"{path}: expected a file named {' or '.join(SUFFIXES)}")
        return [CorpusFile(str(path))]
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
        raise CorpusError(f"{address}: {explained(error, address)}") from error
    if is_folder:
        found = [name for name in entries if name.endswith(SUFFIXES)]
        _check(address, found, entries)
        return [CorpusFile(name, system) for name in found]
    if not path.endswith(SUFFIXES):
        raise CorpusError(f"{address}: expected a file named {' or '.join(SUFFIXES)}")
    return [CorpusFile(path, system)]


def _check(folder: str, files: list[str], names: list[str]) -> None:
    """Refuses a folder without files of a corpus; says which of all its files are skipped."""
    suffixes = ", ".join(SUFFIXES)
    if not files:
        raise CorpusError(f"{folder}: a folder without {suffixes} files")
    others = [PurePath(name).name for name in sorted({*names} - {*files})]
    if others:
        print(f"{folder}: skipped (not {suffixes}): {', '.join(others)}", file=sys.stderr)
