"""Stores at an address: shards are read through a local cache of bounded size. They are made in a
local folder, from where each is published when it is whole."""

# fsspec's `filecache` has no bound, and its list of files is that of the process that wrote last.

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from vocagno.data.store.shards import MAKING, REMEDY, StoreError
from vocagno.errors import ConfigError
from vocagno.system.addresses import Address
from vocagno.system.files import appearing, file_digest
from vocagno.system.shared_work import LOCKS, exclusively

_CONNECTIONS = 8
MOST_OPEN = 64
"""Maximum number of mapped shards per store: those that the cache drops keep their space."""


def cache_folder() -> Path:
    return Path(os.environ.get("VOCAGNO_CACHE") or Path.home() / ".cache" / "vocagno")


def cache_bytes() -> int:
    """The bound of the cache. Raises: ConfigError for a bad one."""
    words = os.environ.get("VOCAGNO_CACHE_GB") or "50"
    with suppress(ValueError):
        if 0 < float(words) < float("inf"):
            return int(float(words) * 1e9)
    raise ConfigError(f"VOCAGNO_CACHE_GB: expected gigabytes above 0, got {words}")


def local_copy(file: Address, size: int, file_hash: str, *, fresh: bool = False) -> Path:
    """A shard in the cache, fetched if it is not there, or to be `fresh`. Files that were used
    longest ago make room for it.

    Raises: StoreError if it is missing, or another than the manifest's.
    """
    folder = cache_folder() / "objects"
    path = folder / f"{file_hash}{file.suffix}"
    if not fresh and path.is_file():
        with suppress(OSError):  # another process drops it
            os.utime(path)
        return path
    with exclusively(file_hash[:2], folder):  # others wait for it, and fetch none
        if fresh or not path.is_file():
            _make_room(folder, size)
            with appearing(path) as written:
                copy = Path(written.name)
                try:
                    file.get(copy)
                except FileNotFoundError:
                    raise StoreError(f"{file}: the shard is missing; {REMEDY}") from None
                if file_digest(copy) != file_hash:
                    raise StoreError(f"{file}: differs from its hash in the manifest; {REMEDY}")
    return path


_free: dict[tuple[Path, int], int] = {}
"""Bytes that this process may fetch into a cache before it lists the files again."""
_SHARES = 64
"""Number of processes for which the bound holds exactly."""


def _make_room(folder: Path, size: int) -> None:
    """What is left of killed processes counts, and goes in its turn, too."""
    key = folder, (bound := cache_bytes())
    _free[key] = _free.get(key, 0) - size
    if _free[key] >= 0:
        return
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name != LOCKS:
                    files.append(((found := entry.stat()).st_mtime_ns, found.st_size, entry.path))
    room = bound - size - sum(of_file for _, of_file, _ in files)
    for _, of_file, path in sorted(files) if room < 0 else ():
        with suppress(OSError):  # Windows keeps a file that is open
            if room < bound // _SHARES:
                Path(path).unlink()
                room += of_file
    _free[key] = max(0, room) // _SHARES


def gather(address: Address, folder: Path, names: Sequence[str]) -> None:
    """Shards that were published, and are not here, are fetched; shards here that are no longer
    there are published again."""
    there = address.sizes()

    def gather_one(name: str) -> None:
        path, file, size = folder / name, address / name, there.get(name)
        if not path.is_file() and size is not None:
            _fetch(file, path)
        elif path.is_file() and size != path.stat().st_size:
            file.put(path)

    with exclusively("gathering", folder), ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(gather_one, (f"{name}.arrow" for name in names)))


def publish(path: Path, file: Address) -> None:
    """Uploads a shard, unless another machine has: then that is the one."""
    try:
        file.put(path, is_new=True)
    except FileExistsError:
        _fetch(file, path)


def _fetch(file: Address, path: Path) -> None:
    with appearing(path, path.parent / MAKING) as written:
        file.get(Path(written.name))
