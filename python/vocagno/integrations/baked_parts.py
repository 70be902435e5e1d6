"""Writes baked streams part by part, by any number of processes of one machine.

All parts are written into one file for each stream, at their places, and noted when they are on
disk. A killed process loses the parts that it was at; the streams get their names, and the manifest
is written, when all parts are noted.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.data.store.format import write_entries
from vocagno.data.store.state import Claim, first_difference
from vocagno.integrations.baked_files import MANIFEST, read_manifest, stream_header, write_manifest
from vocagno.integrations.token_files import TokenFileError
from vocagno.system.files import appearing, digest, flush_folder, write_json
from vocagno.system.shared_work import exclusively, share

MAKING = ".making"
"""Folder of unfinished streams and of notes."""


class BakedParts:
    """The parts of the streams of one token file."""

    def __init__(
        self,
        folder: Path,
        num_tokens: int,
        num_parts: int,
        streams: Mapping[str, Any],
        made_from: dict[str, Any],
    ) -> None:
        """Args:
            streams: the type of each stream, by its file name.
            made_from: all that the streams are made from, as JSON.
        Raises: TokenFileError or StoreError if the folder holds, or is to hold, something else.
        """
        self.folder = folder
        self.made_from = made_from
        self.names: list[str] = [f"part-{number:06d}" for number in range(num_parts)]
        self._making = folder / MAKING
        self._types = {name: np.dtype(dtype) for name, dtype in streams.items()}
        if self.is_finished():
            found = read_manifest(folder)["made_from"]
            if found != made_from:
                raise TokenFileError(
                    f"{folder}: holds losses of another {first_difference(found, made_from)}; "
                    "name another folder, or delete this one"
                )
            return
        with exclusively("streams", folder):
            Claim("losses", "", num_parts, made_from).save(folder)
            for name, dtype in self._types.items():
                if not self._place(name).is_file():
                    header = stream_header(dtype, num_tokens)
                    with appearing(self._making / name) as file:
                        file.write(header)
                        file.truncate(len(header) + num_tokens * dtype.itemsize)

    def is_finished(self) -> bool:
        return (self.folder / MANIFEST).is_file()

    def make(self, make: Callable[[str], None], report: Callable[[str], object]) -> None:
        """Makes the parts that are not noted; returns when all are, by this process or another.

        Args: make: makes a part and notes it. report: is called with each part that is noted.
        """
        share(
            self.names,
            self.folder,
            done=lambda name: self.is_finished() or self._note_of(name).is_file(),
            make=make,
            report=report,
            partial=MAKING,
        )

    def write(self, stream: str, first: int, values: NDArray[Any]) -> None:
        """Writes values of a stream from token `first` on."""
        dtype = self._types[stream]
        with self._place(stream).open("r+b") as file:
            file.seek(len(stream_header(dtype, 0)) + first * dtype.itemsize)
            file.write(values.astype(dtype, copy=False).tobytes())

    def note(
        self,
        name: str,
        tokens_hash: str,
        counts: Mapping[str, int],
        refused: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Notes that a part is written, when it is on disk. Args: refused: lines of the report."""
        for stream in self._types:
            with self._place(stream).open("r+b") as file:
                os.fsync(file.fileno())
        write_json(
            self._note_of(name),
            {"hash": tokens_hash, "counts": dict(counts), "refused": [*refused]},
        )

    def counts(self, name: str) -> Counter[str]:
        """The counts of a part that is noted; none if another process has finished all parts."""
        try:
            return Counter(self._note(name)["counts"])
        except FileNotFoundError:
            return Counter()

    def finish(self, fields: Callable[[str, Counter[str]], dict[str, Any]]) -> None:
        """Gives the streams their names and writes the manifest, unless another process has.

        Args: fields: the manifest's, from the hash of all tokens and the sums of all counts.
        """
        with exclusively("streams", self.folder):
            if not self.is_finished():
                notes = [self._note(name) for name in self.names]
                counts: Counter[str] = Counter()
                for note in notes:
                    counts.update(note["counts"])
                lines = (note.get("refused", ()) for note in notes)  # none in those of 0.1.0
                write_entries(self.folder, [one for some in lines for one in some])
                found = fields(digest(*(note["hash"] for note in notes)), counts)
                for name in self._types:
                    if (self._making / name).is_file():
                        (self._making / name).replace(self.folder / name)
                flush_folder(self.folder)
                write_manifest(
                    self.folder, {**found, "made_from": self.made_from, "files": [*self._types]}
                )
        shutil.rmtree(self._making, ignore_errors=True)  # another process may be removing it

    def _place(self, name: str) -> Path:
        """Where a stream is: already in its place if a process was killed while finishing."""
        final = self.folder / name
        return final if final.is_file() else self._making / name

    def _note_of(self, name: str) -> Path:
        return self._making / f"{name}.json"

    def _note(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._note_of(name).read_bytes())
        return found
