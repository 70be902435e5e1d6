"""Writes files atomically, hashes them, and refuses pointers of Git LFS and git-annex."""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vocagno.errors import InputError
from vocagno.system.addresses import Address

POINTER_SIZE = 1024
"""The size in bytes that a pointer stays below, by the specification of Git LFS."""
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": "git lfs pull",
    b"/annex/objects/": "git annex get",
}
"""The first bytes of a file that stands for one kept elsewhere, and the command that fetches it."""


@contextmanager
def atomic_file(path: Path, partial: Path | None = None) -> Iterator[BinaryIO]:
    """Yields a binary file that replaces `path` when the block ends without an error.

    It is written next to `path`, or in the folder `partial` of the same file system, flushed to
    disk and renamed. On any failure (a full disk, for example) the partial file is removed and the
    old file is unchanged.
    """
    for folder in {path.parent, partial or path.parent}:
        folder.mkdir(parents=True, exist_ok=True)
    temporary = (partial or path.parent) / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


@contextmanager
def atomic_files(folder: Path) -> Iterator[Path]:
    """Yields a new folder whose files move to `folder`, which is empty or missing, when the block
    ends without an error. On any failure the new folder is removed.
    """
    is_there = folder.is_dir()  # it may be a link, or another file system
    parent = folder if is_there else folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = parent / f".{folder.name}.{secrets.token_hex(8)}.tmp"
    temporary.mkdir()
    try:
        yield temporary
        if is_there:
            # In reverse, so that shards are there before the manifest that names them.
            for path in sorted(temporary.iterdir(), reverse=True):
                path.rename(folder / path.name)
            temporary.rmdir()
        else:
            temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush_folder(parent)


def flush_folder(folder: Path) -> None:
    """Makes renames in a folder survive a power loss, where the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system supports it
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically, also at an address: a reader sees the old file or the new one."""
    content = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    if isinstance(path, Address):
        return path.put(content)
    with atomic_file(path) as file:
        file.write(content)


def write_new_json(path: Path, value: Any) -> None:
    """Writes JSON atomically unless the file exists.

    If several processes write the file at the same time, the first one wins on file systems with
    hard links and at addresses; on others the last one.
    """
    if isinstance(path, Address):
        with suppress(FileExistsError):
            path.put(json.dumps(value).encode(), is_new=True)
        return
    new = path.parent / f".{path.name}.{secrets.token_hex(8)}.new"
    write_json(new, value)
    try:
        os.link(new, path)  # atomic, and an error if the file is there
    except FileExistsError:
        pass
    except OSError:  # no hard links here
        write_json(path, value)
    finally:
        new.unlink(missing_ok=True)
    flush_folder(path.parent)


def digest(*parts: bytes | str) -> str:
    """Hashes the parts and their boundaries to 32 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        # A path that is not UTF-8 holds its bytes as surrogates.
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def file_digest(path: Path) -> str:
    """Hashes a file's bytes to 32 hexadecimal digits."""
    with path.open("rb") as file:
        state = hashlib.blake2b(digest_size=16)
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def refuse_pointer(start: bytes, name: str, error: type[InputError] = InputError) -> None:
    """Refuses the stand-in of a file that is kept elsewhere (Git LFS, git-annex). It would be read
    as a short text.

    Args: start: the first bytes of a file of less than `POINTER_SIZE`.
    Raises: `error`, with the command that fetches the file.
    """
    for prefix, fetch in _POINTERS.items():
        if start.startswith(prefix):
            raise error(f"{name}: is a pointer to the file, not the file; run `{fetch}` there")


def refuse_pointers(paths: Iterable[Path], error: type[InputError] = InputError) -> None:
    """Refuses pointers among local files (`refuse_pointer`); missing files are ignored."""
    for path in paths:
        if path.is_file() and path.stat().st_size < POINTER_SIZE:
            refuse_pointer(path.read_bytes(), str(path), error)
