"""Shares work among processes and machines that see one folder, without a coordinator.

A process claims an item by locking a file. The lock is released when the process ends, so the items
of a killed process are free again. No process waits inside a collective: a process without work
polls.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 0.2
LOCKS = ".locks"
"""Folder of the lock files, inside the items' folder."""


def share(
    names: Sequence[str],
    folder: Path,
    *,
    done: Callable[[str], bool],
    make: Callable[[str], None],
    report: Callable[[str], object] = lambda name: None,
) -> None:
    """Returns when every item is done, by this process or another.

    Args:
        names: the items; every process passes the same ones.
        folder: a folder that all processes see; its subfolder `.locks` holds the locks.
        done: whether an item is complete. `make` must complete it atomically (a rename).
        make: makes one item. Its errors are raised here, and the item stays free for others.
        report: called once for each item, when it is known to be done.
    """
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    waiting: deque[str] = deque()
    for name in names:
        if done(name):
            report(name)
        else:
            waiting.append(name)
    busy = 0  # consecutive items that another process is making
    while waiting:
        name = waiting.popleft()
        if _try(name, folder, done, make) or done(name):
            report(name)
            busy = 0
        else:
            waiting.append(name)
            busy += 1
        if busy and busy >= len(waiting):
            time.sleep(POLL_SECONDS)
            busy = 0


@contextmanager
def exclusively(name: str, folder: Path) -> Iterator[None]:
    """Waits until no other process has locked `name`, which may be an item of `share`."""
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCKS / name):
        _remove_torn(name, folder)
        yield


def _try(name: str, folder: Path, done: Callable[[str], bool], make: Callable[[str], None]) -> bool:
    """Makes one item unless it is done or another process has it. Returns True if it is done."""
    lock = FileLock(folder / LOCKS / name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False  # another process is making it
    try:
        _look_again(folder)
        if not done(name):
            _remove_torn(name, folder)
            make(name)
        return True
    finally:
        lock.release()


def _look_again(folder: Path) -> None:
    """Opens the folder: a network file system may cache that a file is missing, and opening the
    folder refreshes that cache."""
    with os.scandir(folder) as entries:
        next(entries, None)


def _remove_torn(name: str, folder: Path) -> None:
    """Removes partial files of a killed process."""
    for torn in folder.glob(f".{name}.*.tmp"):
        torn.unlink(missing_ok=True)
