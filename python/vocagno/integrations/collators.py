"""The collators of `GuidedTrainer`: one makes batches of stored rows and matched scores, the other
of the columns that `add_teacher_loss` has made."""

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config.guidance import GuidanceConfig, as_naive
from vocagno.config.options import DataConfig
from vocagno.data.rows import Row, RowStore
from vocagno.errors import ConfigError, InputError
from vocagno.guidance.batch import (
    OF_TOKENS,
    BatchFacts,
    GuidedBatch,
    TokenCounts,
    check_columns,
    needed_columns,
)
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.collator import Collator
from vocagno.guidance.comparison import safe_cuts_of
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.base import Method
from vocagno.integrations.columns import pad_column
from vocagno.models.losses import IGNORED, causal_shift
from vocagno.teacher.score_store import MatchedScores

SHIFTED = "shift_labels"
"""The name by which a loss of transformers takes labels that are shifted already. A trainer other
than `GuidedTrainer` would shift `labels` again, and learn the token after the next."""


class GuidedCollator:
    """Makes the batches of `GuidedTrainer` from rows of a `RowStore`."""

    def __init__(
        self,
        scores: MatchedScores | None,
        guidance: GuidanceConfig,
        *,
        seq_len: int,
        line_ends: NDArray[np.bool_] | None = None,
        targets: BucketTargets | None = None,
    ) -> None:
        """Args:
            scores: scores of the documents of the rows; None to evaluate, or for `method: cpt`.
            seq_len: the `seq_len` of the rows.
            line_ends: `TokenSpans.line_ends` of the student, for `window_max_loss`.
            targets: the buckets of both vocabularies, for `distill`, which also needs
                `candidates=True` in `scores`.
        Raises: StoreError if less than `guidance.min_coverage` of the rows' tokens are in documents
            with scores.
        """
        if isinstance(scores, MatchedScores) and guidance.needs_teacher:
            scores.check(guidance.min_coverage)
            if scores.warning:
                warnings.warn(scores.warning, stacklevel=2)
        data = DataConfig(train="", seq_len=seq_len)
        self._collator = Collator(scores, guidance, data, line_ends, targets)
        # Evaluation has no scores. The batch says so by `is_naive`, and the loss is that of all
        # tokens.
        is_naive = scores is None and guidance.needs_teacher
        self._guidance = as_naive(guidance) if is_naive else guidance

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Makes a batch: the inputs of the model, and `facts`, which the trainer takes out.

        The inputs are `input_ids`, `labels` (already shifted: `labels[:, i]` follows
        `input_ids[:, i]`) and `teacher_loss`, (B, T) each; the other tensors that the guidance
        needs; and `num_kept`, the number of tokens that will be kept (the most, if that depends on
        the losses).
        """
        batch = self._collator(list(rows))
        facts = BatchFacts(self._guidance, batch.counts)
        inputs = batch.inputs() | {"num_kept": batch.counts.kept, "facts": facts}
        inputs[SHIFTED] = inputs["labels"]
        if self._collator.scores is None:
            inputs["is_naive"] = True
        return inputs

    def check_rows(self, rows: Any) -> None:
        """Checks that rows have the length of the batches, and are those whose documents the scores
        were matched to, by number.
        Raises: InputError for a store of other rows; a data set of one's own is not looked at."""
        if not isinstance(rows, RowStore):
            return
        scores, seq_len = self._collator.scores, self._collator.seq_len
        made = rows.manifest.made_from.get("seq_len", seq_len)
        if made != seq_len:
            raise InputError(
                f"GuidedCollator: seq_len {seq_len:,} for rows of {made:,} tokens "
                f"({rows.folder}); give the seq_len of the rows"
            )
        if isinstance(scores, MatchedScores) and rows.text_hashes != scores.text_hashes:
            raise InputError(
                f"train_dataset: {rows.folder} has other documents than the rows that the scores "
                "of the collator were matched to; give MatchedScores these rows"
            )

    def without_scores(self) -> "GuidedCollator":
        """Returns the collator of held-out rows. Their documents are not those of the scores."""
        held_out = copy(self)  # a subclass stays what it is
        guidance, seq_len = self._collator.guidance, self._collator.seq_len
        GuidedCollator.__init__(held_out, None, guidance, seq_len=seq_len)
        return held_out


class DataCollatorWithTeacherLoss:
    """Makes the batches of `GuidedTrainer` from examples with the columns of `add_teacher_loss`."""

    def __init__(
        self,
        guidance: GuidanceConfig | None = None,
        *,
        pad_to_multiple_of: int | None = None,
        targets: BucketTargets | None = None,
    ) -> None:
        """Args:
            guidance: the guidance of the columns.
            pad_to_multiple_of: the number of tokens of a padded example is a multiple of this.
            targets: the targets that the columns were made with, for `distill`.
        Raises: ConfigError for `distill` without `targets`.
        """
        self._guidance: GuidanceConfig = guidance or GuidanceConfig()
        check_targets(self._guidance, targets)
        self._table = None if targets is None else targets.table
        self._method: Method = method_of(self._guidance)
        self._multiple: int = pad_to_multiple_of or 1

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Pads examples to a batch with the inputs and `facts` of `GuidedCollator`.

        Raises: ValueError for examples without the columns that the guidance needs; ConfigError
            for columns of other guidance, or of several student tokenizers.
        """
        names = _columns_for(self._guidance)
        missing = [name for name in names if any(example.get(name) is None for example in examples)]
        if missing:
            raise ValueError(
                f"examples without {', '.join(missing)}: make the columns by add_teacher_loss with "
                "this guidance, and let the trainer keep them (remove_unused_columns=False)"
            )
        # Naive training needs no such column, but ids of another tokenizer are as wrong there.
        origins = {example["made_for"] for example in examples if example.get("made_for")}
        students = {check_columns(origin, self._guidance, self._table) for origin in origins}
        if len(students) > 1:
            raise ConfigError("columns of several student tokenizers: make all of them with one")
        # The shift removes one place; the number of those that are left is the multiple.
        longest = max(2, *(len(example["input_ids"]) for example in examples)) - 1
        width = -(-longest // self._multiple) * self._multiple + 1
        tensors: dict[str, Any] = {}
        for name in OF_TOKENS:
            if name in examples[0]:
                # The columns are parallel to `input_ids` and a column of candidates has a third
                # axis: the axis of tokens is brought to the end for the shift, and back. Shifted
                # along the candidates, the wrong ones were trained on without an error.
                shifted = causal_shift(pad_column(examples, name, width).movedim(1, -1))
                tensors[name] = shifted[0 if name == "input_ids" else 1].movedim(-1, 1).contiguous()
        if "teacher_sums" in examples[0]:
            sums = np.array([example["teacher_sums"] for example in examples])
            tensors["teacher_sums"] = torch.from_numpy(sums)
        batch = GuidedBatch(**tensors)
        labels_BT = batch.labels_BT
        competing, included = self._method.roles(batch.teacher_loss, labels_BT)
        num_kept = self._method.most_kept(competing, included, batch)
        batch = replace(batch, chunk_ends=safe_cuts_of(batch.groups, self._guidance))
        if self._table is not None and batch.candidates is not None:
            before = self._table.before(batch.candidates)
            batch = replace(batch, members_before=before, bucket_key=self._table.key)
        total = nothing = np.zeros(len(TokenCounts._fields), np.int64)
        for example in examples:
            total = total + np.asarray(example.get("token_counts", nothing))
        counts = TokenCounts(*total.tolist())._replace(
            predicted=int((labels_BT != IGNORED).sum()),
            kept=num_kept,
            competing=int(competing.sum()),
            included=int(included.sum()),
        )
        facts = BatchFacts(self._guidance, counts, *students)
        inputs = batch.inputs() | {"num_kept": num_kept, "facts": facts}
        return inputs | {SHIFTED: inputs["labels"]}


def _columns_for(guidance: GuidanceConfig) -> list[str]:
    """The columns that examples must have for a guidance, in alphabetical order."""
    of_examples = [*needed_columns(guidance), "token_counts", "made_for"]
    needed = of_examples if guidance.needs_teacher else []
    return sorted(["input_ids", "labels", "teacher_loss", *needed])
