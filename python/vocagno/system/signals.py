"""Turns errors into the exit statuses of the commands, and handles SIGTERM and Ctrl-C so that a run
can resume after them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vocagno._vocagno import SpanError
from vocagno.errors import InputError


class Terminated(BaseException):
    """SIGTERM: work in progress is abandoned and leaves no partial files."""


@contextmanager
def terminable() -> Iterator[None]:
    """Turns SIGTERM into `Terminated` while the block lasts (in the main thread)."""

    def receive(number: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_with_signals(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program that gets the signals of this process and ends by its own rules; returns its
    exit status.

    It has a session of its own, so Ctrl-C reaches it once; SIGKILL of this process does not. If it
    ended before it could obey, this process gets the signal, too. Only for the main thread.
    """
    if sys.platform == "win32":  # the console sends Ctrl-C to both
        return subprocess.run(command, env=environment, check=False).returncode
    process: subprocess.Popen[bytes] | None = None
    received: list[int] = []
    early: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    obeyed = [number for number in numbers if before[number] is not signal.SIG_IGN]  # nohup
    for number in obeyed:
        signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        for missed in early:
            process.send_signal(missed)
        status = process.wait()
    finally:
        for number in obeyed:
            signal.signal(number, before[number])
    if received and (status == DONE or status == -received[-1]):
        signal.raise_signal(received[-1])
    return status


class StopRequest:
    """While the block lasts, turns SIGTERM and the first Ctrl-C into a flag that the loop reads
    between steps."""

    def __init__(self) -> None:
        self.received: bool = False

    def __enter__(self) -> "StopRequest":
        signals = (signal.SIGTERM, signal.SIGINT)
        self._before = {number: signal.signal(number, self._receive) for number in signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _receive(self, number: int, frame: Any) -> None:
        is_typed = number == signal.SIGINT
        if is_typed and self.received:
            raise KeyboardInterrupt
        self.received = True
        hint = ". Press Ctrl-C again to quit without saving." if is_typed else ""
        name = signal.Signals(number).name
        print(f"{name}: saving after this step{hint}", file=sys.stderr, flush=True)


DONE = 0
FOUND_WRONG = 1
"""The command ran and found something wrong, or the reader of its output closed the pipe."""
USER_ERROR = 2
"""An option, a file or a package is wrong or missing. Stderr says which, and how to fix it."""
UNFINISHED = 75
"""SIGTERM, or Ctrl-C in training, stopped the command. The same command resumes (EX_TEMPFAIL of
sysexits.h)."""
INTERRUPTED = 130
"""Ctrl-C (SIGINT) stopped the command."""

_KEPT = "Finished work is kept. Run the same command again to resume."
_EXTRAS = {
    "cli": ("jsonargparse", "rich", "filelock", "tokenizers", "yaml"),
    "data": ("huggingface_hub", "pyarrow", "tqdm"),
    "eval": ("lm_eval", "math_verify", "sympy", "word2number"),
    "viz": ("matplotlib",),
}
"""Packages by the extra that installs them; `train` installs all others."""


def exit_status(run: Callable[[], int]) -> int:
    """Runs a command to its exit status, and prints its error in one line on stderr.

    Other exceptions than those of the statuses above are bugs, and pass.
    """
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Python flushes stdout again when it exits, which would print a second error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FOUND_WRONG
    except (InputError, SpanError, OSError) as error:
        return _report_error(error)
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name == "vocagno":
            raise
        extra = next((extra for extra, modules in _EXTRAS.items() if name in modules), "train")
        return _report_error(f"needs {name}: pip install '.[{extra}]' in the checkout")
    except Terminated:
        print(f"stopped. {_KEPT}", file=sys.stderr)
        return UNFINISHED
    except KeyboardInterrupt:
        print(f"interrupted. {_KEPT}", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as end:  # --help and --version
        if end.code:
            raise
        return DONE


def _report_error(error: object) -> int:
    """Prints an error that the user can fix; returns its exit status."""
    print(f"error: {error}", file=sys.stderr)
    return USER_ERROR
