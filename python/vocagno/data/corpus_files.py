"""Finds and opens the files of a corpus, on this machine or at an address that fsspec reads
(`s3://`, `hf://`)."""

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from vocagno.errors import InputError
from vocagno.system.addresses import explain_error
from vocagno.system.files import POINTER_SIZE, refuse_pointer

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".txt")
_BLOCK = 1 << 23
"""Bytes that are read ahead from a remote file."""
_BUFFER = 1 << 20
"""Bytes that are taken at once from those read ahead."""


class CorpusError(InputError):
    """A corpus that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file that can be opened any number of times."""

    path: str
    """The path on this machine, or in `system`, without its protocol."""
    system: Any = None
    """The fsspec file system; None: this machine."""

    @property
    def name(self) -> str:
        """The name in error messages."""
        return self.path if self.system is None else str(self.system.unstrip_protocol(self.path))

    @property
    def suffix(self) -> str:
        """The last suffix, with its dot."""
        return PurePath(self.path).suffix

    def stamp(self) -> list[Any]:
        """Returns a value, which JSON can hold, that changes if the content may have changed: name,
        size and time, or a mark of the content that the file system keeps (an ETag).
        Raises: OSError for an address that does not answer."""
        if self.system is not None:
            with _as_os_errors(self.name):
                return [self.name, *self._remote_marks()]
        stat = Path(self.path).stat()
        return [self.path, stat.st_size, stat.st_mtime_ns]

    def _remote_marks(self) -> list[Any]:
        """Returns what the file system says of the content of a file at an address."""
        protocol = self.system.protocol
        # For a web server, fsspec's mark is a hash of nothing but the address: it takes such files
        # to never change.
        if {"http", "https"}.isdisjoint([protocol] if isinstance(protocol, str) else protocol):
            return [str(self.system.ukey(self.path))]
        details = self.system.info(self.path)
        return [details.get(name) for name in ("size", "ETag", "Last-Modified")]

    def open(self) -> BinaryIO:
        """Opens the file for reading bytes; it is seekable.
        Raises: OSError; CorpusError for a pointer of Git LFS or git-annex to a file that is
            elsewhere, which would be read as a text."""
        file = self._open_bytes()
        try:
            if file.seek(0, io.SEEK_END) < POINTER_SIZE:
                file.seek(0)
                refuse_pointer(file.peek(), self.name, CorpusError)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def _open_bytes(self) -> io.BufferedReader:
        """Opens the file on this machine or at its address."""
        if self.system is None:
            return Path(self.path).open("rb")
        with _as_os_errors(self.name):
            remote = self.system.open(self.path, "rb", block_size=_BLOCK)
        return io.BufferedReader(_RemoteBytes(remote, self.name), _BUFFER)


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
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _as_os_errors(address: str) -> Iterator[None]:
    """Turns any error of a file system into an OSError with a number, and the address in words."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, explain_error(error, address)) from error


def corpus_files(corpus: str | Path) -> list[CorpusFile]:
    """Lists the files of a corpus: one, or those of a folder sorted by name. Prints the names of
    those in a folder that are skipped.
    Raises: CorpusError if there is nothing to read."""
    is_remote = "://" in str(corpus)
    name = str(corpus) if is_remote else str(Path(corpus).absolute())
    system, path, entries = _remote(name) if is_remote else _local(Path(name))
    if entries is None:
        if not path.endswith(SUFFIXES):
            raise CorpusError(f"{name}: expected a file named {' or '.join(SUFFIXES)}")
        return [CorpusFile(path, system)]
    suffixes = ", ".join(SUFFIXES)
    files = [
        entry
        for entry in entries
        if entry.endswith(SUFFIXES) and not PurePath(entry).name.startswith(".")
    ]
    if not files:
        raise CorpusError(f"{name}: a folder without {suffixes} files")
    for file in files:
        if not entries[file]:
            raise CorpusError(_why_no_file(file, is_remote=is_remote))
    if skipped := sorted({*entries} - {*files}):
        names = ", ".join(PurePath(entry).name for entry in skipped)
        print(f"{name}: skipped (hidden, or not {suffixes}): {names}", file=sys.stderr)
    return [CorpusFile(file, system) for file in files]


def _why_no_file(path: str, *, is_remote: bool) -> str:
    """Returns an error message: what is in the place of a file of a corpus, and the way out."""
    if not is_remote and Path(path).is_symlink() and not Path(path).exists():
        return (
            f"{path}: a link to {Path(path).readlink()}, which is not there; fetch that file (git "
            "annex get), fix the link, or remove it"
        )
    return (
        f"{path}: expected a file, got {'a folder' if is_remote or Path(path).is_dir() else 'none'}"
        "; give its files as a corpus of their own, or rename it"
    )


def _local(path: Path) -> tuple[None, str, dict[str, bool] | None]:
    """Looks up a path on this machine and returns what `_remote` does, without a file system."""
    if path.is_dir():
        return None, str(path), {str(entry): entry.is_file() for entry in sorted(path.iterdir())}
    if path.is_file():
        return None, str(path), None
    if path.is_symlink():
        raise CorpusError(_why_no_file(str(path), is_remote=False))
    raise CorpusError(
        f"{path}: no such file or folder; expected {', '.join(SUFFIXES)}, a folder of these, "
        "datasets:NAME, or an address such as s3://BUCKET/FOLDER"
    )


def _remote(address: str) -> tuple[Any, str, dict[str, bool] | None]:
    """Looks up an address.

    Returns: the file system, the path in it, and, if that is a folder, the paths in the folder,
        sorted, each with True if it is a file. They are None if the path is itself a file.
    """
    import fsspec

    try:  # without a cache of listings: other processes write there, too
        system, path = fsspec.core.url_to_fs(address, use_listings_cache=False)
        if system.isdir(path):
            entries = {entry["name"]: entry["type"] for entry in system.ls(path, detail=True)}
            return system, path, {name: entries[name] != "directory" for name in sorted(entries)}
        if system.isfile(path):
            return system, path, None
        system.info(path)  # neither a file nor a folder: this says why
        raise FileNotFoundError
    except FileNotFoundError:
        raise CorpusError(f"{address}: no such file or folder") from None
    except Exception as error:  # each file system raises errors of its own
        raise CorpusError(f"{address}: {explain_error(error, address)}") from error
