"""Shares work among processes and machines that see one folder, without a coordinator.

A process claims an item by locking a file. The lock is released when the process ends, so the items
of a killed process are free again. No process waits inside a collective: a process without work
polls.
"""

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 0.2
LOCKS = ".locks"
"""Folder of the lock files, inside the items' folder."""
_SPREAD = random.Random()
"""The source of the items that a busy process tries next. It has a state of its own, so that a
training run keeps its random state."""


def share(
    names: Sequence[str],
    folder: Path,
    *,
    done: Callable[[str], bool],
    make: Callable[[str], None],
    report: Callable[[str], object] = lambda name: None,
    partial: str = ".",
) -> None:
    """Returns when every item is done, by this process or another.

    Items are made in order. A process that meets an item that another one is making continues at a
    random one, so that many processes do not try the same locks one after the other.

    Args:
        names: the items; every process passes the same ones. A name may have a folder: `000/a`.
        folder: a folder that all processes see; its subfolder `.locks` holds the locks.
        done: whether an item is complete. `make` must complete it atomically (a rename).
        make: makes one item. Its errors are raised here, and the item stays free for others.
        report: called once for each item, when it is known to be done.
        partial: the folder, from that of an item, of its partial files (`files.atomic_file`). Those
            of killed processes are removed before it is made.
    """
    waiting: deque[str] = deque()
    for name in names:
        if done(name):
            report(name)
        else:
            waiting.append(name)
    busy = 0  # consecutive items that another process is making
    while waiting:
        name = waiting.popleft()
        if _try(name, folder, done, make, partial) or done(name):
            report(name)
            busy = 0
        else:
            waiting.append(name)
            busy += 1
            waiting.rotate(-_SPREAD.randrange(len(waiting)))
        if busy and busy >= len(waiting):
            time.sleep(POLL_SECONDS)
            busy = 0


@contextmanager
def exclusively(name: str, folder: Path) -> Iterator[None]:
    """Waits until no other process has locked `name`, which may be an item of `share`."""
    with _lock(name, folder):
        _remove_torn(name, folder)
        yield


def is_locked(name: str, folder: Path) -> bool:
    """Tells whether a process is making an item. A lock that is free is held for a moment."""
    if not (folder / LOCKS / name).is_file():
        return False
    try:
        with _lock(name, folder).acquire(timeout=0):
            return False
    except Timeout:
        return True


def _lock(name: str, folder: Path) -> FileLock:
    path = folder / LOCKS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def _try(
    name: str, folder: Path, done: Callable[[str], bool], make: Callable[[str], None], partial: str
) -> bool:
    """Makes one item unless it is done or another process has it. Returns True if it is done."""
    path = folder / name
    try:
        lock = _lock(name, folder).acquire(timeout=0)
    except Timeout:
        return False  # another process is making it
    with lock:
        _look_again(path.parent)
        if not done(name):
            _remove_torn(path.name, path.parent / partial)
            make(name)
        return True


def _look_again(folder: Path) -> None:
    """Opens the folder: a network file system may cache that a file is missing, and opening the
    folder refreshes that cache."""
    folder.mkdir(parents=True, exist_ok=True)
    with os.scandir(folder) as entries:
        next(entries, None)


def _remove_torn(name: str, folder: Path) -> None:
    """Removes partial files of a killed process."""
    for torn in folder.glob(f".{name}.*.tmp"):
        torn.unlink(missing_ok=True)
