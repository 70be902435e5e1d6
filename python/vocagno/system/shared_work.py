"""Work shared among processes and machines that see one folder, without a coordinator.

A process claims an item by locking a file; the lock goes with the process, so what a killed
process had claimed is free again. Nobody waits inside a collective: who finds nothing to do looks
again after a while.
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
"""Folder in that of the items, with a file for each."""


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
        folder: a folder that all processes see; the locks lie in `.locks` in it.
        done: whether an item is complete. `make` must complete it at one stroke (a rename).
        make: does one item; what it raises is raised here, and the item stays free for others.
        report: is told of each item once, when it is known to be done.
    """
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    waiting: deque[str] = deque()
    for name in names:
        if done(name):
            report(name)
        else:
            waiting.append(name)
    busy = 0  # items in a row that another process is at
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
    """Waits until no other process is at `name`, which may be an item of `share`."""
    (folder / LOCKS).mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCKS / name):
        _remove_torn(name, folder)
        yield


def _try(name: str, folder: Path, done: Callable[[str], bool], make: Callable[[str], None]) -> bool:
    """Does one item unless it is done or another process has it; True if it is done now."""
    lock = FileLock(folder / LOCKS / name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False  # another process is at it
    try:
        _look_again(folder)
        if not done(name):
            _remove_torn(name, folder)
            make(name)
        return True
    finally:
        lock.release()


def _look_again(folder: Path) -> None:
    """Opens the folder: a network file system may remember that a file was not there, and asks the
    server about a folder that is opened."""
    with os.scandir(folder) as entries:
        next(entries, None)


def _remove_torn(name: str, folder: Path) -> None:
    """Removes what a killed process had begun to write."""
    for torn in folder.glob(f".{name}.*.tmp"):
        torn.unlink(missing_ok=True)
