"""The process that trains one run of a study. It stops when the study that started it is gone.

`python -m research.study.training_process` is that process: `vocagno train`, with a standard
input that the study holds open.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TypedDict

from filelock import FileLock, Timeout

from research.study.plan import Run
from vocagno.errors import InputError

_CHECKOUT = Path(__file__).parents[2]
_LOG = "log.txt"
_LOCK = ".lock"
"""Held by a training process, in the folder of its run."""
_POLL_SECONDS = 1.0
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


class Usage(TypedDict):
    """The resources that a process used. A value is None if the system does not report it."""

    cpu_seconds: float | None
    peak_memory_mib: float | None


def train(run: Run) -> Usage:
    """Trains a run in its own process. Raises: InputError with the error in its log."""
    path = run.folder / _LOG
    command = [sys.executable, "-m", __name__, *run.arguments, "--output", str(run.folder)]
    paths = [str(_CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with path.open("ab") as log:
        start = log.tell()  # earlier text is from processes before this one
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        try:
            usage = _wait(process)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if process.stdin is not None:
                process.stdin.close()
    if process.returncode != 0:
        log_of_process = path.read_bytes()[start:].decode(errors="replace")
        raise InputError(
            f"{run.name}: training {_describe_status(process.returncode)}: "
            f"{error_line(log_of_process)} ({path})"
        )
    return usage


def wait_until_free(run: Run) -> None:
    """Waits while another process trains in the folder of a run: one of a killed study that is
    still saving, or one that somebody else has started."""
    lock = FileLock(run.folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(
            f"{run.name}: waiting for another process, which is training in {run.folder}",
            file=sys.stderr,
        )
        lock.acquire(poll_interval=_POLL_SECONDS)
    lock.release()


def error_line(log: str) -> str:
    """The line of a log that says what went wrong: the last error, or else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (
        [line for line in lines if line.startswith("error: ")]
        or [line for line in lines if _EXCEPTION.match(line)]
        or lines
    )
    return errors[-1] if errors else "its log is empty"


def _describe_status(status: int) -> str:
    """Words an exit status; a negative one is the signal that ended the process."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _wait(process: subprocess.Popen[bytes]) -> Usage:
    """Waits for a process. Returns its processor time and its peak memory."""
    if not hasattr(os, "wait4"):
        process.wait()
        return {"cpu_seconds": None, "peak_memory_mib": None}
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_memory_mib": round(usage.ru_maxrss * unit / 2**20, 1),
    }


def stop_with_parent() -> None:
    """Sends this process SIGTERM, upon which training saves and ends, when the study is gone.

    The study holds the other end of standard input and writes nothing to it. The system closes that
    end however the study dies, so the read returns.
    """

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stop_with_parent", daemon=True).start()


def main() -> int:
    """Trains as the command line says. Returns the exit status."""
    stop_with_parent()
    from vocagno.training.main import main as train_as_configured

    return train_as_configured()


if __name__ == "__main__":
    sys.exit(main())
