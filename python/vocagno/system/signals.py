"""SIGTERM and Ctrl-C: a run that can resume stops soon, with an exit status that says so."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
        more = ". Press Ctrl-C again to quit without saving." if is_typed else ""
        name = signal.Signals(number).name
        print(f"{name}: saving after this step{more}", file=sys.stderr, flush=True)
