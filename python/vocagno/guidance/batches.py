"""The collator: rows to tensors, aligned with the teacher's scores, and counted.

B: rows, T: predicted tokens of a row, P: pieces of all rows of a batch.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from vocagno.alignment.mapping import Reason
from vocagno.alignment.segments import row_sums
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import MixedRows, Row, RowStore, WithEmpty
from vocagno.guidance.bucket_targets import NO_BUCKET, BucketTargets, Targets, check_targets
from vocagno.guidance.mappings import NO_GROUP, safe_cuts_of
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method
from vocagno.guidance.pieces import (
    SameRows,
    Scores,
    SeveralTeachers,
    TeacherView,
    live_text,
    teacher_view,
)
from vocagno.guidance.rules import Units, known_weights, teacher_loss_of_neighbours
from vocagno.guidance.tensors import TokenCounts
from vocagno.models.batching import isolation
from vocagno.models.losses import IGNORED, causal_shift
from vocagno.teacher.live import LiveText
from vocagno.teacher.scores import MatchedScores
from vocagno.tokens.token_spans import TokenSpans

AnyItem = TypeVar("AnyItem")


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: what the model takes, and what the host knows of it."""

    tensors: dict[str, Tensor]
    """input_ids, labels (B, T) int64; reasons (B, T) uint8; if documents are isolated, the number
    of each token's in its row, -1 at padding (`piece`, int32); and the fields of `GuidanceTensors`
    that the method needs. All contiguous, so that a device fetches them without waiting for a copy
    in pageable memory."""
    counts: TokenCounts
    row_counts: NDArray[np.int64]
    """(B, 14) the counts of each row, in the order of `TokenCounts`; `kept`, which is not known of
    a row, is 0."""
    live: LiveText | None = None
    """Text for a live teacher; until it is read, `teacher_loss` is 0 there."""
    chunk_ends: NDArray[np.int64] | None = None
    """Where a chunk of logits may end, for groups with a threshold that is known beforehand."""
    units: Units | None = None
    """What the weight follows from, for `window_max_loss`: on the host, as `tensors`."""
    members_before: NDArray[np.int64] | None = None
    """As `GuidanceTensors.members_before`, for stored candidates."""
    bucket_key: str | None = None
    """`BucketTable.key` of the buckets that it was made with."""
    text_bytes: int = 0
    """Bytes of text that the predicted tokens cover, counted where there is no teacher."""

    def pin_memory(self) -> "Batch":
        """The same with tensors that a device can fetch by itself; DataLoader asks for it."""
        pinned = {name: value.pin_memory() for name, value in self.tensors.items()}
        live = None if self.live is None else self.live.pin_memory()
        units = None if self.units is None else self.units.each(Tensor.pin_memory)
        return replace(self, tensors=pinned, live=live, units=units)

    def inputs(self) -> dict[str, Any]:
        """The model's inputs, on the host: all but the reasons, which are already counted."""
        given: dict[str, Any] = dict(self.tensors)
        del given["reasons"]
        for name in ("chunk_ends", "members_before", "bucket_key"):
            if (value := getattr(self, name)) is not None:
                given[name] = value
        return given

    def to(self, device: torch.device) -> dict[str, Any]:
        """The model's inputs, on its device.

        Positions and mask of isolated documents are made there: the number of each token's document
        is 8 KB a row of 2,048 tokens, the mask 4 MB.
        """
        given = {
            name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in self.inputs().items()
        }
        piece_BT = given.pop("piece", None)
        return given if piece_BT is None else given | isolation(piece_BT)

    def with_live_losses(
        self, tensors: dict[str, Any], found: dict[str, Any], method: Method
    ) -> dict[str, Any]:
        """`tensors` of `to` with what a live teacher found, and what follows from it: candidates
        over buckets, and the weight."""
        given = tensors | found
        if method.targets is not None and self.live is not None:
            assert self.live.targets_BT3 is not None
            rows_BT3 = self.live.targets_BT3.to(given["labels"].device, non_blocking=True)
            rows_BT3 = rows_BT3.masked_fill(given["labels"][..., None] == IGNORED, -1)
            names = "candidate_ids", "candidate_mass", "candidate_entropy"
            targets = method.targets.at(rows_BT3, *(given.pop(name) for name in names))
            given |= {
                "candidates": targets.bucket_nS,
                "candidate_mass": targets.mass_nS,
                "candidate_entropy": targets.entropy_nR,
            }
        units = self.units_on(given["labels"].device, given.pop("group_loss", None))
        if units is not None and "teacher_loss" in given:
            losses_BT, labels_BT = given["teacher_loss"], given["labels"]
            given["weight"] = known_weights(losses_BT, labels_BT, units, method.guidance)
        return given

    def units_on(self, device: torch.device, group_loss_BT: Tensor | None = None) -> Units | None:
        """`units` on a device, with the losses of a live teacher where it has some."""
        if self.units is None:
            return None
        units = self.units.each(lambda value: value.to(device, non_blocking=True))
        return units if group_loss_BT is None else replace(units, group_loss_BT=group_loss_BT)


class Collator:
    """Rows to tensors: aligns every piece with its document's scores and aggregates the losses.

    Without scores (naive training, validation) nothing is aligned. Tokens of prompts get no label.
    """

    def __init__(
        self,
        scores: Scores | None,
        guidance: GuidanceConfig,
        data: DataConfig,
        line_ends: NDArray[np.bool_] | None = None,
        targets: BucketTargets | None = None,
    ) -> None:
        """`line_ends`: `TokenSpans.line_ends` of the student, for `window_max_loss`. `targets`: the
        buckets of both vocabularies, for `distill`.
        Raises: ValueError if `line_ends` are missing; ConfigError as `check_targets`."""
        self._needs_lines: bool = guidance.window == "line" and scores is not None
        if self._needs_lines and line_ends is None:
            raise ValueError(
                "guidance.window_max_loss needs to know which ids end a line; give "
                "line_ends=TokenSpans(STUDENT).line_ends(), or another rule, such as the paper's, "
                "GuidanceConfig(top_fraction=0.4)"
            )
        self.scores = scores
        self.guidance = guidance
        if scores is not None:
            several = scores.stores if isinstance(scores, SeveralTeachers) else [scores]
            for number, one in enumerate(several[: len(targets.teachers) if targets else 1]):
                known = one.tokenizers if isinstance(one, MatchedScores) else (None, None)
                check_targets(guidance, targets, *known, number)
        self.method: Method = method_of(guidance, targets)
        self.line_ends = line_ends
        self.seq_len: int = data.seq_len
        self.isolate: bool = data.isolate

    def __call__(self, rows: list[Row]) -> Batch:
        ids = np.zeros((len(rows), self.seq_len + 1), np.int64)
        piece, places = (np.full(ids.shape, -1, np.int64) for _ in range(2))  # -1: padding
        before = 0
        for number, row in enumerate(rows):
            n = len(row.ids)
            ids[number, :n] = row.ids
            piece[number, :n] = np.repeat(np.arange(len(row.num_tokens)), row.num_tokens)
            places[number, :n] = np.arange(before, before + n)
            before += n
        inputs, labels = causal_shift(torch.from_numpy(ids))
        places = causal_shift(places)[1]  # of the tokens that are predicted
        is_predicted = self._is_predicted(rows)
        wanted = _at(places, is_predicted, False)
        labels = labels.where(torch.from_numpy(wanted), IGNORED)
        tensors = {"input_ids": inputs.contiguous(), "labels": labels}
        if self.isolate:
            tensors["piece"] = torch.from_numpy(causal_shift(piece)[0].astype(np.int32))
        for name, values in self.method.columns(rows).items():
            tensors[name] = torch.from_numpy(_at(places, values, -1))
        tokens = teacher_view(rows, self.scores, self.method, is_predicted)
        by_group = tokens.by_group or tokens
        counts, row_counts = self._with_teacher(tensors, tokens, places, wanted)
        groups = None
        if by_group.groups is not None:
            groups = torch.from_numpy(_at(places, by_group.groups, NO_GROUP))
            if self.guidance.needs_groups:
                tensors["groups"] = groups
        live = None
        if tokens.windowed is not None:
            live = live_text(tokens, places)
        elif self.guidance.unmapped == "mean" and tokens.is_inside is not None:
            own = np.where(tokens.is_inside, tokens.teacher_nll, np.float32(np.nan))
            ranges = torch.from_numpy(tokens.row_ranges)
            tensors["teacher_sums"] = row_sums(torch.from_numpy(own), ranges)
        members_before = None
        if tokens.targets is not None:
            members_before = self._put_targets(tensors, tokens.targets, places)
        ends = safe_cuts_of(tensors, self.guidance)
        units = None
        if self._needs_lines:
            assert self.line_ends is not None
            lines = torch.from_numpy(line_numbers(ids, piece, self.line_ends))
            sizes = np.concatenate([row.spans[:, 1] - row.spans[:, 0] for row in rows])
            sizes_BT = torch.from_numpy(_at(places, sizes, 0))
            lines_BT = causal_shift(lines)[1].contiguous()
            units = Units(lines_BT=lines_BT, bytes_BT=sizes_BT, groups_BT=groups)
            if tokens.by_group is not None:
                losses = torch.from_numpy(_at(places, by_group.teacher_loss, np.nan))
                units = replace(units, group_loss_BT=losses)
            if live is None and not isinstance(self.scores, SameRows):
                given = tensors["teacher_loss"], tensors["labels"]
                tensors["weight"] = known_weights(*given, units, self.guidance)
        # Counted last: how many a rule of lines keeps follows from the weights.
        roles = self.method.roles(tensors["teacher_loss"], tensors["labels"])
        counts = counts._replace(kept=self.method.most_kept(*roles, tensors))
        key = None if self.method.targets is None else self.method.targets.table.key
        text_bytes = 0
        if self.scores is None:
            text_bytes = sum(np.concatenate([row.new_bytes for row in rows])[is_predicted].tolist())
        known = live, ends, units, members_before, key, text_bytes
        return Batch(tensors, counts, row_counts, *known)

    def _put_targets(
        self, tensors: dict[str, Tensor], targets: Targets, places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Puts the candidates where a token is predicted; `GuidanceTensors.members_before`."""
        assert self.method.targets is not None
        bucket = _at(places, targets.bucket_nS.numpy(), NO_BUCKET)
        bucket[tensors["labels"].numpy() == IGNORED] = NO_BUCKET
        tensors["candidates"] = torch.from_numpy(bucket)
        tensors["candidate_mass"] = torch.from_numpy(_at(places, targets.mass_nS.numpy(), 0.0))
        if self.guidance.needs_entropy:  # else it may be unknown, which `surer` must not meet
            entropy = _at(places, targets.entropy_nR.numpy(), np.nan)
            tensors["candidate_entropy"] = torch.from_numpy(entropy)
        return self.method.targets.table.before(tensors["candidates"])

    def aligned(self, rows: Sequence[Row]) -> TeacherView:
        """The teacher's view of all tokens of all rows, in order."""
        return teacher_view(rows, self.scores, self.method, self._is_predicted(rows))

    def _is_predicted(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """Which tokens of the rows, one after the other, are predicted: none of a prompt, and not
        the first of a row, or of a piece, which would be predicted from another document."""
        predicted = []
        for row in rows:
            heads = np.cumsum(row.num_tokens) - row.num_tokens
            place = np.arange(len(row.ids)) - np.repeat(heads, row.num_tokens)  # in the piece
            found = place >= np.repeat(row.num_prompt, row.num_tokens)
            found[heads if self.isolate else heads[:1]] = False
            predicted.append(found)
        return np.concatenate(predicted)

    def _with_teacher(
        self,
        tensors: dict[str, Tensor],
        tokens: TeacherView,
        places: NDArray[np.int64],
        wanted: NDArray[np.bool_],
    ) -> tuple[TokenCounts, NDArray[np.int64]]:
        """Puts each token's loss and reason where the token is predicted; the counts of all tokens,
        and of each row; none is counted as kept."""
        loss = _at(places, tokens.teacher_loss, np.nan)
        reasons = _at(places, tokens.reasons, Reason.SPECIAL)
        with_text, first_only, missing = (
            _at(places, values, False)
            for values in (tokens.with_text, tokens.first_only, tokens.missing)
        )
        tensors["teacher_loss"] = torch.from_numpy(loss)
        tensors["reasons"] = torch.from_numpy(reasons)
        competing, included = self.method.roles(tensors["teacher_loss"], tensors["labels"])
        known = wanted & ~missing
        with_text = with_text & known
        scorable = with_text & ~(first_only & (reasons == Reason.UNSCORED))
        is_mapped = reasons == Reason.MAPPED
        tokens_of = {  # (B, T) booleans
            "predicted": wanted,
            "kept": np.zeros_like(wanted),
            "competing": competing.numpy(),
            "included": included.numpy(),
            "with_text": with_text,
            "scorable": scorable,
            "scored": scorable & is_mapped,
            **{one.name.lower(): known & (reasons == one) for one in Reason},
            "mapped": with_text & (is_mapped | (reasons == Reason.UNSCORED)),
            "missing": wanted & missing,
            "partial": known & is_mapped & ~np.isfinite(loss),
        }
        row_counts = np.stack([tokens_of[name].sum(1) for name in TokenCounts._fields], 1)
        return TokenCounts(*row_counts.sum(0).tolist()), row_counts


def losses_of_neighbours(rows: Iterable[Row], collator: Collator) -> NDArray[np.float64]:
    """(n,) nats a byte: what `window_max_loss` limits, for each of the n tokens with a teacher
    loss; minus infinity for a token without neighbours, which is never noise.

    Args:
        rows: as `RowStore` gives them.
        collator: with the scores of their documents, and a guidance with `window_max_loss`, whose
            value has no effect.
    """
    losses = [np.empty(0)]
    for row in rows:
        batch = collator([row])
        assert batch.units is not None  # of a rule with `window_max_loss`
        given = batch.tensors["teacher_loss"], batch.tensors["labels"]
        around_BT = teacher_loss_of_neighbours(*given, batch.units, collator.guidance)
        competing_BT, _ = collator.method.roles(*given)
        losses.append(around_BT.nan_to_num(nan=-torch.inf)[competing_BT].numpy())
    return np.concatenate(losses)


def line_ends(spans: TokenSpans, guidance: GuidanceConfig) -> NDArray[np.bool_] | None:
    """Which ids of the student end a line, as a `Collator` takes it; None where it needs none."""
    return spans.line_ends() if guidance.window == "line" else None


def _at(places: NDArray[np.int64], values: NDArray[Any], fill: Any) -> NDArray[Any]:
    """Values of tokens, all rows one after the other, put at the places of a batch, which have the
    number of the token there, or -1 for padding: `fill`."""
    padding = np.full((1, *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, padding])[places]


def line_numbers(
    ids: NDArray[np.int64], piece: NDArray[np.int64], ends_line: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The number of each token's line in its row, all rows counted through; -1 at padding. A line
    ends with the token that holds a line break, and with its document."""
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = ends_line[ids[:, :-1]] | (piece[:, 1:] != piece[:, :-1])
    numbers = np.cumsum(begins).reshape(ids.shape) - 1
    return np.where(piece >= 0, numbers, -1)


def loader(
    rows: MixedRows | RowStore | WithEmpty, batches: Any, collator: Collator, num_workers: int
) -> DataLoader[Any]:
    """Loads and collates in this process, or in worker processes."""
    return DataLoader(
        rows,  # type: ignore[arg-type]  # has __len__ and __getitem__, which is all that is needed
        batch_sampler=batches,
        collate_fn=collator,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_leave_signals_to_the_parent,
        generator=torch.Generator(),  # loading must not change the model's random state
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
