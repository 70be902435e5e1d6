"""The collator turns rows into tensors, aligned with the teacher's scores, and counts their tokens.

B: rows, T: predicted tokens of a row, n: tokens of all rows, one after the other.
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
    """A micro-batch: the tensors that the model takes, and facts that stay on the host."""

    tensors: dict[str, Tensor]
    """input_ids, labels (B, T) int64; reasons (B, T) uint8; if documents are isolated, `piece`
    (B, T) int32, the number of each token's document in its row, -1 at padding; and the fields of
    `GuidanceTensors` that the method needs. All are contiguous, so that a device fetches them
    without waiting for a copy in pageable memory."""
    counts: TokenCounts
    """The counts of all rows."""
    row_counts: NDArray[np.int64]
    """(B, 14) the counts of each row, in the order of `TokenCounts`. `kept` is 0: only the number
    for the whole batch is known."""
    live: LiveText | None = None
    """Text for a live teacher. Until it is read, `teacher_loss` is 0 where it will have a loss."""
    chunk_ends: NDArray[np.int64] | None = None
    """The positions at which a chunk of logits may end, for groups with a threshold that is known
    beforehand (`safe_cuts`)."""
    units: Units | None = None
    """The line, the group and the bytes of each token, from which `known_weights` computes the
    weight. On the host."""
    members_before: NDArray[np.int64] | None = None
    """The number of ids in the buckets of all tokens before each one, for stored candidates
    (`GuidanceTensors.members_before`)."""
    bucket_key: str | None = None
    """`BucketTable.key` of the buckets that the candidates are numbered by."""
    text_bytes: int = 0
    """Bytes of text that the predicted tokens cover, counted where there is no teacher."""

    def pin_memory(self) -> "Batch":
        """Copies the tensors to memory from which a device fetches by itself. DataLoader calls
        this method by its name."""
        pinned = {name: value.pin_memory() for name, value in self.tensors.items()}
        live = None if self.live is None else self.live.pin_memory()
        units = None if self.units is None else self.units.each(Tensor.pin_memory)
        return replace(self, tensors=pinned, live=live, units=units)

    def inputs(self) -> dict[str, Any]:
        """The model's inputs, on the host: all but the reasons, which are already counted."""
        inputs: dict[str, Any] = dict(self.tensors)
        del inputs["reasons"]
        for name in ("chunk_ends", "members_before", "bucket_key"):
            if (value := getattr(self, name)) is not None:
                inputs[name] = value
        return inputs

    def to(self, device: torch.device) -> dict[str, Any]:
        """The model's inputs, on its device.

        Positions and mask of isolated documents are made there: the number of each token's document
        is 8 KB a row of 2,048 tokens, the mask 4 MB.
        """
        inputs = {
            name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in self.inputs().items()
        }
        piece_BT = inputs.pop("piece", None)
        return inputs if piece_BT is None else inputs | isolation(piece_BT)

    def with_live_losses(
        self, tensors: dict[str, Any], of_teacher: dict[str, Any], method: Method
    ) -> dict[str, Any]:
        """Adds the columns of a live teacher to `tensors` (what `to` returns), and those that are
        computed from them: candidates over buckets, and the weight."""
        inputs = tensors | of_teacher
        if method.targets is not None and self.live is not None:
            assert self.live.targets_BT3 is not None
            rows_BT3 = self.live.targets_BT3.to(inputs["labels"].device, non_blocking=True)
            rows_BT3 = rows_BT3.masked_fill(inputs["labels"][..., None] == IGNORED, -1)
            names = "candidate_ids", "candidate_mass", "candidate_entropy"
            targets = method.targets.at(rows_BT3, *(inputs.pop(name) for name in names))
            inputs |= {
                "candidates": targets.bucket_nS,
                "candidate_mass": targets.mass_nS,
                "candidate_entropy": targets.entropy_nR,
            }
        units = self.units_on(inputs["labels"].device, inputs.pop("group_loss", None))
        if units is not None and "teacher_loss" in inputs:
            losses_BT, labels_BT = inputs["teacher_loss"], inputs["labels"]
            inputs["weight"] = known_weights(losses_BT, labels_BT, units, method.guidance)
        return inputs

    def units_on(self, device: torch.device, group_loss_BT: Tensor | None = None) -> Units | None:
        """Copies `units` to a device; `group_loss_BT` are the losses of a live teacher."""
        if self.units is None:
            return None
        units = self.units.each(lambda value: value.to(device, non_blocking=True))
        return units if group_loss_BT is None else replace(units, group_loss_BT=group_loss_BT)


class Collator:
    """Turns rows into a `Batch`: aligns every piece with its document's scores, and aggregates the
    teacher's losses to one for each student token.

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
        """Args:
            scores: the teacher's losses, or the way to them; None: nothing is aligned.
            line_ends: `TokenSpans.line_ends` of the student, for `window_max_loss`.
            targets: the buckets of both vocabularies, for `distill`.
        Raises: ValueError if `line_ends` are missing; ConfigError for `targets` of other
            tokenizers, and if they are missing or not needed.
        """
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
            stores = scores.stores if isinstance(scores, SeveralTeachers) else [scores]
            # Without candidates only the losses of the first teacher are read.
            for number, store in enumerate(stores[: len(targets.teachers) if targets else 1]):
                sides = store.tokenizers if isinstance(store, MatchedScores) else (None, None)
                check_targets(guidance, targets, *sides, number)
        self.method: Method = method_of(guidance, targets)
        self.line_ends = line_ends
        self.seq_len: int = data.seq_len
        self.isolate: bool = data.isolate

    def __call__(self, rows: list[Row]) -> Batch:
        # One token more than T: the first of a row is only an input, the last only a label.
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
        has_label = _at(places, is_predicted, False)
        labels = labels.where(torch.from_numpy(has_label), IGNORED)
        tensors = {"input_ids": inputs.contiguous(), "labels": labels}
        if self.isolate:
            tensors["piece"] = torch.from_numpy(causal_shift(piece)[0].astype(np.int32))
        for name, values in self.method.columns(rows).items():
            tensors[name] = torch.from_numpy(_at(places, values, -1))
        tokens = teacher_view(rows, self.scores, self.method, is_predicted)
        by_group = tokens.by_group or tokens  # lines are measured on groups if there are any
        counts, row_counts = self._put_losses(tensors, tokens, places, has_label)
        groups = None
        if by_group.groups is not None:
            groups = torch.from_numpy(_at(places, by_group.groups, NO_GROUP))
            if self.guidance.needs_groups:  # else only the rule of lines does, on the host
                tensors["groups"] = groups
        live = None
        if tokens.windowed is not None:
            live = live_text(tokens, places)
        # A live teacher adds its losses up itself.
        elif self.guidance.unmapped == "mean" and tokens.is_inside is not None:
            losses = np.where(tokens.is_inside, tokens.teacher_nll, np.float32(np.nan))
            ranges = torch.from_numpy(tokens.row_ranges)
            tensors["teacher_sums"] = row_sums(torch.from_numpy(losses), ranges)
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
                group_loss_BT = torch.from_numpy(_at(places, by_group.teacher_loss, np.nan))
                units = replace(units, group_loss_BT=group_loss_BT)
            # A live teacher has no losses yet: `with_live_losses` computes the weights.
            if live is None and not isinstance(self.scores, SameRows):
                losses_BT, labels_BT = tensors["teacher_loss"], tensors["labels"]
                tensors["weight"] = known_weights(losses_BT, labels_BT, units, self.guidance)
        # Counted last: the number that a rule of lines keeps follows from the weights.
        roles = self.method.roles(tensors["teacher_loss"], tensors["labels"])
        counts = counts._replace(kept=self.method.most_kept(*roles, tensors))
        key = None if self.method.targets is None else self.method.targets.table.key
        text_bytes = 0  # validation, which has no teacher, also reports nats a byte
        if self.scores is None:
            text_bytes = sum(np.concatenate([row.new_bytes for row in rows])[is_predicted].tolist())
        return Batch(
            tensors,
            counts,
            row_counts,
            live=live,
            chunk_ends=ends,
            units=units,
            members_before=members_before,
            bucket_key=key,
            text_bytes=text_bytes,
        )

    def _put_targets(
        self, tensors: dict[str, Tensor], targets: Targets, places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Puts the teacher's buckets into the batch where a token is predicted.

        Returns: the number of ids in the buckets of all tokens before each one.
        """
        assert self.method.targets is not None
        bucket = _at(places, targets.bucket_nS.numpy(), NO_BUCKET)
        bucket[tensors["labels"].numpy() == IGNORED] = NO_BUCKET
        tensors["candidates"] = torch.from_numpy(bucket)
        tensors["candidate_mass"] = torch.from_numpy(_at(places, targets.mass_nS.numpy(), 0.0))
        # Otherwise entropies may be NaN. Without the column a loss with `surer` refuses the batch.
        if self.guidance.needs_entropy:
            entropy = _at(places, targets.entropy_nR.numpy(), np.nan)
            tensors["candidate_entropy"] = torch.from_numpy(entropy)
        return self.method.targets.table.before(tensors["candidates"])

    def aligned(self, rows: Sequence[Row]) -> TeacherView:
        """Aligns rows without making a batch: the teacher's side of all their tokens, in order."""
        return teacher_view(rows, self.scores, self.method, self._is_predicted(rows))

    def _is_predicted(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """(n,) True for tokens that are predicted: none of a prompt, and not the first of a row. If
        documents are isolated, nor is the first of a piece, which another document precedes."""
        predicted = []
        for row in rows:
            heads = np.cumsum(row.num_tokens) - row.num_tokens
            place = np.arange(len(row.ids)) - np.repeat(heads, row.num_tokens)  # in the piece
            is_predicted = place >= np.repeat(row.num_prompt, row.num_tokens)
            is_predicted[heads if self.isolate else heads[:1]] = False
            predicted.append(is_predicted)
        return np.concatenate(predicted)

    def _put_losses(
        self,
        tensors: dict[str, Tensor],
        tokens: TeacherView,
        places: NDArray[np.int64],
        has_label: NDArray[np.bool_],
    ) -> tuple[TokenCounts, NDArray[np.int64]]:
        """Puts each token's loss and reason into the batch where the token is predicted.

        Returns: the counts of all tokens, and of each row. None is counted as kept yet.
        """
        loss = _at(places, tokens.teacher_loss, np.nan)
        reasons = _at(places, tokens.reasons, Reason.SPECIAL)
        with_text, first_only, missing = (
            _at(places, values, False)
            for values in (tokens.with_text, tokens.first_only, tokens.missing)
        )
        tensors["teacher_loss"] = torch.from_numpy(loss)
        tensors["reasons"] = torch.from_numpy(reasons)
        competing, included = self.method.roles(tensors["teacher_loss"], tensors["labels"])
        has_scores = has_label & ~missing
        with_text = with_text & has_scores
        # Without a BOS the teacher has no loss on the first token of a document: nothing is amiss.
        scorable = with_text & ~(first_only & (reasons == Reason.UNSCORED))
        is_mapped = reasons == Reason.MAPPED
        tokens_of = {  # (B, T) booleans
            "predicted": has_label,
            "kept": np.zeros_like(has_label),
            "competing": competing.numpy(),
            "included": included.numpy(),
            "with_text": with_text,
            "scorable": scorable,
            "scored": scorable & is_mapped,
            **{reason.name.lower(): has_scores & (reasons == reason) for reason in Reason},
            "mapped": with_text & (is_mapped | (reasons == Reason.UNSCORED)),
            "missing": has_label & missing,
            "partial": has_scores & is_mapped & ~np.isfinite(loss),
        }
        row_counts = np.stack([tokens_of[name].sum(1) for name in TokenCounts._fields], 1)
        return TokenCounts(*row_counts.sum(0).tolist()), row_counts


def losses_of_neighbours(rows: Iterable[Row], collator: Collator) -> NDArray[np.float64]:
    """(n,) nats a byte: the teacher's loss on the neighbours of each of the n tokens that have a
    teacher loss, which `window_max_loss` limits. A token without neighbours is never noise, and has
    minus infinity.

    Args:
        rows: rows of a `RowStore`.
        collator: has the scores of their documents, and guidance with some `window_max_loss`, whose
            value has no effect.
    """
    losses = [np.empty(0)]
    for row in rows:
        batch = collator([row])
        assert batch.units is not None  # of a rule with `window_max_loss`
        columns = batch.tensors["teacher_loss"], batch.tensors["labels"]
        around_BT = teacher_loss_of_neighbours(*columns, batch.units, collator.guidance)
        competing_BT, _ = collator.method.roles(*columns)
        losses.append(around_BT.nan_to_num(nan=-torch.inf)[competing_BT].numpy())
    return np.concatenate(losses)


def line_ends(spans: TokenSpans, guidance: GuidanceConfig) -> NDArray[np.bool_] | None:
    """(vocabulary,) True for ids of the student that end a line; None if the guidance has no rule
    of lines."""
    return spans.line_ends() if guidance.window == "line" else None


def _at(places: NDArray[np.int64], values: NDArray[Any], fill: Any) -> NDArray[Any]:
    """Puts values of n tokens into the shape of a batch.

    Args:
        places: the number of the token at each position of the batch; -1 at padding.
        fill: the value at padding.
    """
    # Index -1 is the last row, so padding takes the value that is appended.
    padding = np.full((1, *values.shape[1:]), fill, values.dtype)
    return np.concatenate([values, padding])[places]


def line_numbers(
    ids: NDArray[np.int64], piece: NDArray[np.int64], ends_line: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(rows, tokens) the number of each token's line; -1 at padding. Lines are counted through all
    rows, from 0.

    A line ends with the token that holds a line break, and with its document.

    Args:
        ids, piece: (rows, tokens) the id, and the number of the token's document in its row.
        ends_line: (vocabulary,) True for ids that end a line.
    """
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
    """Yields the items in order, while a thread already makes the next `count` ones."""
    with ThreadPoolExecutor(1) as thread:
        # One thread, so that no two calls of `next` meet; None stands for the end.
        waiting = deque(thread.submit(next, items, None) for _ in range(count))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(next, items, None))
            yield item


def _leave_signals_to_the_parent(_: int) -> None:
    """SIGTERM reaches workers too; they must live on until the checkpoint is written."""
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
