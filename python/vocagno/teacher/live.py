"""A live teacher: it reads the rows during training, instead of storing scores.

It reads each piece of a row as a separate document, so it sees no text before the row. The host
tokenizes and aligns ahead of time; the losses stay on the device.

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
from vocagno.teacher.scorer import Pass, TransformersScorer
from vocagno.teacher.scores import DocumentScores
from vocagno.teacher.windows import TextReader, Window, WindowedTexts
from vocagno.tokens.token_spans import TokenSpans

Found = TypeVar("Found")
_NAMED = 10
"""Documents that a process names."""


class LivePieces:
    """Tokenizes the pieces of rows for a live teacher; needs no loaded teacher."""

    def __init__(
        self,
        texts: PieceSource[tuple[str, int]],
        reader: TextReader,
        limit: RefusalLimit | None = None,
    ) -> None:
        """`texts`: a `TextStore`, or several. `limit`: of the documents with a piece that this
        process cannot read; None: no limit."""
        self.texts = texts
        self.reader = reader
        self._limit = limit
        self._refused: set[int] = set()

    def read(
        self, documents: Sequence[int], first_bytes: Sequence[int], end_bytes: Sequence[int]
    ) -> tuple[WindowedTexts, list[DocumentScores]]:
        """Each piece, extended to whole characters, as a separate text.

        Returns: the windows for the teacher, and the teacher's tokens of each piece, with a loss of
            0 where the teacher will give one; none of a piece that it cannot read.
        Raises: StoreError if there are more of these than the limit allows.
        """
        found = list(map(self.texts.piece, documents, first_bytes, end_bytes))
        windowed = self.reader.read([text for text, _ in found])
        nll = np.where(windowed.is_asked, np.float16(0), np.float16(np.nan))
        pieces = []
        for number, (_, begins) in enumerate(found):
            if number in windowed.refused:
                self._refuse(documents[number], windowed.refused[number])
                pieces.append(DocumentScores.none(windowed.refused[number]))
                continue
            place = windowed.tokens.text(number)
            pieces.append(DocumentScores(windowed.tokens.spans[place] + begins, nll[place]))
        return windowed, pieces

    def _refuse(self, document: int, why: str) -> None:
        """Names and counts a document that is not read, once."""
        if document in self._refused:
            return
        self._refused.add(document)
        if len(self._refused) <= _NAMED:
            print(f"no teacher losses for document {document}: {why}", file=sys.stderr)
        if self._limit is not None:
            self._limit.check(len(self._refused), f"One is document {document}: {why}")


@dataclass(frozen=True, slots=True)
class LiveText:
    """The windows of a batch for a live teacher, and the places of its losses; on the host."""

    windowed: WindowedTexts
    is_asked_M: Tensor
    """As `WindowedTexts.is_asked`."""
    mapping_N2: Tensor
    """Ranges of teacher tokens for each student token, in the order of the rows (int32)."""
    tokens_BT: Tensor
    """Which student token is predicted at each place (int64); -1 at padding."""
    partner_BT: Tensor
    """The requested teacher token whose distribution each place is compared with (int64); -1 for
    none."""
    is_inside_M: Tensor
    """Which of the teacher's tokens share text with what their row learns."""
    ranges_B2: Tensor
    """Which of the M belong to the pieces of each row."""
    group_mapping_N2: Tensor
    """The same as `mapping_N2` for the group of each token, where the method has groups."""
    sizes_N: Tensor
    """Number of student tokens in the group of each token (int64); 1 for none."""
    targets_BT3: Tensor | None = None
    """For `distill`: as `BucketTargets.rows` at each place (int64)."""

    def pin_memory(self) -> "LiveText":
        """The same with tensors in pinned memory."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: one for name, one in given.items() if isinstance(one, Tensor)}
        pinned: dict[str, Any] = {name: one.pin_memory() for name, one in tensors.items()}
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
        """The forward passes of a batch, prepared on the host ahead of time, in pinned memory for a
        GPU.

        Args: samples: the number of each row in the run, with which sampled candidates are drawn.
        """

    @abstractmethod
    def guide(
        self,
        text: LiveText | None,
        tensors: dict[str, Tensor],
        passes: Sequence[Pass],
        num_passes: int = 0,
    ) -> dict[str, Any]:
        """The teacher's inputs to the student's forward pass; needs no device sync.

        Args:
            text: text of the batch, if the teacher reads the text of its pieces.
            tensors: tensors of the batch, on the device.
            passes: result of `plan`.
            num_passes: largest number of passes of any process, if all processes share one sharded
                teacher and so must run it equally often.
        """

    def note_unscored(self, is_unscored: Tensor) -> None:
        """Counts tokens without a finite loss, for `check`."""
        self._unscored += is_unscored.sum()

    def check(self, host_sum: HostSum, step: int) -> None:
        """Syncs with the device.

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
        if samples is not None:  # from rows of the batch to windows
            ends_B = text.ranges_B2[:, 1].numpy()
            row_of_window = np.searchsorted(ends_B, [row.start for row in rows], side="right")
            last = len(ends_B) - 1  # a window at the end may ask for nothing
            samples = [samples[min(row, last)] for row in row_of_window.tolist()]
        planned = []
        for one_pass in self.scorer.passes(text.windowed.windows, samples):
            of_each = [np.arange(rows[n].start, rows[n].stop) for n in one_pass.numbers]
            rows_N = self.scorer.on_host(np.concatenate(of_each))
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
            return self.found(nll_M, text) | candidates
        return self.found(self.token_losses(text, passes, num_passes), text)

    @torch.inference_mode()
    def distributions(
        self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0
    ) -> TeacherStates:
        """The teacher's distribution at each of its tokens, and the partner of each predicted
        token: the first requested teacher token of its range."""
        states_MH = None
        for rows_N, states_NH in self._read(passes, num_passes, self.scorer.asked_states):
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
        """(M,) float32 on the device: the loss of each teacher token; args as `guide`."""
        nll_M = torch.full(text.is_asked_M.shape, torch.nan, device=self.device)
        for rows_N, nll_N in self._read(passes, num_passes, self.scorer.losses):
            nll_M[rows_N] = nll_N.to(self.device)
        return self._asked(nll_M, text)

    @torch.inference_mode()
    def token_candidates(
        self, text: LiveText, passes: Sequence[Pass], num_passes: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """On the device, in one pass: `token_losses`, (M, K) ids (int32) and codes (uint8) of the
        candidates, and (M,) codes of the entropies (`Candidates`; the real tokens are
        `text.windowed.tokens.ids`). K is the scorer's, `teacher.candidates`; args as `guide`."""
        nll_M = torch.full(text.is_asked_M.shape, torch.nan, device=self.device)
        shape, device = (len(nll_M), self.scorer.candidates), self.device
        ids_MK = torch.full(shape, -1, dtype=torch.int32, device=device)
        codes_MK = torch.full(shape, NONE, dtype=torch.uint8, device=device)
        entropy_M = codes_MK.new_full((len(nll_M),), NONE)
        of_all = nll_M, ids_MK, codes_MK, entropy_M
        for rows_N, scored in self._read(passes, num_passes, self.scorer.scored):
            for all_tokens, of_pass in zip(of_all, scored, strict=True):
                all_tokens[rows_N] = of_pass.to(self.device)
        nll_M = self._asked(nll_M, text)
        is_none_M1 = ~nll_M.isfinite()[:, None]
        ids_MK = ids_MK.masked_fill(is_none_M1, -1)
        codes_MK = codes_MK.masked_fill(is_none_M1, NONE)
        return nll_M, ids_MK, codes_MK, entropy_M.masked_fill(is_none_M1[:, 0], NONE)

    def _asked(self, nll_M: Tensor, text: LiveText) -> Tensor:
        """(M,): NaN for what was not requested; what was, and is not finite, is counted."""
        is_asked_M = self._here(text.is_asked_M)
        self.note_unscored(is_asked_M & ~nll_M.isfinite())
        return torch.where(is_asked_M, nll_M, torch.nan)

    def _read(
        self, passes: Sequence[Pass], num_passes: int, look: Callable[[Pass], Found]
    ) -> Iterator[tuple[Tensor, Found]]:
        """Yields the teacher tokens of each pass, and the result of `look` for them."""
        for one_pass in passes:
            assert one_pass.rows_N is not None
            yield self._here(one_pass.rows_N), look(one_pass)
        for _ in range(num_passes - len(passes)):  # one token, predicted from another
            (idle,) = self.scorer.passes([Window(np.zeros(2, np.int64), 1)])
            look(idle)

    @torch.inference_mode()
    def found(self, nll_M: Tensor, text: LiveText) -> dict[str, Tensor]:
        """The inputs to the student's forward pass, from the losses of the teacher tokens."""
        if self.guidance.unit == "group":
            found = {"teacher_loss": self._group_loss(nll_M, text)}
        else:
            loss_N = segment_reduce(nll_M, self._here(text.mapping_N2), self.guidance.aggregation)
            found = {"teacher_loss": self._placed(loss_N, text)}
        if self.guidance.unmapped == "mean":
            own_M = torch.where(self._here(text.is_inside_M), nll_M, torch.nan)
            found["teacher_sums"] = row_sums(own_M, self._here(text.ranges_B2))
        if self.guidance.needs_group_loss:
            found["group_loss"] = self._group_loss(nll_M, text)
        return found

    def _group_loss(self, nll_M: Tensor, text: LiveText) -> Tensor:
        """(B, T) the column `GuidedBatch.group_loss`."""
        sums_N = segment_reduce(nll_M, self._here(text.group_mapping_N2), "sum")
        return self._placed(sums_N / self._here(text.sizes_N), text)

    def _placed(self, loss_N: Tensor, text: LiveText) -> Tensor:
        """(B, T): losses of student tokens where they are predicted, NaN at padding."""
        with_padding = torch.cat([loss_N, loss_N.new_full((1,), torch.nan)])
        return with_padding[self._here(text.tokens_BT)]

    def _here(self, values: Tensor) -> Tensor:
        return values.to(self.device, non_blocking=True)


def first_asked(mapping_N2: NDArray[np.int32], is_asked_M: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,): the first requested row of each range; -1 where there is none."""
    rows_M = np.where(is_asked_M, np.arange(len(is_asked_M)), len(is_asked_M))
    next_M = np.append(np.minimum.accumulate(rows_M[::-1])[::-1], len(is_asked_M))
    first_N, stop_N = mapping_N2.T
    found_N = next_M[np.maximum(first_N, 0)]
    return np.where((first_N >= 0) & (found_N < stop_N), found_N, -1)


def check_same_vocabulary(student: TokenSpans, teacher: TokenSpans, method: str) -> None:
    """Raises: ConfigError for a token with another id. The teacher may have further ids."""
    theirs = teacher.vocabulary()
    for token, index in sorted(student.vocabulary().items(), key=lambda entry: entry[1]):
        if theirs.get(token) != index:
            found = f"id {theirs[token]}" if token in theirs else "no token"
            raise ConfigError(
                f"guidance.method: {method} needs a teacher with the student's vocabulary, but "
                f"{token!r}, id {index} of {student.name}, is {found} of {teacher.name}; use "
                "vocagno (or uld), which need no common vocabulary"
            )


class RowTeacher(LiveTeacher):
    """Reads rows of ids, for `rho1` and `kld`."""

    def __init__(
        self,
        scorer: TransformersScorer,
        guidance: GuidanceConfig,
        device: torch.device,
        data: DataConfig,
        num_ids: int,
    ) -> None:
        """`num_ids`: of the student, whose vocabulary begins the teacher's. Raises: ConfigError for
        `data.isolate` with a teacher that cannot keep documents apart."""
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
        given = {"teacher_loss": torch.where(is_asked_BT, nll_BT, torch.nan)}
        if self.guidance.criterion == "excess_and_entropy":
            entropy_N = chunked_entropy(states_NH, head)
            given["entropy"] = entropy_N.view(labels_BT.shape).to(self.device)
        return given

    def _states(self, tensors: dict[str, Tensor]) -> Tensor:
        """(B, T, H), computed a few rows at a time."""
        names, parts = ("attention_mask", "position_ids"), []
        for start in range(0, len(tensors["input_ids"]), self._rows):
            rows = slice(start, start + self._rows)
            given = {name: tensors[name][rows] for name in names if name in tensors}
            parts.append(hidden_states(self.scorer.model, tensors["input_ids"][rows], **given))
        return torch.cat(parts)
