"""Trains again and again into one folder, each time in a process of its own that is stopped at a
chosen moment, and prints what each left.

    killed_training.py STOPS.json train.py's arguments

STOPS: `[point, n]` for a SIGKILL at that point of the n-th checkpoint that the process writes (one
of POINTS); `["step", n, part]` or `["term", n, part]` for a SIGKILL or SIGTERM in the n-th step, a
`part` of a step's time after it began. The processes are forked from one that has imported
everything.
"""

import importlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from vocagno.training import checkpoint, loop, main

POINTS = (
    "before the folder",
    "before the model",
    "inside the model",
    "before the optimizer",
    "inside the optimizer",
    "before the random state",
    "before the flush",
    "inside the flush",
    "before the name",
    "after the name",
    "before an old one goes",
    "while an old one goes",
    "after an old one went",
)
STEP_SECONDS = 0.03


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point, turn):
    """Makes this process die at a point of its turn-th checkpoint."""
    import accelerate.utils.other as writing

    saves = [0]
    safe_save, torch_save = writing.safe_save_file, torch.save
    save, publish = checkpoint.Checkpoints.save, checkpoint.publish_folder
    fsync, rename, rmtree = os.fsync, Path.rename, shutil.rmtree
    inside = [False]

    def at(name):
        return point == name and saves[0] == turn and inside[0]

    def saving(self, step):
        saves[0] += 1
        inside[0] = True
        if at("before the folder"):
            die()
        save(self, step)
        inside[0] = False

    def halved(path):
        os.truncate(path, Path(path).stat().st_size // 2)
        die()

    def saving_model(tensors, path, **options):
        if at("before the model"):
            die()
        safe_save(tensors, path, **options)
        if at("inside the model"):
            halved(path)

    def saving_torch(value, path, **options):
        name = Path(path).name if isinstance(path, str | Path) else ""
        if at("before the optimizer") and "optimizer" in name:
            die()
        if at("before the random state") and "random" in name:
            die()
        torch_save(value, path, **options)
        if at("inside the optimizer") and "optimizer" in name:
            halved(path)

    flushed = [0]

    def flushing(descriptor):
        if at("inside the flush"):
            flushed[0] += 1
            if flushed[0] == 3:
                die()
        fsync(descriptor)

    def publishing(temporary, final):
        if at("before the flush"):
            die()
        publish(temporary, final)

    def renaming(self, target):
        goes = str(target).endswith(".old.tmp")
        if (at("before the name") and not goes) or (at("before an old one goes") and goes):
            die()
        result = rename(self, target)
        if at("after the name") and not goes:
            die()
        return result

    def removing(folder, *rest, **options):
        if str(folder).endswith(".old.tmp") and at("while an old one goes"):
            next(Path(folder).iterdir()).unlink()
            die()
        rmtree(folder, *rest, **options)
        if str(folder).endswith(".old.tmp") and at("after an old one went"):
            die()

    writing.safe_save_file, torch.save = saving_model, saving_torch
    checkpoint.Checkpoints.save, checkpoint.publish_folder = saving, publishing
    os.fsync, Path.rename, shutil.rmtree = flushing, renaming, removing


def report_step(pipe, number):
    """Tells the other end of the pipe that the step of this number begins."""
    step, taken = loop.Training._step, [0]

    def stepping(self, *arguments):
        taken[0] += 1
        if taken[0] == number:
            os.write(pipe, b".")
        time.sleep(STEP_SECONDS / 2)  # so that a step takes about as long on any machine
        result = step(self, *arguments)
        time.sleep(STEP_SECONDS / 2)
        return result

    loop.Training._step = stepping


def attempt(arguments, stop):
    """One process; its status, as `os.waitpid` gives it."""
    begun, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begun)
        if stop is not None and stop[0] in ("step", "term"):
            report_step(writes, stop[1])
        elif stop is not None:
            arm(*stop)
        os._exit(main.main(arguments))
    os.close(writes)
    if stop is not None and stop[0] in ("step", "term") and os.read(begun, 1):
        time.sleep(stop[2] * STEP_SECONDS)
        os.kill(child, signal.SIGKILL if stop[0] == "step" else signal.SIGTERM)
    os.close(begun)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    for module in ("core_model_loading", "models.llama.modeling_llama"):  # what loading imports
        importlib.import_module(f"transformers.{module}")
    importlib.import_module("torch._dynamo")
    stops, arguments = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]
    output = Path(arguments[arguments.index("--output") + 1])
    for stop in [*stops, None]:
        status = attempt(arguments, stop)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        left = sorted(path.name for path in (output / "checkpoints").glob("*"))
        record = {"stop": stop, "killed": killed, "left": left}
        record["exit"] = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        print(json.dumps(record), flush=True)
