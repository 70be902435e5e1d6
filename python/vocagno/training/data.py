"""Which rows a step trains on, and the collator that aligns them with the teacher's scores.

B: rows, T: predicted tokens of a row, P: pieces of all rows of a batch.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vocagno.alignment import Reason, align, unmapped_reasons
from vocagno.config import DataConfig, GuidanceConfig, TrainConfig
from vocagno.reduction import reduce
from vocagno.rows import Row, RowStore
from vocagno.score_index import NOT_SCORED, MatchedScores
from vocagno.scores import DocumentScores, ScoreStore
from vocagno.training.guidance import IGNORED, count_kept_of, roles
from vocagno.training.isolation import isolation
from vocagno.training.live import LivePieces, LiveText
from vocagno.training.losses import causal_shift
from vocagno.training.reading import ReadTexts

COUNTS = (
    "predicted", "kept", "competing", "included", "with_text", "mapped", "scorable", "scored",
    "special", "truncated", "hole", "unscored", "missing",
)  # fmt: skip
"""What is counted of the predicted tokens of a batch, in this order. Those of documents that are
not scored at all are `missing`, and stand in none but the first four."""


AnyItem = TypeVar("AnyItem")

EMPTY_ROW = Row(
    np.empty(0, np.int32), np.empty((0, 2), np.int32), np.empty(0, np.int64),
    np.empty(0, np.int32), np.empty(0, np.int32),
)  # fmt: skip


class RowOrder:
    """The rows of all samples of a run: each epoch a permutation of `(seed, epoch)`, end to end."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows, self.seed = num_rows, seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def row(self, sample: int) -> int:
        """The row of the `sample`-th sample since the start of the run."""
        epoch, place = divmod(sample, self.num_rows)
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch, self._permutation = epoch, generator.permutation(self.num_rows)
        return int(self._permutation[place])


class MicroBatches(Sampler[list[int]]):
    """The rows of every micro-batch of one process, from a step on.

    A pure function of (seed, step, process, number of processes, global batch): nothing but the
    step has to be remembered to go on. The rows of a step do not depend on how it is cut up.
    """

    def __init__(
        self, order: RowOrder, config: TrainConfig, first_step: int, rank: int, num_processes: int
    ) -> None:
        self.order, self.config, self.first_step = order, config, first_step
        self.rank, self.num_processes = rank, num_processes
        self.accumulation = config.accumulation(num_processes)

    def __len__(self) -> int:
        return (self.config.steps - self.first_step) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first_step, self.config.steps):
            yield from self.rows_of(step)

    def rows_of(self, step: int) -> Iterator[list[int]]:
        """The rows of each micro-batch of a step."""
        rows = self.config.micro_batch
        for turn in range(self.accumulation):
            before = (turn * self.num_processes + self.rank) * rows
            first = step * self.config.global_batch + before
            yield [self.order.row(first + i) for i in range(rows)]


class ValidationBatches(Sampler[list[int]]):
    """Every row once, dealt out to the processes; all get as many batches of as many rows, since a
    forward pass may be one that they take together. What is left over is `num_rows` (`WithEmpty`).
    """

    def __init__(self, num_rows: int, rows: int, rank: int, num_processes: int) -> None:
        self._num_rows, self._rows = num_rows, rows
        self._rank, self._num_processes = rank, num_processes

    def __len__(self) -> int:
        return -(-self._num_rows // (self._rows * self._num_processes))

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(len(self)):
            first = (batch * self._num_processes + self._rank) * self._rows
            yield [min(first + place, self._num_rows) for place in range(self._rows)]


class WithEmpty:
    """A store of rows, and behind its last one a row that holds nothing."""

    def __init__(self, rows: RowStore) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) + 1

    def __getitem__(self, index: int) -> Row:
        return self.rows[index] if index < len(self.rows) else EMPTY_ROW


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: what the model takes, and what the host knows of it."""

    tensors: dict[str, Tensor]
    """input_ids, labels (B, T) int64; teacher_loss (B, T) float32, NaN where there is none; reasons
    (B, T) uint8; and, if documents are isolated, position_ids and attention_mask."""
    counts: Tensor
    """(len(COUNTS),) int64, on the host."""
    live: LiveText | None = None
    """What a live teacher has to read before `teacher_loss` is known; until then it is 0 there."""

    def pin_memory(self) -> "Batch":
        """The same with tensors that a device can fetch by itself; DataLoader asks for it."""
        pinned = {name: value.pin_memory() for name, value in self.tensors.items()}
        return replace(self, tensors=pinned)

    def to(self, device: torch.device) -> dict[str, Tensor]:
        """What the model takes, on its device; the reasons are counted already and stay behind."""
        return {
            name: value.to(device, non_blocking=True)
            for name, value in self.tensors.items()
            if name != "reasons"
        }


class Collator:
    """Rows to tensors: aligns every piece with its document's scores and aggregates the losses.

    Without scores (naive training, validation) nothing is aligned. Tokens of prompts get no label.
    """

    def __init__(
        self,
        scores: MatchedScores | ScoreStore | LivePieces | None,
        guidance: GuidanceConfig,
        data: DataConfig,
    ) -> None:
        self.scores, self.guidance = scores, guidance
        self.seq_len, self.isolate = data.seq_len, data.isolate

    def __call__(self, rows: list[Row]) -> Batch:
        width = self.seq_len + 1
        ids = np.zeros((len(rows), width), np.int64)
        wanted = np.zeros((len(rows), width), bool)
        piece = np.full((len(rows), width), -1, np.int64)  # padding is a piece of its own
        for number, row in enumerate(rows):
            n = len(row.ids)
            ids[number, :n], wanted[number, :n] = row.ids, True
            piece[number, :n] = np.repeat(np.arange(len(row.num_tokens)), row.num_tokens)
            if row.num_prompt.any():
                wanted[number, :n] = ~_is_prompt(row)
        inputs, labels = causal_shift(torch.from_numpy(ids))
        reading, asked = causal_shift(piece)
        _, wanted = causal_shift(wanted)
        if self.isolate:  # the first token of a piece would be predicted from another document
            wanted = wanted & (reading == asked)
        tensors = {"input_ids": inputs, "labels": labels.where(torch.from_numpy(wanted), IGNORED)}
        if self.isolate:
            tensors |= isolation(torch.from_numpy(reading))
        tokens = self.aligned(rows)
        places = _places(rows, width)
        counts = self._with_teacher(tensors, tokens, places, wanted)
        live = None
        if tokens.read is not None:
            live = LiveText(tokens.read, tokens.mapping, causal_shift(places)[1])
        return Batch(tensors, counts, live)

    def aligned(self, rows: list[Row]) -> "TeacherView":
        """Losses and reasons of all tokens of all rows, one after the other."""
        scores = self.scores
        if scores is None:
            return _unaligned(rows)
        student = np.concatenate([row.spans for row in rows])
        num_tokens = np.concatenate([row.num_tokens for row in rows])
        student_cu = _boundaries(num_tokens)
        numbers = np.concatenate([row.documents for row in rows]).tolist()
        first_bytes = np.minimum.reduceat(student[:, 0], student_cu[:-1]).tolist()
        end_bytes = np.maximum.reduceat(student[:, 1], student_cu[:-1]).tolist()
        read = None
        if isinstance(scores, LivePieces):
            read, documents = scores.read(numbers, first_bytes, end_bytes)
        else:
            documents = list(map(scores.piece, numbers, first_bytes, end_bytes))
        teacher, nll, teacher_cu = _flat(documents)
        mapping = align(
            student, teacher, student_cu_seqlens=student_cu, teacher_cu_seqlens=teacher_cu
        )
        reasons = unmapped_reasons(
            student, teacher, mapping,
            losses=nll, student_cu_seqlens=student_cu, teacher_cu_seqlens=teacher_cu,
        )  # fmt: skip
        # Without a BOS a document's first teacher token has no loss: nobody's fault.
        whole = np.array([document.first_row == 0 for document in documents])
        first_only = mapping[:, 1] == np.repeat(
            np.where(whole, teacher_cu[:-1] + 1, -2), num_tokens
        )
        loss = reduce(nll, mapping, self.guidance.aggregation)
        is_missing = np.array([document is NOT_SCORED for document in documents])
        missing = np.repeat(is_missing, num_tokens)
        with_text = student[:, 0] < student[:, 1]
        return TeacherView(
            loss, reasons, with_text, first_only, missing, mapping,
            teacher, nll, documents[0].first_row, read,
        )  # fmt: skip

    def _with_teacher(
        self,
        tensors: dict[str, Tensor],
        tokens: "TeacherView",
        places: NDArray[np.int64],
        wanted: NDArray[np.bool_],
    ) -> Tensor:
        """Puts each token's loss and reason where the token is predicted; the counts."""
        loss, reasons, with_text, first_only, missing = (
            causal_shift(_spread(values, places, fill))[1]
            for values, fill in (
                (tokens.loss, np.nan), (tokens.reasons, Reason.SPECIAL),
                (tokens.with_text, False), (tokens.first_only, False), (tokens.missing, False),
            )
        )  # fmt: skip
        tensors["teacher_loss"] = torch.from_numpy(np.ascontiguousarray(loss))
        tensors["reasons"] = torch.from_numpy(np.ascontiguousarray(reasons))
        competing, included = roles(tensors["teacher_loss"], tensors["labels"], self.guidance)
        known = wanted & ~missing
        with_text = with_text & known
        scorable = with_text & ~(first_only & (reasons == Reason.UNSCORED))
        why = np.bincount(reasons[known], minlength=len(Reason)).tolist()
        with_reason = np.bincount(reasons[with_text], minlength=len(Reason)).tolist()
        counts = {
            "predicted": int(wanted.sum()),
            "kept": int(count_kept_of(competing, included, self.guidance)),
            "competing": int(competing.sum()),
            "included": int(included.sum()),
            "with_text": int(with_text.sum()),
            "mapped": with_reason[Reason.MAPPED] + with_reason[Reason.UNSCORED],
            "scorable": int(scorable.sum()),
            "scored": int((scorable & (reasons == Reason.MAPPED)).sum()),
            **{reason.name.lower(): why[reason] for reason in Reason if reason != Reason.MAPPED},
            "missing": int((wanted & missing).sum()),
        }
        return torch.tensor([counts[name] for name in COUNTS])


@dataclass(frozen=True, slots=True)
class TeacherView:
    """What the teacher has to say of n tokens, in the order of the rows."""

    loss: NDArray[np.float32]
    reasons: NDArray[np.uint8]
    with_text: NDArray[np.bool_]
    first_only: NDArray[np.bool_]
    """Mapped to nothing but the first teacher token of the document."""
    missing: NDArray[np.bool_]
    """Of a document that is not scored."""
    mapping: NDArray[np.int32]
    """(n, 2) rows of the teacher's tokens."""
    teacher_spans: NDArray[np.int32]
    """(M, 2) the teacher's tokens, of all pieces one after the other."""
    teacher_nll: NDArray[np.float32]
    """(M,) their losses."""
    first_row: int = 0
    """Tokens of the first document before these."""
    read: ReadTexts | None = None
    """What a live teacher has to read for the losses."""


def _unaligned(rows: list[Row]) -> TeacherView:
    """Where there is no teacher, no token has a loss, and none is counted as mapped."""
    n = sum(len(row.ids) for row in rows)
    nothing = np.zeros(n, bool)
    special = np.full(n, Reason.SPECIAL, np.uint8)
    loss, mapping = np.full(n, np.nan, np.float32), np.full((n, 2), -1, np.int32)
    spans, nll = np.empty((0, 2), np.int32), np.empty(0, np.float32)
    return TeacherView(loss, special, nothing, nothing, nothing, mapping, spans, nll)


def _is_prompt(row: Row) -> NDArray[np.bool_]:
    """(n,) the first `num_prompt` tokens of each piece."""
    heads = np.cumsum(row.num_tokens) - row.num_tokens
    place = np.arange(len(row.ids)) - np.repeat(heads, row.num_tokens)
    return place < np.repeat(row.num_prompt, row.num_tokens)


def _flat(
    documents: list[DocumentScores],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    spans = np.concatenate([document.spans for document in documents])
    nll = np.concatenate([document.nll for document in documents]).astype(np.float32)
    return spans, nll, _boundaries(np.array([len(document.nll) for document in documents]))


def _boundaries(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _places(rows: list[Row], width: int) -> NDArray[np.int64]:
    """(B, width): the number of each token in the order of the rows, -1 for padding."""
    places = np.full((len(rows), width), -1, np.int64)
    before = 0
    for number, row in enumerate(rows):
        places[number, : len(row.ids)] = np.arange(before, before + len(row.ids))
        before += len(row.ids)
    return places


def _spread(values: NDArray[Any], places: NDArray[np.int64], fill: Any) -> NDArray[Any]:
    """Values of tokens put at their places; `fill` at padding."""
    return np.append(values, np.array(fill, values.dtype))[places]


def loader(
    rows: RowStore | WithEmpty, batches: Any, collator: Collator, num_workers: int
) -> DataLoader[Any]:
    """Loads and collates in this process, or in others beside it."""
    return DataLoader(
        rows,  # type: ignore[arg-type]  # has __len__ and __getitem__, which is all that is needed
        batch_sampler=batches,
        collate_fn=collator,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_leave_signals_to_the_parent,
        generator=torch.Generator(),  # of its own: loading must not move the model's random state
    )


def ahead(items: Iterator[AnyItem], count: int) -> Iterator[AnyItem]:
    """The same, `count` of them made in a thread while what came before is in use."""
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(next, items, None) for _ in range(count))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, items, None))
            yield item


def _leave_signals_to_the_parent(_: int) -> None:
    """SIGTERM reaches workers too; they must live on until the checkpoint is written."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
