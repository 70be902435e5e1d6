"""Tables as files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from vocagno.system.files import atomic_file


def write_table(path: Path, lines: Iterable[Sequence[object]]) -> None:
    """Writes lines of cells as CSV in UTF-8, atomically; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())
