"""A live teacher, which reads the rows during training instead of leaving stored scores.

A `TextTeacher` reads each piece of a row as a document of its own, in its own tokens, so it sees no
text before the row: the host tokenizes and aligns ahead of time, and the losses stay on the device.
A `RowTeacher`, of the student's vocabulary, reads the student's ids of the whole row.

M: teacher tokens of all pieces of a batch, N: student tokens, B: rows, T: places of a row,
K: candidates of a teacher token.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.alignment.segments import row_sums, segment_reduce
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import PieceSource
from vocagno.data.store.format import RefusalLimit
from vocagno.errors import ConfigError, GuidanceError
from vocagno.models.batching import keeps_apart, mask_fits
from vocagno.models.head import hidden_states
from vocagno.models.losses import IGNORED, TeacherStates, chunked_entropy, chunked_nll
from vocagno.system.collectives import HostSum
from vocagno.teacher.candidates import NONE, entropies_of, probabilities_of
from vocagno.teacher.score_store import DocumentScores
from vocagno.teacher.scorer import Pass, TransformersScorer
from vocagno.teacher.windows import TextReader, Window, WindowedTexts

Result = TypeVar("Result")
_NAMED_DOCUMENTS = 10
"""Number of unreadable documents that a process names on stderr; all of them are counted."""


class LivePieces:
    """Tokenizes the pieces of rows for a live teacher; needs no loaded teacher."""

    def __init__(
        self,
        texts: PieceSource[tuple[str, int]],
        reader: TextReader,
        limit: RefusalLimit | None = None,
    ) -> None:
        """Args:
        texts: a `TextStore`, or several.
        limit: number of documents that this process may fail to read; None: any number.
        """
        self.texts = texts
        self.reader = reader
        self._limit = limit
        self._refused: set[int] = set()

    def read_pieces(
        self, documents: Sequence[int], first_bytes: Sequence[int], end_bytes: Sequence[int]
    ) -> tuple[WindowedTexts, list[DocumentScores]]:
        """Tokenizes each piece, extended to whole characters, as a separate text.

        Returns: the windows for the teacher, and the teacher's tokens of each piece, with a loss of
            0 where the teacher will give one; no tokens of a piece that it cannot read.
        Raises: StoreError if more documents cannot be read than the limit allows.
        """
        texts = list(map(self.texts.piece, documents, first_bytes, end_bytes))
        windowed = self.reader.read([text for text, _ in texts])
        nll = np.where(windowed.is_asked, np.float16(0), np.float16(np.nan))
        pieces = []
        for number, (_, first_byte) in enumerate(texts):
            if number in windowed.refused:
                self._refuse(documents[number], windowed.refused[number])
                pieces.append(DocumentScores.none(windowed.refused[number]))
                continue
            rows = windowed.tokens.text(number)
            pieces.append(DocumentScores(windowed.tokens.spans[rows] + first_byte, nll[rows]))
        return windowed, pieces

    def _refuse(self, document: int, reason: str) -> None:
        """Names and counts a document that cannot be read, once for all its pieces."""
        if document in self._refused:
            return
        self._refused.add(document)
        if len(self._refused) <= _NAMED_DOCUMENTS:
            print(f"no teacher losses for document {document}: {reason}", file=sys.stderr)
        if self._limit is not None:
            self._limit.check(len(self._refused), f"One is document {document}: {reason}")


@dataclass(frozen=True, slots=True)
class LiveText:
    """The windows of a batch for a live teacher, and how its tokens map to the student's. All of it
    is on the host."""

    windowed: WindowedTexts
    is_asked_M: Tensor
    """True for a teacher token that should get a loss (`WindowedTexts.is_asked`)."""
    mapping_N2: Tensor
    """The range of teacher tokens of each student token, in the order of the rows (int32)."""
    tokens_BT: Tensor
    """The index of the student token that is predicted at each place (int64); -1 at padding."""
    partner_BT: Tensor
    """The requested teacher token whose distribution each place is compared with (int64); -1 for
    none."""
    is_inside_M: Tensor
    """True for a teacher token that shares text with the tokens that its row learns."""
    ranges_B2: Tensor
    """The range of teacher tokens that belong to the pieces of each row."""
    group_mapping_N2: Tensor
    """The range of teacher tokens of each student token's group, if the method has groups."""
    sizes_N: Tensor
    """Number of student tokens in the group of each token (int64); 1 for none."""
    targets_BT3: Tensor | None = None
    """For `distill`: the row of `BucketTargets.rows` of each place (int64)."""

    def pin_memory(self) -> "LiveText":
        """Copies the tensors to pinned memory, from where they reach a GPU without a sync."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        pinned: dict[str, Any] = {
            name: values.pin_memory()
            for name, values in columns.items()
            if isinstance(values, Tensor)
        }
        return replace(self, **pinned)


class LiveTeacher(ABC):
    """A teacher on this process's device (or sharded over all). It is never trained or saved."""

    def __init__(
        self, scorer: TransformersScorer, guidance: GuidanceConfig, device: torch.device
    ) -> None:
        self.scorer = scorer
        self.guidance = guidance
        self.device = device
        self._unscored = torch.zeros((), dtype=torch.int64, device=device)

    @abstractmethod
    def plan(self, text: LiveText | None, samples: Sequence[int] | None = None) -> list[Pass]:
        """Prepares the forward passes of a batch on the host, ahead of time, in pinned memory for a
        GPU.

        Args: samples: the number of each row in the run, from which candidates are sampled.
        """

    @abstractmethod
    def guide(
        self,
        text: LiveText | None,
        tensors: dict[str, Tensor],
        passes: Sequence[Pass],
        num_passes: int = 0,
    ) -> dict[str, Any]:
        """Runs the teacher and returns its inputs to the student's forward pass, by name, without a
        device sync.

        Args:
            text: text of the batch, if the teacher reads the text of its pieces.
            tensors: tensors of the batch, on the device.
            passes: result of `plan`.
            num_passes: largest number of passes of any process, if all processes share one sharded
                teacher and so must run it equally often.
        """

    def note_unscored(self, is_unscored: Tensor) -> None:
        """Counts tokens without a finite loss on the device, for `check`."""
        self._unscored += is_unscored.sum()

    def check(self, host_sum: HostSum, step: int) -> None:
        """Checks all losses since the start, over all processes. Syncs with the device.

        Raises: GuidanceError if a requested loss is NaN or infinite: the number of kept tokens is
            fixed before the teacher reads them.
        """
        count = int(host_sum(self._unscored.cpu()))
        if count:
            raise GuidanceError(
                f"step {step}: the live teacher's loss is NaN or infinite for {count:,} tokens; "
                "use another teacher.dtype, or teacher.mode: stored, which counts them as unscored"
            )


class TextTeacher(LiveTeacher):
    """Reads the text of each piece in its own tokens; works with any vocabulary."""

    def plan(self, text: LiveText | None, samples: Sequence[int] | None = None) -> list[Pass]:
        if text is None:
            return []
        rows = text.windowed.rows
        if samples is not None:  # one number for each window instead of each row of the batch
            ends_B = text.ranges_B2[:, 1].numpy()
            row_of_window = np.searchsorted(ends_B, [row.start for row in rows], side="right")
            last = len(ends_B) - 1  # the last window may request nothing, and start after all rows
            samples = [samples[min(row, last)] for row in row_of_window.tolist()]
        planned = []
        for one_pass in self.scorer.passes(text.windowed.windows, samples):
            token_ranges = [np.arange(rows[n].start, rows[n].stop) for n in one_pass.numbers]
            rows_N = self.scorer.on_host(np.concatenate(token_ranges))
            planned.append(replace(one_pass, rows_N=rows_N))
        return planned

    def guide(
        self,
        text: LiveText | None,
        tensors: dict[str, Tensor],
        passes: Sequence[Pass],
        num_passes: int = 0,
    ) -> dict[str, Any]:
        assert text is not None
        if self.guidance.needs_distributions:
            return {"teacher_states": self.distributions(text, passes, num_passes)}
        if self.guidance.needs_candidates:
            nll_M, ids_MK, codes_MK, entropy_M = self.token_candidates(text, passes, num_passes)
            candidates = {
                "candidate_ids": ids_MK,
                "candidate_mass": probabilities_of(codes_MK, is_sampled=self.scorer.is_sampled),
                "candidate_entropy": entropies_of(entropy_M),
            }
            return self.student_inputs(nll_M, text) | candidates
        return self.student_inputs(self.token_losses(text, passes, num_passes), text)

    @torch.inference_mode()
    def distributions(
        self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0
    ) -> TeacherStates:
        """The teacher's distribution at each of its tokens, and the partner of each predicted
        token: the first requested teacher token of its range."""
        states_MH = None
        for rows_N, states_NH in self._run_passes(passes, num_passes, self.scorer.asked_states):
            if states_MH is None:
                states_MH = states_NH.new_zeros(len(text.is_asked_M), states_NH.shape[1])
            rows_N = rows_N.to(states_NH.device)  # the last layer's, if the model is spread
            states_MH[rows_N] = states_NH
        if states_MH is None:  # nothing to read: no token has a partner
            head = self.scorer.head
            states_MH = torch.zeros(
                1, head.hidden_size, dtype=self.scorer.model.dtype, device=head.device
            )
        is_finite_M = states_MH.isfinite().all(-1).to(self.device)
        if len(text.is_asked_M):
            self.note_unscored(self._here(text.is_asked_M) & ~is_finite_M)
        return TeacherStates(states_MH, self.scorer.head, self._here(text.partner_BT))

    @torch.inference_mode()
    def token_losses(self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0) -> Tensor:
        """(M,) float32 on the device: the loss of each teacher token; NaN if it was not requested.
        The arguments are those of `guide`."""
        nll_M = torch.full(text.is_asked_M.shape, torch.nan, device=self.device)
        for rows_N, nll_N in self._run_passes(passes, num_passes, self.scorer.losses):
            nll_M[rows_N] = nll_N.to(self.device)
        return self._keep_requested(nll_M, text)

    @torch.inference_mode()
    def token_candidates(
        self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Computes losses and candidates of all teacher tokens in one pass, on the device.

        The arguments are those of `guide`. Returns: (M,) losses (`token_losses`), (M, K) ids
        (int32) and codes (uint8) of the candidates, and (M,) codes of the entropies. K is the
        scorer's, `teacher.candidates`. The real tokens are `text.windowed.tokens.ids`.
        """
        nll_M = torch.full(text.is_asked_M.shape, torch.nan, device=self.device)
        shape, device = (len(nll_M), self.scorer.candidates), self.device
        ids_MK = torch.full(shape, -1, dtype=torch.int32, device=device)
        codes_MK = torch.full(shape, NONE, dtype=torch.uint8, device=device)
        entropy_M = codes_MK.new_full((len(nll_M),), NONE)
        columns = nll_M, ids_MK, codes_MK, entropy_M
        for rows_N, results in self._run_passes(
            passes, num_passes, self.scorer.losses_and_candidates
        ):
            for column, values in zip(columns, results, strict=True):
                column[rows_N] = values.to(self.device)
        nll_M = self._keep_requested(nll_M, text)
        is_none_M1 = ~nll_M.isfinite()[:, None]
        ids_MK = ids_MK.masked_fill(is_none_M1, -1)
        codes_MK = codes_MK.masked_fill(is_none_M1, NONE)
        return nll_M, ids_MK, codes_MK, entropy_M.masked_fill(is_none_M1[:, 0], NONE)

    def _keep_requested(self, nll_M: Tensor, text: LiveText) -> Tensor:
        """(M,): the losses with NaN for tokens that were not requested. Counts requested tokens
        whose loss is NaN or infinite."""
        is_asked_M = self._here(text.is_asked_M)
        self.note_unscored(is_asked_M & ~nll_M.isfinite())
        return torch.where(is_asked_M, nll_M, torch.nan)

    def _run_passes(
        self, passes: Sequence[Pass], num_passes: int, compute: Callable[[Pass], Result]
    ) -> Iterator[tuple[Tensor, Result]]:
        """Yields the indices of the teacher tokens of each pass, and the result of `compute`."""
        for one_pass in passes:
            assert one_pass.rows_N is not None
            yield self._here(one_pass.rows_N), compute(one_pass)
        # Other processes wait for this one's part of a sharded teacher, so it reads something: one
        # token, predicted from another.
        for _ in range(num_passes - len(passes)):
            (idle,) = self.scorer.passes([Window(np.zeros(2, np.int64), 1)])
            compute(idle)

    @torch.inference_mode()
    def student_inputs(self, nll_M: Tensor, text: LiveText) -> dict[str, Tensor]:
        """The inputs to the student's forward pass, from the losses of the teacher tokens."""
        if self.guidance.unit == "group":
            inputs = {"teacher_loss": self._group_loss(nll_M, text)}
        else:
            loss_N = segment_reduce(nll_M, self._here(text.mapping_N2), self.guidance.aggregation)
            inputs = {"teacher_loss": self._at_places(loss_N, text)}
        if self.guidance.unmapped == "mean":
            inside_M = torch.where(self._here(text.is_inside_M), nll_M, torch.nan)
            inputs["teacher_sums"] = row_sums(inside_M, self._here(text.ranges_B2))
        if self.guidance.needs_group_loss:
            inputs["group_loss"] = self._group_loss(nll_M, text)
        return inputs

    def _group_loss(self, nll_M: Tensor, text: LiveText) -> Tensor:
        """(B, T): the teacher's loss of the group of each place, divided by the number of student
        tokens in it (the column `GuidedBatch.group_loss`)."""
        sums_N = segment_reduce(nll_M, self._here(text.group_mapping_N2), "sum")
        return self._at_places(sums_N / self._here(text.sizes_N), text)

    def _at_places(self, loss_N: Tensor, text: LiveText) -> Tensor:
        """(B, T): the losses of student tokens at the places that predict them; NaN at padding."""
        # Padding has the index -1, so it reads the NaN that is appended.
        with_padding = torch.cat([loss_N, loss_N.new_full((1,), torch.nan)])
        return with_padding[self._here(text.tokens_BT)]

    def _here(self, values: Tensor) -> Tensor:
        return values.to(self.device, non_blocking=True)


def first_asked(mapping_N2: NDArray[np.int32], is_asked_M: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,): the first requested row of each range; -1 if a range has none."""
    # next_M[i] is the first requested row from i on; M if no row follows.
    rows_M = np.where(is_asked_M, np.arange(len(is_asked_M)), len(is_asked_M))
    next_M = np.append(np.minimum.accumulate(rows_M[::-1])[::-1], len(is_asked_M))
    first_N, stop_N = mapping_N2.T
    first_asked_N = next_M[np.maximum(first_N, 0)]
    return np.where((first_N >= 0) & (first_asked_N < stop_N), first_asked_N, -1)


class RowTeacher(LiveTeacher):
    """Reads the student's ids as they are, row by row, for `rho1` and `kld`, whose teacher has the
    student's vocabulary."""

    def __init__(
        self,
        scorer: TransformersScorer,
        guidance: GuidanceConfig,
        device: torch.device,
        data: DataConfig,
        num_ids: int,
    ) -> None:
        """Args: num_ids: size of the student's vocabulary, with which the teacher's begins.
        Raises: ConfigError for `data.isolate` with a teacher that cannot keep documents apart."""
        super().__init__(scorer, guidance, device)
        model = scorer.model
        fits = mask_fits(model, data.seq_len)
        if data.isolate and not (fits and keeps_apart(model)):
            raise ConfigError(
                f"data.isolate: teacher.model: {type(model).__name__} does not keep documents of a "
                "row apart (or has a sliding window); use another teacher.attention (sdpa, eager), "
                "another teacher, or isolate: false"
            )
        self._num_ids = num_ids
        self._rows = max(1, scorer.batch_tokens // data.seq_len)

    def plan(self, text: LiveText | None, samples: Sequence[int] | None = None) -> list[Pass]:
        return []  # nothing is prepared ahead of time

    @torch.inference_mode()
    def guide(
        self,
        text: LiveText | None,
        tensors: dict[str, Tensor],
        passes: Sequence[Pass],
        num_passes: int = 0,
    ) -> dict[str, Any]:
        labels_BT, head = tensors["labels"], self.scorer.head
        states_BTH = self._states(tensors)
        partner_BT = torch.arange(labels_BT.numel(), device=self.device).view(labels_BT.shape)
        states_NH = states_BTH.flatten(0, 1)
        is_asked_BT = labels_BT != IGNORED
        if self.guidance.needs_distributions:
            is_finite_BT = states_BTH.isfinite().all(-1).to(self.device)
            self.note_unscored(is_asked_BT & ~is_finite_BT)
            return {"teacher_states": TeacherStates(states_NH, head, partner_BT, self._num_ids)}
        nll_N = chunked_nll(states_NH, head, labels_BT.clamp_min(0).flatten())
        nll_BT = nll_N.view(labels_BT.shape).to(self.device)
        self.note_unscored(is_asked_BT & ~nll_BT.isfinite())
        inputs = {"teacher_loss": torch.where(is_asked_BT, nll_BT, torch.nan)}
        if self.guidance.criterion == "excess_and_entropy":
            entropy_N = chunked_entropy(states_NH, head)
            inputs["entropy"] = entropy_N.view(labels_BT.shape).to(self.device)
        return inputs

    def _states(self, tensors: dict[str, Tensor]) -> Tensor:
        """(B, T, H): the teacher's last hidden states, computed a few rows at a time."""
        names, states = ("attention_mask", "position_ids"), []
        for start in range(0, len(tensors["input_ids"]), self._rows):
            rows = slice(start, start + self._rows)
            extra = {name: tensors[name][rows] for name in names if name in tensors}
            states.append(hidden_states(self.scorer.model, tensors["input_ids"][rows], **extra))
        return torch.cat(states)
