"""Reads and publishes the shards of a store at an address. They are read through a local cache of
bounded size, and made in a local folder, from where each is published when it is whole."""

# fsspec's `filecache` has no bound, and its list of files is that of the process that wrote last.

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from vocagno.data.store.shards import MAKING, REMEDY, StoreError
from vocagno.errors import ConfigError
from vocagno.system.addresses import Address
from vocagno.system.files import atomic_file, file_digest
from vocagno.system.shared_work import LOCKS, exclusively

_CONNECTIONS = 8
"""Number of shards that are fetched or uploaded at once."""
MOST_OPEN = 64
"""Maximum number of mapped shards per store: those that the cache drops keep their space."""


def cache_folder() -> Path:
    """Returns the folder of the cache: `VOCAGNO_CACHE`, or `~/.cache/vocagno`."""
    return Path(os.environ.get("VOCAGNO_CACHE") or Path.home() / ".cache" / "vocagno")


def cache_bytes() -> int:
    """Returns the bound of the cache: `VOCAGNO_CACHE_GB`, or 50 GB.
    Raises: ConfigError for one that is not a number of gigabytes above 0."""
    words = os.environ.get("VOCAGNO_CACHE_GB") or "50"
    with suppress(ValueError):
        if 0 < float(words) < float("inf"):
            return int(float(words) * 1e9)
    raise ConfigError(f"VOCAGNO_CACHE_GB: expected gigabytes above 0, got {words}")


def local_copy(file: Address, size: int, file_hash: str, *, fresh: bool = False) -> Path:
    """Returns the copy of a shard in the cache. It is fetched if it is not there, and in any case
    for `fresh`. Files that were used longest ago make room for it.
    Raises: StoreError if it is missing, or another than the manifest's."""
    folder = cache_folder() / "objects"
    path = folder / f"{file_hash}{file.suffix}"
    if not fresh and path.is_file():
        # The time of change is the order in which `_make_room` drops files: reading one makes it
        # the newest.
        with suppress(OSError):  # another process drops it
            os.utime(path)
        return path
    # Two digits: at most 256 lock files, however many shards the cache has seen.
    with exclusively(file_hash[:2], folder):  # others wait for it, and fetch none
        if fresh or not path.is_file():
            _make_room(folder, size)
            with atomic_file(path) as written:
                copy = Path(written.name)
                try:
                    file.get(copy)
                except FileNotFoundError:
                    raise StoreError(f"{file}: the shard is missing; {REMEDY}") from None
                if file_digest(copy) != file_hash:
                    raise StoreError(f"{file}: differs from its hash in the manifest; {REMEDY}")
    return path


_free: dict[tuple[Path, int], int] = {}
"""Bytes that this process may fetch into a cache, by its folder and bound, before it lists the
files again."""
_SHARES = 64
"""Number of processes for which the bound holds exactly."""
_ABANDONED = 3600e9
"""Age in nanoseconds above which a partial file is one of a killed process."""


def _make_room(folder: Path, size: int) -> None:
    """Removes the files of the cache that were used longest ago until `size` more bytes fit.

    Partial files count, and those of killed processes go in their turn, too.
    """
    # Listing takes longer the fuller the cache is. A process therefore takes a share of the room
    # that it finds, and lists the files again when that is used up, not for every shard.
    key = folder, (bound := cache_bytes())
    _free[key] = _free.get(key, 0) - size
    if _free[key] >= 0:
        return
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name != LOCKS:
                    files.append(((status := entry.stat()).st_mtime_ns, status.st_size, entry.path))
    room = bound - size - sum(file_bytes for _, file_bytes, _ in files)
    abandoned = time.time_ns() - _ABANDONED
    for changed, file_bytes, path in sorted(files) if room < 0 else ():
        with suppress(OSError):  # Windows keeps a file that is open
            if room < bound // _SHARES and (changed < abandoned or not path.endswith(".tmp")):
                Path(path).unlink()
                room += file_bytes
    _free[key] = max(0, room) // _SHARES


def gather(
    address: Address, folder: Path, names: Sequence[str], *, to_finish: bool = False
) -> None:
    """Makes the shards in a local folder equal to those at the address. A local shard that is no
    longer at the address is published again.
    Args: to_finish: also fetches again all shards for which the file system has no mark (an
        ETag)."""
    there = address.marks()

    def gather_one(name: str) -> None:
        path, file, mark = folder / name, address / name, there.get(name)
        if not path.is_file():
            if mark is not None:
                _fetch(file, path)
            return
        mark_file = _mark_file(path)
        if mark is None:
            is_same = _upload(path, file, mark_file)
        else:
            is_known = mark_file.is_file() and mark_file.read_text() == mark
            # A mark of "" (a file system without ETags) tells nothing. While shards are made that
            # is enough; the manifest names hashes of bytes, so before it is written these are
            # fetched again.
            is_same = is_known and not (to_finish and not mark)
        if not is_same:
            for notes in (folder / MAKING).glob("*.jsonl"):  # one may be of the other bytes
                notes.unlink(missing_ok=True)
            _fetch(file, path)

    with exclusively("gathering", folder), ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(gather_one, (f"{name}.arrow" for name in names)))


def publish(new: Path, path: Path, file: Address) -> None:
    """Uploads a shard that was made here, and moves it to its place. If another machine has
    uploaded it meanwhile, that one is fetched to the place instead.
    Args: new: the shard before it is published; path: its place here; file: its address."""
    if _upload(new, file, _mark_file(path)):
        new.replace(path)  # so what is in its place was published
    else:
        _fetch(file, path)
        new.unlink()


def _upload(path: Path, file: Address, mark_file: Path) -> bool:
    """Uploads a shard unless another machine has uploaded one. Returns whether it did."""
    with suppress(FileExistsError):
        file.put(path, is_new=True)
        mark_file.write_text(file.mark())
        return True
    return False


def _fetch(file: Address, path: Path) -> None:
    """Fetches a shard, and writes its mark next to it."""
    # The mark is asked for before the bytes. If another machine replaces the object in between, the
    # mark is the older one, and the next `gather` fetches again. Without a mark file, as after a
    # kill during the copy, it does so, too.
    mark_file, mark = _mark_file(path), file.mark()
    mark_file.unlink(missing_ok=True)
    with atomic_file(path, path.parent / MAKING) as written:
        file.get(Path(written.name))
    mark_file.write_text(mark)


def _mark_file(path: Path) -> Path:
    """Returns the file that holds the `Address.mark` of the object that a shard here is equal
    to."""
    return path.with_suffix(".mark")
