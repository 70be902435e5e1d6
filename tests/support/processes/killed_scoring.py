"""Scores a corpus again and again, each time in a process of its own that is killed (SIGKILL) at a
chosen point of a chosen file, and prints what each kill left.

    killed_scoring.py SHARD_BYTES KILLS.json score CORPUS --out STORE ...

KILLS: `[point, n]` for a kill at the n-th shard that the process writes, `["manifest " + point,
0]`, or `["time", seconds]` after it began to write. The processes are forked from one that has
imported everything.
"""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import vocagno.data.corpus
from vocagno.cli.app import main


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Torn:
    """A file whose writes stop half-way, for good."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()

    def write(self, data):
        data = bytes(data)
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()


def arm(point, turn):
    """Makes this process die at a point of the turn-th temporary file of a kind."""
    prefix = ".manifest." if point.startswith("manifest ") else ".shard-"
    point = point.removeprefix("manifest ")
    count = [0]
    is_it = [False]
    open_path, replace, fsync = Path.open, Path.replace, os.fsync

    def opening(self, mode="r", *rest, **options):
        file = open_path(self, mode, *rest, **options)
        if self.name.endswith(".tmp"):
            count[0] += self.name.startswith(prefix)
            is_it[0] = self.name.startswith(prefix) and count[0] == max(1, turn)
            if is_it[0] and point == "write":
                return Torn(file)
        return file

    def syncing(descriptor):
        if is_it[0] and point == "before fsync":
            die()
        fsync(descriptor)
        if is_it[0] and point == "after fsync":
            die()

    def renaming(self, target):
        if is_it[0] and point == "before rename":
            die()
        result = replace(self, target)
        if is_it[0] and point == "after rename":
            die()
        is_it[0] = False
        return result

    Path.open, Path.replace, os.fsync = opening, renaming, syncing


def report_writing(pipe):
    """Tells the other end of the pipe when the first file is written; every write takes a while."""
    open_path = Path.open

    def opening(self, *rest, **options):
        file = open_path(self, *rest, **options)
        if self.name.endswith(".tmp"):
            os.write(pipe, b".")
            time.sleep(0.01)
        return file

    Path.open = opening


def attempt(arguments, kill):
    """One process; its status, as `os.waitpid` gives it."""
    begun, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begun)
        if kill is not None and kill[0] == "time":
            report_writing(writes)
        elif kill is not None:
            arm(*kill)
        os._exit(main(arguments))
    os.close(writes)
    if kill is not None and kill[0] == "time" and os.read(begun, 1):
        time.sleep(kill[1])
        os.kill(child, signal.SIGKILL)
    os.close(begun)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    for module in ("core_model_loading", "models.llama.modeling_llama"):  # what loading imports
        importlib.import_module(f"transformers.{module}")
    importlib.import_module("vocagno.training.inputs")
    vocagno.data.corpus.SHARD_BYTES = int(sys.argv[1])
    kills, arguments = json.loads(Path(sys.argv[2]).read_text()), sys.argv[3:]
    store = Path(arguments[arguments.index("--out") + 1])
    for kill in [*kills, None]:
        status = attempt(arguments, kill)
        left = sorted(path.name for path in store.rglob(".*.tmp")) if store.is_dir() else []
        whole = len(list(store.glob("*.arrow")))
        died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        record = {"kill": kill, "died": died, "exit": None if died else os.WEXITSTATUS(status)}
        record |= {"left": left, "shards": whole}
        print(json.dumps(record), flush=True)
