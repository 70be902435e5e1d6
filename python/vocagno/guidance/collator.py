"""The collator turns rows into tensors, aligned with the teacher's scores, counts their tokens, and
under the rule of lines gives each token its weight (`line_rule.weights_of_lines`).

B: rows, T: predicted tokens of a row, n: tokens of all rows, one after the other.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from vocagno.data.rows import MixedRows, Row, RowStore, RowsWithEmpty
from vocagno.guidance.batch import GuidedBatch, TokenCounts, put
from vocagno.guidance.bucket_targets import NO_BUCKET, BucketTargets, check_targets
from vocagno.guidance.comparison import ComparedTokens, DocumentPairs, safe_cuts_of
from vocagno.guidance.line_rule import rest_of_line_loss, weights_of_lines
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method
from vocagno.guidance.pieces import (
    SameRows,
    Scores,
    SeveralTeachers,
    align_rows,
    live_text,
    stored_targets,
)
from vocagno.models.losses import IGNORED, causal_shift
from vocagno.teacher.live import LivePieces
from vocagno.teacher.score_store import MatchedScores
from vocagno.tokens.token_spans import TokenSpans

AnyItem = TypeVar("AnyItem")


class Collator:
    """Turns rows into a `GuidedBatch`: aligns every piece with its document's scores, aggregates
    the teacher's losses to one for each student token, and under the rule of lines, which is the
    default, gives each token its weight (`weights_of_lines`).

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
        self._needs_lines: bool = guidance.has_line_rule and scores is not None
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

    def __call__(self, rows: list[Row]) -> GuidedBatch:
        # One token more than T: the first of a row is only an input, the last only a label.
        # `places`: the number of each token among the n of all rows, to place columns by.
        ids = np.zeros((len(rows), self.seq_len + 1), np.int64)
        piece, places = (np.full(ids.shape, -1, np.int64) for _ in range(2))  # -1: padding
        before = 0
        for number, row in enumerate(rows):
            n = len(row.ids)
            ids[number, :n] = row.ids
            piece[number, :n] = np.repeat(np.arange(len(row.num_tokens)), row.num_tokens)
            places[number, :n] = np.arange(before, before + n)
            before += n
        inputs, next_ids = causal_shift(torch.from_numpy(ids))
        places_BT = causal_shift(torch.from_numpy(places))[1].contiguous()
        is_predicted = self._is_predicted(rows)
        pairs, compared = align_rows(rows, self.scores, self.method, is_predicted)
        assert compared.reasons is not None
        values: dict[str, NDArray[Any] | Tensor] = {
            "teacher_loss": compared.teacher_loss,
            "reasons": compared.reasons,
            **self.method.columns(rows),
            **self._bucket_columns(rows, pairs),
        }
        by_group = compared.by_group or compared  # what lines are measured on; under rho1 tokens
        if by_group.groups is not None and self.guidance.needs_groups:
            values["groups"] = by_group.groups
        if self._needs_lines:
            values |= self._line_columns(rows, by_group, has_own=compared.by_group is not None)
        # `put` moves the value of each token to the position that predicts it, and so does
        # `of_tokens` with each of `values`. Ids that are not learnt are no labels.
        has_label = put(is_predicted, places_BT, False)
        batch = GuidedBatch.of_tokens(
            values,
            places_BT,
            input_ids=inputs.contiguous(),
            labels=next_ids.where(has_label, IGNORED),
        )
        further: dict[str, Any] = {}
        if self.isolate:
            further["piece"] = torch.from_numpy(causal_shift(piece)[0].astype(np.int32))
        if self._needs_lines:
            assert self.line_ends is not None
            lines = torch.from_numpy(line_numbers(ids, piece, self.line_ends))
            further["line"] = causal_shift(lines)[1].contiguous()
        if self.method.targets is not None:
            further["bucket_key"] = self.method.targets.table.key
        if batch.candidates is not None:
            assert self.method.targets is not None
            is_none = batch.labels_BT == IGNORED
            further["candidates"] = batch.candidates.masked_fill(is_none[..., None], NO_BUCKET)
            further["members_before"] = self.method.targets.table.before(further["candidates"])
        if pairs.windowed is not None:
            target_rows = self._target_rows(rows, pairs)
            further["live_text"] = live_text(pairs, compared, places_BT, target_rows)
        elif self.guidance.unmapped == "mean" and pairs.documents:
            # A live teacher adds its losses up itself.
            losses = np.where(pairs.learnt(), pairs.teacher_nll, np.float32(np.nan))
            ranges = torch.from_numpy(pairs.teacher_ranges())
            further["teacher_sums"] = row_sums(torch.from_numpy(losses), ranges)
        further["chunk_ends"] = safe_cuts_of(batch.groups, self.guidance)
        if self.scores is None:  # validation, which has no teacher, also reports nats a byte
            new_bytes = np.concatenate([row.new_bytes for row in rows])
            further["text_bytes"] = sum(new_bytes[is_predicted].tolist())
        batch = replace(batch, **further)
        # Only stored losses are known here. Without `documents` no text is aligned; a live
        # teacher's losses come later, and `with_live_losses` makes the weights then.
        if self._needs_lines and pairs.documents and pairs.windowed is None:
            batch = replace(batch, weight=weights_of_lines(batch, self.guidance))
        return self._with_counts(batch, pairs, compared, places_BT)

    def _line_columns(
        self, rows: Sequence[Row], by_group: ComparedTokens, *, has_own: bool
    ) -> dict[str, NDArray[Any]]:
        """The columns with a value for each token from which `weights_of_lines` computes a weight.

        Args: has_own: True if tokens have losses of their own, next to those of the groups.
        """
        sizes = np.concatenate([row.new_bytes for row in rows]).astype(np.int32)
        if isinstance(self.scores, SameRows):
            # Its losses of EOS and BOS are none of a line. They are told by their places: of a
            # character in more parts than bytes, some parts have no byte, too.
            spans = np.concatenate([row.spans for row in rows])
            sizes[spans[:, 0] == spans[:, 1]] = -1
        values: dict[str, NDArray[Any]] = {"line_bytes": sizes}
        if by_group.groups is not None:
            values["line_groups"] = by_group.groups
        if has_own:
            values["group_loss"] = by_group.teacher_loss
        return values

    def _bucket_columns(self, rows: Sequence[Row], pairs: DocumentPairs) -> dict[str, Tensor]:
        """The teacher's buckets at each token, of stored candidates; none of a live teacher."""
        targets, scores = self.method.targets, self.scores
        if targets is None or scores is None or isinstance(scores, SameRows | LivePieces):
            return {}
        needs_entropy = self.guidance.needs_entropy
        over = stored_targets(rows, pairs, scores, targets, needs_entropy=needs_entropy)
        columns = {"candidates": over.bucket_nS, "candidate_mass": over.mass_nS}
        # Otherwise entropies may be NaN. Without the column a loss with `surer` refuses the batch.
        return columns | ({"candidate_entropy": over.entropy_nR} if needs_entropy else {})

    def _target_rows(self, rows: Sequence[Row], pairs: DocumentPairs) -> NDArray[np.int64] | None:
        """(n, 3) the rows of a live teacher's tokens whose candidates are compared, for `distill`
        (`BucketTargets.rows`)."""
        if self.method.targets is None:
            return None
        assert pairs.windowed is not None
        ids = np.concatenate([row.ids for row in rows])
        return self.method.targets.rows(pairs, ids, pairs.windowed.tokens.ids)

    def align(self, rows: Sequence[Row]) -> tuple[DocumentPairs, ComparedTokens]:
        """Aligns rows without making a batch: the teacher's side of all their tokens, in order."""
        return align_rows(rows, self.scores, self.method, self._is_predicted(rows))

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

    def _with_counts(
        self,
        batch: GuidedBatch,
        pairs: DocumentPairs,
        compared: ComparedTokens,
        places_BT: Tensor,
    ) -> GuidedBatch:
        """Adds the counts of all tokens, and of each row, to a batch with all its columns."""
        assert batch.reasons is not None
        assert compared.is_first_only is not None
        loss, reasons = batch.teacher_loss.numpy(), batch.reasons.numpy()
        has_label = (batch.labels_BT != IGNORED).numpy()
        covers_text = pairs.student_spans[:, 0] < pairs.student_spans[:, 1]
        if not pairs.documents:  # no text is aligned: all tokens count, or none does
            covers_text = np.full(len(covers_text), self.scores is not None)
        is_missing = np.repeat(pairs.is_missing, pairs.num_tokens)
        with_text, first_only, missing = (
            put(values, places_BT, False).numpy()
            for values in (covers_text, compared.is_first_only, is_missing)
        )
        competing, included = self.method.roles(batch.teacher_loss, batch.labels_BT)
        has_scores = has_label & ~missing
        with_text = with_text & has_scores
        # Without a BOS the teacher has no loss on the first token of a document: nothing is amiss.
        scorable = with_text & ~(first_only & (reasons == Reason.UNSCORED))
        is_mapped = reasons == Reason.MAPPED
        tokens_of = {  # (B, T) booleans
            "predicted": has_label,
            "kept": np.zeros_like(has_label),  # 0 for rows; the total is set below
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
        # The number that a rule of lines keeps follows from the weights.
        kept = self.method.most_kept(competing, included, batch)
        counts = TokenCounts(*row_counts.sum(0).tolist())._replace(kept=kept)
        return replace(batch, counts=counts, row_counts=row_counts)


def with_live_losses(
    batch: GuidedBatch, of_teacher: Mapping[str, Any], method: Method
) -> GuidedBatch:
    """Adds the columns of a live teacher to a batch on the device, and those that are computed from
    them: candidates over buckets, and the weight."""
    columns, labels_BT = dict(of_teacher), batch.labels_BT
    if method.targets is not None and batch.live_text is not None:
        assert batch.live_text.targets_BT3 is not None
        rows_BT3 = batch.live_text.targets_BT3.to(labels_BT.device, non_blocking=True)
        rows_BT3 = rows_BT3.masked_fill(labels_BT[..., None] == IGNORED, -1)
        names = "candidate_ids", "candidate_mass", "candidate_entropy"
        targets = method.targets.at(rows_BT3, *(columns.pop(name) for name in names))
        columns |= {
            "candidates": targets.bucket_nS,
            "candidate_mass": targets.mass_nS,
            "candidate_entropy": targets.entropy_nR,
        }
    batch = replace(batch, **columns)
    if batch.line is None or "teacher_loss" not in columns:
        return batch
    batch = batch.each(lambda values: values.to(labels_BT.device, non_blocking=True), "host")
    return replace(batch, weight=weights_of_lines(batch, method.guidance))


def limits_needed(rows: Iterable[Row], collator: Collator) -> NDArray[np.float64]:
    """(n,) nats a byte: the smallest `window_max_loss` that keeps each of the n tokens that have a
    teacher loss, which is that on the rest of its line. A token that has its line to itself is
    never noise, and has minus infinity.

    Args:
        rows: rows of a `RowStore`.
        collator: has the scores of their documents, and guidance with some `window_max_loss`, whose
            value has no effect.
    """
    limits = [np.empty(0)]
    for row in rows:
        batch = collator([row])
        rest_BT = rest_of_line_loss(batch, collator.guidance)
        competing_BT, _ = collator.method.roles(batch.teacher_loss, batch.labels_BT)
        limits.append(rest_BT.nan_to_num(nan=-torch.inf)[competing_BT].numpy())
    return np.concatenate(limits)


def line_ends(spans: TokenSpans, guidance: GuidanceConfig) -> NDArray[np.bool_] | None:
    """(vocabulary,) True for ids of the student that end a line; None if the guidance has no rule
    of lines."""
    return spans.line_ends() if guidance.has_line_rule else None


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
    rows: MixedRows | RowStore | RowsWithEmpty, batches: Any, collator: Collator, num_workers: int
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
