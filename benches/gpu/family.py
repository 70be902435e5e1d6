"""Processes with all that they started, whose sessions may be their own."""

import subprocess
import time
from contextlib import suppress
from typing import Any

import psutil

PATIENCE = 10.0
"""Seconds after which no process is waited for any longer."""


def kill(process: subprocess.Popen[Any]) -> bool:
    """SIGKILL for a process and all its descendants; False if it had ended by itself.

    A launcher starts its workers in sessions of their own, so a process group is not enough; and
    they are looked up before it dies, because afterwards it is not known whose they were.
    """
    if process.poll() is not None:
        return False
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE
    while any(map(_is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.01)  # what they hold (files locked, memory of the device) goes with them
    return True


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
