"""Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """How far some work is, shown by one process."""

    def __init__(self, name: str, total: int, *, unit: str, show: bool, start: int = 0) -> None:
        self._name, self._total, self._unit = name, total, unit
        terminal = sys.stderr.isatty()
        self._lines = show and not terminal
        self._done = start
        self._last_line = time.monotonic()
        self._bar = tqdm(
            total=total, initial=start, desc=name, unit=unit, unit_scale=unit == "B",
            disable=not (show and terminal), file=sys.stderr,
        )  # fmt: skip

    def at(self, done: int, note: str = "") -> None:
        """Says how much is done in all."""
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._done)
        self._done = done
        if self._lines and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._line(note)

    def _line(self, note: str) -> None:
        share = 100 * self._done // max(1, self._total)
        counts = f"{self._done:,} of {self._total:,} {self._unit}"
        print(f"{self._name}: {share} % ({counts}) {note}".rstrip(), file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
        if self._lines and error is None:
            self._line("")
