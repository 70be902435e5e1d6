"""A teacher that reads the rows themselves, beside the student, instead of leaving scores behind.

Each piece of a row is a document of its own to it, so it sees no text before the row. The host
tokenizes and aligns ahead of time; the losses stay on the device.

M: teacher tokens of all pieces of a batch, N: student tokens, B: rows, T: places of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config import Config
from vocagno.errors import GuidanceError
from vocagno.scores import DocumentScores
from vocagno.texts import TextStore
from vocagno.token_spans import TokenSpans
from vocagno.training.processes import HostSum
from vocagno.training.reading import Reading, ReadTexts, TextReader
from vocagno.training.scorer import Pass, TransformersScorer
from vocagno.training.scoring import load_scorer
from vocagno.training.segments import segment_reduce


class LivePieces:
    """The pieces of rows as a live teacher will read them; needs no teacher yet."""

    def __init__(self, texts: TextStore, reader: TextReader) -> None:
        self.texts, self.reader = texts, reader

    def read(
        self, documents: Sequence[int], first_bytes: Sequence[int], end_bytes: Sequence[int]
    ) -> tuple[ReadTexts, list[DocumentScores]]:
        """Each piece, extended to whole characters, as a text of its own.

        Returns: what the teacher is to read, and the teacher's tokens of each piece, with losses
            of 0 where there will be one.
        """
        found = list(map(self.texts.piece, documents, first_bytes, end_bytes))
        read = self.reader.read([text for text, _ in found])
        nll = np.where(read.is_asked, np.float16(0), np.float16(np.nan))
        pieces = []
        for number, (_, begins) in enumerate(found):
            place = read.tokens.text(number)
            pieces.append(DocumentScores(read.tokens.spans[place] + begins, nll[place]))
        return read, pieces


@dataclass(frozen=True, slots=True)
class LiveText:
    """What a live teacher is to read for a batch, and where its losses belong."""

    read: ReadTexts
    mapping_N2: NDArray[np.int32]
    """Rows of the teacher's tokens for each student token, in the order of the rows."""
    tokens_BT: NDArray[np.int64]
    """Which student token is predicted at each place; -1 at padding."""


class LiveTeacher:
    """A teacher on this process's device (or sharded over all), which is never trained or saved."""

    def __init__(self, config: Config, spans: TokenSpans, device: torch.device) -> None:
        self.scorer = load_scorer(config.teacher, spans, device)
        self.device, self.how = device, config.guidance.aggregation
        self._unscored = torch.zeros((), dtype=torch.int64, device=device)

    def passes(self, text: LiveText) -> list[Pass]:
        """The forward passes that a batch takes: work of the host, to be done ahead."""
        return list(self.scorer.passes(text.read.readings))

    def losses(self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0) -> Tensor:
        """(B, T) float32 on the device: the teacher's loss for each predicted token, NaN where it
        has none; the host does not wait. Args: as `token_losses`."""
        return self.spread(self.token_losses(text.read, passes, num_passes), text)

    @torch.inference_mode()
    def token_losses(self, read: ReadTexts, passes: Sequence[Pass], num_passes: int = 0) -> Tensor:
        """(M,) float32 on the device: the loss of each of the teacher's tokens.

        Args:
            num_passes: of the process that has most, where all hold one teacher between them and
                have to run it as often.
        """
        nll_M = torch.full((len(read.is_asked),), torch.nan, device=self.device)
        for one_pass in passes:
            rows = [np.arange(read.rows[n].start, read.rows[n].stop) for n in one_pass.numbers]
            nll_M[self._here(np.concatenate(rows))] = self.scorer.losses(one_pass).to(self.device)
        for _ in range(num_passes - len(passes)):
            self.scorer.losses(_idle(self.scorer))
        is_asked_M = self._here(read.is_asked)
        self._unscored += (is_asked_M & ~nll_M.isfinite()).sum()
        return torch.where(is_asked_M, nll_M, torch.nan)

    def check(self, host_sum: HostSum, step: int) -> None:
        """Waits for the device.

        Raises: GuidanceError if a loss that was asked for is no number: how many tokens are kept is
            settled before the teacher reads them.
        """
        count = int(host_sum(self._unscored.cpu()))
        if count:
            raise GuidanceError(
                f"step {step}: the live teacher gave no finite loss for {count:,} tokens; use "
                "another teacher.dtype, or teacher.mode: stored, which counts them as unscored"
            )

    @torch.inference_mode()
    def spread(self, nll_M: Tensor, text: LiveText) -> Tensor:
        """(B, T): the teacher's losses aggregated for each student token, at its place."""
        loss_N = segment_reduce(nll_M, self._here(text.mapping_N2), self.how)
        with_padding = torch.cat([loss_N, loss_N.new_full((1,), torch.nan)])
        return with_padding[self._here(text.tokens_BT)]

    def _here(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, non_blocking=True)


def _idle(scorer: TransformersScorer) -> Pass:
    """The least that can be read: one token, predicted from another."""
    (one_pass,) = scorer.passes([Reading(np.zeros(2, np.int64), 1)])
    return one_pass
