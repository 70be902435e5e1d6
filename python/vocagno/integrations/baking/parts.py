"""Writes baked streams part by part, by any number of processes of one machine.

All parts of a stream go into one file of its full size, at their places, and are noted when they
are on disk; a killed process loses the parts that it was working on. When all parts are noted, the
streams get their names and the manifest is written.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.data.store.format import write_entries
from vocagno.data.store.state import Claim, first_difference
from vocagno.integrations.baked_files import MANIFEST, read_manifest, stream_header, write_manifest
from vocagno.integrations.token_files import TokenFileError, sample_hash
from vocagno.system.files import atomic_file, digest, flush_folder, write_json
from vocagno.system.shared_work import exclusively, share

MAKING = ".making"
"""The folder of unfinished streams and of notes."""


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
            streams: the type of each stream by its file name; it has a shape if each token has
                several values.
            made_from: the facts that determine the streams, for JSON.
        Raises: TokenFileError or StoreError if the folder holds, or is to hold, something else.
        """
        self.folder = folder
        self.made_from = made_from
        self.names: list[str] = [f"part-{number:06d}" for number in range(num_parts)]
        self._making = folder / MAKING
        self._types = {name: np.dtype(dtype) for name, dtype in streams.items()}
        if self.is_finished():
            # A finished folder is left as it is: without `.making` there is nothing to resume.
            before = read_manifest(folder)["made_from"]
            if before != made_from:
                raise TokenFileError(
                    f"{folder}: holds losses of another {first_difference(before, made_from)}; "
                    "name another folder, or delete this one"
                )
            return
        with exclusively("streams", folder):
            Claim("losses", "", num_parts, made_from).save(folder)
            for name, dtype in self._types.items():
                # One file of the full size for each stream, into which all processes write at their
                # places: no part is copied again at the end.
                if not self._place(name).is_file():
                    header = stream_header(dtype, num_tokens)
                    with atomic_file(self._making / name) as file:
                        file.write(header)
                        file.truncate(len(header) + num_tokens * dtype.itemsize)

    def is_finished(self) -> bool:
        """True if the manifest is written, by this process or another."""
        return (self.folder / MANIFEST).is_file()

    def make(self, make: Callable[[str], None], report: Callable[[str], object]) -> None:
        """Makes parts until all are noted, by this process or others (`system.shared_work.share`).

        Args:
            make: makes and notes the part of a name.
            report: is called with the name of each part that is noted.
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
            file.write(values.astype(dtype.base, copy=False).tobytes())

    def note(self, name: str, **fields: Any) -> None:
        """Notes a part as written, after it has reached the disk.

        Args: fields: the `hash` of its tokens, its `counts`, and `refused`, lines of the report.
        """
        for stream in self._types:
            with self._place(stream).open("r+b") as file:
                os.fsync(file.fileno())
        write_json(self._note_of(name), fields)

    def counts(self, name: str) -> Counter[str]:
        """The counts of a noted part; empty if another process has finished all parts."""
        try:
            return Counter(self._note(name)["counts"])
        except FileNotFoundError:
            return Counter()

    def finish(self, fields: Callable[[str, Counter[str]], dict[str, Any]]) -> None:
        """Gives the streams their names and writes the manifest, unless another process has.

        Args: fields: makes the manifest from the hash of all tokens and the sums of all counts.
        """
        with exclusively("streams", self.folder):
            if not self.is_finished():
                # In the order of the parts, whoever made them: hash and report do not depend on the
                # processes.
                notes = [self._note(name) for name in self.names]
                counts = Counter[str]()
                for note in notes:
                    counts.update(note["counts"])
                write_entries(self.folder, [*chain.from_iterable(n["refused"] for n in notes)])
                manifest = fields(digest(*(note["hash"] for note in notes)), counts)
                for name in self._types:
                    if (self._making / name).is_file():
                        (self._making / name).replace(self.folder / name)
                flush_folder(self.folder)  # the names first: a manifest promises the streams
                samples = {name: sample_hash(self.folder / name) for name in self._types}
                manifest |= {"made_from": self.made_from, "files": [*samples], "samples": samples}
                write_manifest(self.folder, manifest)
        shutil.rmtree(self._making, ignore_errors=True)  # another process may be removing it

    def _place(self, name: str) -> Path:
        """The path of a stream, which has its name already if a process was killed in `finish`."""
        final = self.folder / name
        return final if final.is_file() else self._making / name

    def _note_of(self, name: str) -> Path:
        return self._making / f"{name}.json"

    def _note(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._note_of(name).read_bytes())
        return fields
