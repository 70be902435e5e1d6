"""Tells the model behind a server from another one of the same name, by its losses of a fixed text.

A server names its model, but does not identify the weights. So its losses of the text are noted
when the first shard of a store is made, and compared before and after every shard of a process.
"""

import json
import math
from pathlib import Path

import numpy as np

from vocagno.data.store.builder import Advance
from vocagno.data.store.shards import StoreError
from vocagno.system.files import write_json
from vocagno.system.shared_work import LOCKS
from vocagno.teacher.corpus_scores import Teacher
from vocagno.teacher.scores import DocumentScores
from vocagno.teacher.server import PROBE, TOLERANCE, ServerScorer, difference
from vocagno.teacher.windows import TextReader


class ProbedTeacher(Teacher):
    """A teacher behind a server, for the scores in one folder."""

    def __init__(self, server: ServerScorer, reader: TextReader, folder: Path) -> None:
        """Args: folder: of the store; the losses of the text are noted in it."""
        super().__init__(server, reader)
        self._server = server
        self._folder = folder
        self._is_checked = False

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """As `Teacher.score`.

        Raises: StoreError if the model has changed, now or since the first shard of the store.
        """
        if not self._is_checked:
            self._note()
            self.check()
            self._is_checked = True
        scores = super().score(texts, advance)
        self.check()  # a server that was started again may have another model
        return scores

    def check(self) -> None:
        """Compares the model with that of the scores in the folder, if its losses are noted.

        Raises: StoreError if it is another one.
        """
        if not self._path.is_file():
            return
        noted = json.loads(self._path.read_bytes())
        losses = self._server.losses_of(noted["text"], self.reader)
        far = difference(np.array(noted["losses"], np.float32), losses)
        if not far <= TOLERANCE:
            raise StoreError(
                f"{self._folder}: the scores here are of another model than {self._server.where} "
                f"has now: its losses of a fixed text differ by {far:.2g} nats a token (rounding: "
                f"up to {TOLERANCE}); serve the model of these scores again, or name another folder"
            )

    def _note(self) -> None:
        """Notes the losses, unless another process has. If two processes do so at once, the last
        note counts; if their models differ, the other process stops at its next check."""
        if self._path.is_file():
            return
        found = self._server.losses_of(PROBE, self.reader).tolist()
        losses = [round(one, 4) if math.isfinite(one) else None for one in found]
        if not self._path.is_file():  # still
            write_json(self._path, {"text": PROBE, "losses": losses})

    @property
    def _path(self) -> Path:
        return self._folder / LOCKS / "probe.json"
