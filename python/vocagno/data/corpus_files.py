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
    Raises: CorpusError if there is nothing to read."""
    is_remote = "://" in str(corpus)
    name = str(corpus) if is_remote else str(Path(corpus).absolute())
    system, path, entries = _remote(name) if is_remote else _local(Path(name))
    if entries is None:
        if not path.endswith(SUFFIXES):
            raise CorpusError(f"{name}: expected a file named {' or '.join(SUFFIXES)}")
        return [CorpusFile(path, system)]
    suffixes = ", ".join(SUFFIXES)
    found = [
        one for one in entries if one.endswith(SUFFIXES) and (is_remote or Path(one).is_file())
    ]
    if not found:
        raise CorpusError(f"{name}: a folder without {suffixes} files")
    if others := sorted({*entries} - {*found}):
        names = ", ".join(PurePath(one).name for one in others)
        print(f"{name}: skipped (not {suffixes}): {names}", file=sys.stderr)
    return [CorpusFile(one, system) for one in found]


def _local(path: Path) -> tuple[None, str, list[str] | None]:
    """As `_remote`, of this machine."""
    if path.is_dir():
        return None, str(path), [str(entry) for entry in sorted(path.iterdir())]
    if path.is_file():
        return None, str(path), None
    raise CorpusError(
        f"{path}: no such file or folder; expected {', '.join(SUFFIXES)}, a folder of these, "
        "datasets:NAME, or an address such as s3://BUCKET/FOLDER"
    )


def _remote(address: str) -> tuple[Any, str, list[str] | None]:
    """The file system, the path there, and the paths in it, sorted, if it is a folder."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        if system.isdir(path):
            return system, path, sorted(one["name"] for one in system.ls(path, detail=True))
        if system.isfile(path):
            return system, path, None
        system.info(path)  # raises why
        raise FileNotFoundError
    except FileNotFoundError:
        raise CorpusError(f"{address}: no such file or folder") from None
    except Exception as error:  # each file system raises errors of its own
        raise CorpusError(f"{address}: {explained(error, address)}") from error
