"""Shows progress on stderr (a bar on a terminal, otherwise a line every ten seconds), measures peak
memory, and formats tables."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

from vocagno.errors import InputError

_SECONDS_BETWEEN_LINES = 10.0
_STATUS = Path("/proc/self/status")


class Progress(AbstractContextManager["Progress"]):
    """The progress of some work, shown by one process.

    Earlier work (`start`) counts as done, but not for the speed. The speed is measured up to the
    previous call: work that comes in batches is reported in many calls at once, after the whole
    batch took its time.
    """

    def __init__(
        self, name: str, total: int | None, *, unit: str, show: bool, start: int = 0
    ) -> None:
        from tqdm import tqdm

        self._name, self._total, self._unit = name, total, unit
        terminal = sys.stderr.isatty()
        self._lines = show and not terminal
        self._start = self._done = start
        self._note = ""
        self._began = self._last_line = self._last_call = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=start,
            desc=name,
            unit=unit,
            unit_scale=unit == "B",
            disable=not (show and terminal),
            file=sys.stderr,
        )

    def at(self, done: int, note: str | None = None) -> None:
        """Sets the total amount done. The note stays until it is replaced."""
        self._note = note = self._note if note is None else note
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._done)
        elapsed, speed = self._last_call - self._began, self._done - self._start
        self._done, self._last_call = done, time.monotonic()
        if self._lines and self._last_call - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = self._last_call
            left = elapsed * (self._total - done) / speed if self._total and speed else 0
            self._line(note, left)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(text, file=sys.stderr)

    def _line(self, note: str, left: float = 0) -> None:
        words = [f"{self._name}: {self._amount()}"]
        words += [note] if note else []
        if left > 0:
            words.append(f"{timedelta(seconds=round(left))} left")
        print(", ".join(words), file=sys.stderr, flush=True)

    def _amount(self) -> str:
        if self._total is None:
            return f"{self._done:,} {self._unit}"
        share = 100 * self._done // max(1, self._total)
        return f"{share} % ({self._done:,} of {self._total:,} {self._unit})"

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._bar.close()
        short = self._total is None and self._last_line == self._began  # too short to report
        if self._lines and error is None and not short:
            self._line("")


def peak_megabytes() -> float | None:
    """Returns the peak resident memory of this process in MiB; None if the system reports none.

    On Linux from /proc: `getrusage` includes the memory of the parent process before the exec.
    """
    if _STATUS.exists():
        lines = _STATUS.read_text().splitlines()
        kibibytes = next((line for line in lines if line.startswith("VmHWM:")), None)
        return None if kibibytes is None else int(kibibytes.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def draw_in_terminal(picture: Any) -> None:
    """Prints a picture that rich can draw.
    Raises: InputError if the encoding of the output lacks a sign."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.options.ascii_only:  # not UTF-8: other encodings may have the signs
        with console.capture() as drawn:
            console.print(picture)
        try:
            drawn.get().encode(console.encoding)
        except UnicodeEncodeError as error:
            raise InputError(
                f"the terminal's encoding, {console.encoding}, cannot show the picture; set "
                "PYTHONIOENCODING=utf-8 if the terminal can, or draw a page: --html FILE"
            ) from error
    console.print(picture)


def track_documents(batches: Iterable[list[str]], doing: str) -> Iterator[list[str]]:
    """Yields the batches, and counts their documents on a terminal."""
    from rich.console import Console
    from rich.text import Text

    documents = 0
    with Console(stderr=True).status(Text(doing)) as status:
        for texts in batches:
            yield texts
            documents += len(texts)
            status.update(Text(f"{doing} {documents:,} documents"))


def in_columns(rows: Mapping[str, object]) -> str:
    """Formats one name and value per line, with the values in one column."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def in_table(lines: Sequence[Sequence[str]]) -> str:
    """Formats lines of equally many cells as a table; only the first column is left-aligned."""
    first_width, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([name.ljust(first_width), *map(str.rjust, cells, widths)])
        for name, *cells in lines
    )
