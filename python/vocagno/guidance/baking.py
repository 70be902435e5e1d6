"""The teacher's loss of each token of documents that are kept as ids, and a weight where the rule
needs no student.

n: tokens of some documents, one after the other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import Row
from vocagno.data.store.refusals import REFUSED
from vocagno.errors import require
from vocagno.guidance.collator import line_numbers
from vocagno.guidance.mappings import ComparedTokens
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import Pieces, ScoresInOrder
from vocagno.guidance.selective import token_weights
from vocagno.guidance.units import Units
from vocagno.teacher.matched_scores import TextIndex, find_scores
from vocagno.teacher.scores import DocumentScores, ScoreStore
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

_FULL = 255
"""A weight of 1."""


@dataclass(frozen=True, slots=True)
class Baked:
    """The streams of n tokens."""

    losses: NDArray[np.float16]
    """(n,) nats; NaN where there is none."""
    weights: NDArray[np.uint8] | None
    """(n,) 0 to 255 for 0 to 1; None if no rule was given."""
    counts: Counter[str]
    """Documents and tokens, by what became of them."""


def check_rule(rule: GuidanceConfig) -> None:
    """Refuses rules whose weights need the student's losses.

    Raises: ConfigError naming the option.
    """
    require(
        rule.method == "vocagno",
        f"guidance.method: {rule.method}: weights can be baked for vocagno only",
    )
    for name in ("top_fraction", "max_threshold"):
        require(
            getattr(rule, name) is None,
            f"guidance.{name}: which tokens it keeps depends on the student's losses, so weights "
            "cannot be baked; omit it, or omit --weights and compare the losses in your loss",
        )


class Baker:
    """Aligns documents with their scores, as training does."""

    def __init__(
        self,
        spans: TokenSpans,
        store: ScoreStore,
        losses: GuidanceConfig,
        rule: GuidanceConfig | None = None,
    ) -> None:
        """Args:
            spans: the student's tokenizer.
            losses: its `unit` and `aggregation` say what the losses are.
            rule: of the weights.
        Raises: as `check_rule`.
        """
        if rule is not None:
            check_rule(rule)
            rule = replace(rule, scope="sequence")
            if (rule.unit, rule.aggregation) == (losses.unit, losses.aggregation):
                losses = rule  # which gives the same losses
        self._store = store
        self._index = TextIndex.of(store)
        self._losses = losses
        self._rule = rule
        self._line_ends = spans.line_ends() if rule is not None else None

    def bake(
        self, texts: list[str], tokens: TokenizedTexts, refused: Mapping[int, str] | None = None
    ) -> Baked:
        """The streams of some whole documents.

        Args:
            texts, tokens: as `TokenSpans.texts_and_tokens` gives them; every document has a token.
            refused: why documents have no text, by their number. They get no losses.
        Raises: StoreError for damaged scores.
        """
        found = find_scores(self._store, self._index, texts)
        for number, why in (refused or {}).items():
            found[number] = DocumentScores.none(why)
        scores = ScoresInOrder(found)
        pieces = Pieces([_as_row(tokens)], scores)
        method = method_of(self._losses)
        meeting = method.meeting(pieces)
        compared = method.compared(pieces, meeting, None)
        with np.errstate(over="ignore"):
            losses = compared.teacher_loss[:-1].astype(np.float16)
        losses[~np.isfinite(losses)] = np.nan
        weights = None
        if self._rule is not None:
            if self._rule is not self._losses:
                compared = method_of(self._rule).compared(pieces, meeting, None)
            weights = self._weights(tokens, compared)
        counts = self._counts(pieces, meeting, losses)
        if refused:
            counts[REFUSED] = len(refused)
        return Baked(losses, weights, counts)

    def _weights(self, tokens: TokenizedTexts, compared: ComparedTokens) -> NDArray[np.uint8]:
        """The rule's weights. A loss of zero stands for the student's, which has no effect."""
        assert self._rule is not None
        assert self._line_ends is not None
        n, by_group = len(tokens.ids), compared.by_group or compared
        piece = np.repeat(np.arange(len(tokens)), np.diff(tokens.cu_seqlens))
        lines = line_numbers(tokens.ids[None].astype(np.int64), piece[None], self._line_ends)
        assert by_group.groups is not None  # all such rules have groups
        units = Units(
            groups_BT=torch.from_numpy(by_group.groups[None, :n]),
            lines_BT=torch.from_numpy(lines),
            bytes_BT=torch.from_numpy(tokens.spans[None, :, 1] - tokens.spans[None, :, 0]),
            group_loss_BT=torch.from_numpy(by_group.teacher_loss[None, :n]),
        )
        weights_BT = token_weights(
            torch.zeros(1, n),
            torch.from_numpy(compared.teacher_loss[None, :n]),
            torch.zeros(1, n, dtype=torch.int64),
            self._rule,
            units=units,
        )
        return (weights_BT[0] * _FULL).round().to(torch.uint8).numpy()

    def _counts(
        self, pieces: Pieces, meeting: NDArray[np.int32], losses: NDArray[np.float16]
    ) -> Counter[str]:
        reasons = unmapped_reasons(
            pieces.student,
            pieces.teacher,
            meeting,
            losses=pieces.teacher_nll,
            **pieces.cu_seqlens,
        )[:-1]
        is_known = ~np.repeat(pieces.is_missing, pieces.num_tokens)[:-1]
        is_text = (pieces.student[:, 0] < pieces.student[:, 1])[:-1] & is_known
        scorable = is_text & ~(pieces.first_only(meeting)[:-1] & (reasons == Reason.UNSCORED))
        why = np.bincount(reasons[is_text], minlength=len(Reason)).tolist()
        return Counter(
            documents=len(pieces.is_missing),
            missing_documents=int(pieces.is_missing.sum()),
            tokens=len(losses),
            missing_tokens=int((~is_known).sum()),
            losses=int(np.isfinite(losses).sum()),
            with_text=int(is_text.sum()),
            scorable=int(scorable.sum()),
            scored=int((scorable & (reasons == Reason.MAPPED)).sum()),
            truncated=why[Reason.TRUNCATED],
            hole=why[Reason.HOLE],
            unscored=why[Reason.UNSCORED],
        )


def _as_row(tokens: TokenizedTexts) -> Row:
    """All documents as one row. A token without text ends it, so that no text counts as cut."""
    sizes = np.diff(tokens.cu_seqlens).astype(np.int32)
    sizes[-1] += 1
    return Row(
        np.append(tokens.ids, np.int32(0)),
        np.concatenate([tokens.spans, np.zeros((1, 2), np.int32)]),
        np.arange(len(sizes), dtype=np.int64),
        sizes,
        np.zeros(len(sizes), np.int32),
    )
