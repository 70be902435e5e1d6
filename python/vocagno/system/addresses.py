"""Reads and writes files and folders at an address that fsspec knows (`s3://`, `gs://`, `hf://`)."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.errors import InputError

if TYPE_CHECKING:
    _Local = Path
else:
    _Local = type(Path())  # Path itself cannot be subclassed before Python 3.12
_FORM = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:[/\\]")
_WITHOUT_PLACE = re.compile(r"(?!file:|memory:)[A-Za-z][A-Za-z0-9+.-]+:[/\\]+")


class AddressError(InputError):
    """A file system does not answer or refuses; the message names address, error and remedy."""


def path_of(folder: Path | str) -> Path:
    """Makes the path of a folder: an `Address` if it has the form of one.
    Raises: AddressError for an address without a place (`s3://` from an empty variable)."""
    if _WITHOUT_PLACE.fullmatch(str(folder)):
        raise AddressError(f"{folder}: an address needs a bucket or a folder behind the scheme")
    return Address(folder) if _FORM.match(str(folder)) else Path(folder)


class Address(_Local):
    """A path that is an address, with the calls that stores make of a path. `Path` loses one of the
    slashes behind the scheme, so any path of this form will do.

    Objects are written as a whole: a reader sees the old one, the new one or none.
    """

    def __str__(self) -> str:
        return super().__str__().replace("\\", "/").replace(":/", "://", 1)

    @contextmanager
    def _system(self, rights: str = "list and read") -> Iterator[tuple[Any, str]]:
        """Yields the file system, which a forked process makes again, and the path in it.
        Raises: AddressError for all errors except missing files, and files that exist already."""
        import fsspec

        try:  # without a cache of listings: other processes write there, too
            yield fsspec.core.url_to_fs(str(self), use_listings_cache=False)
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:  # each file system raises errors of its own
            raise AddressError(f"{self}: {explain_error(error, str(self), rights)}") from error

    def is_file(self, **_: Any) -> bool:
        try:
            with self._system() as (system, path):
                return bool(system.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def sizes(self) -> dict[str, int]:
        """Returns the number of bytes of each file of a folder, by its path there."""
        return {name: details["size"] for name, details in self._files().items()}

    def marks(self) -> dict[str, str]:
        """Returns the `mark` of each file of a folder, by its path there."""
        return {name: _mark(details) for name, details in self._files().items()}

    def mark(self) -> str:
        """Returns the ETag, which changes with an object's bytes; "" if the system has none."""
        with self._system() as (system, path):
            return _mark(system.info(path))

    def _files(self) -> dict[str, dict[str, Any]]:
        """Returns the details of each file of a folder, by its path there."""
        with self._system() as (system, path):
            files = system.find(path, detail=True)
        start = len(path.rstrip("/")) + 1
        return {name[start:]: details for name, details in files.items()}

    def read_bytes(self) -> bytes:
        with self._system() as (system, path):
            return bytes(system.cat_file(path))

    def get(self, file: Path) -> None:
        """Copies the object to a local file, not atomically. Raises: FileNotFoundError."""
        with self._system() as (system, path):
            system.get_file(path, str(file))

    def put(self, content: Path | bytes, *, is_new: bool = False) -> None:
        """Replaces the object by a local file, or by bytes.

        Args: is_new: raise an error if the object exists.
        Raises: FileExistsError, only with `is_new`; AddressError.
        """
        mode = "create" if is_new else "overwrite"
        for seconds in (0.2, 0.5, 1, 2, 4, 0):
            try:
                with self._system("list, read and write") as (system, path):
                    if isinstance(content, bytes):
                        system.pipe_file(path, content, mode=mode)
                    else:
                        system.put_file(str(content), path, mode=mode)
                    return
            except FileNotFoundError as error:  # noqa: PERF203  # of each try
                raise AddressError(f"{self}: {error}; make the bucket, or name another") from error
            except AddressError as error:
                answer = _answer(error) if is_new else set()
                if answer & {"412", "PreconditionFailed"}:  # s3fs knows only the answer of AWS
                    raise FileExistsError(str(self)) from error
                if not (seconds and answer & {"409", "ConditionalRequestConflict"}):
                    raise
                time.sleep(seconds)  # another process is writing it

    def mkdir(self, *_: Any, **__: Any) -> None:
        raise AddressError(f"{self}: expected a folder of this machine")

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with self._system("list, read, write and delete in") as (system, path):
                system.rm_file(path)
        except FileNotFoundError:  # not raised by S3
            if not missing_ok:
                raise


def _mark(details: dict[str, Any]) -> str:
    """Returns the ETag in the details of an object; the file systems spell the key differently."""
    return str(details.get("ETag") or details.get("etag") or "").strip('"')


def _answer(error: BaseException | None) -> set[str]:
    """Returns the code and the status of the S3 server's answer that caused an error."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return {str(status), answer.get("Error", {}).get("Code", "")}
        error = error.__cause__
    return set()


def explain_error(error: Exception, address: str, rights: str = "list and read") -> str:
    """Describes an error, with the remedy if rights, the network or a package are the cause."""
    name = type(error).__name__
    words = f"{name}: {' '.join(str(error).split())}"
    protocol, _, path = address.partition("://")
    bucket, credentials = path.lstrip("/").partition("/")[0], ""
    if protocol in ("s3", "s3a"):
        bucket = f"the bucket {bucket}"
        credentials = " (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)"
        if isinstance(error, ImportError):
            return f"{words}; pip install '.[s3]' in the checkout"
    if "Connect" in name or "Timeout" in name:
        return f"{words}; check network and endpoint, and run the command again: it resumes"
    if not isinstance(error, PermissionError) and "Credentials" not in name:
        return words
    return f"{words}; check that the credentials in use{credentials} may {rights} {bucket}"
