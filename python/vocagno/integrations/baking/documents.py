"""Computes the baked streams of documents: a teacher loss, candidates and a weight for each token.

The losses and weights are those of training, by the functions that training uses. A weight can be
baked if its rule needs nothing of the student (`check_rule`).
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import Row, bytes_of_tokens
from vocagno.data.store.format import REFUSED
from vocagno.errors import require
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import line_numbers
from vocagno.guidance.comparison import ComparedTokens, DocumentPairs
from vocagno.guidance.line_rule import weights_of_lines
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import ScoresInOrder, read_pieces, stored_targets
from vocagno.integrations.baked_files import CANDIDATE_MASS, CANDIDATES, LOSSES, WEIGHTS
from vocagno.teacher.score_store import DocumentScores, ScoresOfTexts, ScoreStore
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans

_FULL = 255
"""The byte that stands for a weight of 1."""


def check_rule(rule: GuidanceConfig) -> None:
    """Checks that the weights of a rule do not need the student's losses.

    Raises: ConfigError, which names the option.
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
    """Aligns documents with their scores, by the functions that training uses."""

    def __init__(
        self,
        spans: TokenSpans,
        store: ScoreStore,
        losses: GuidanceConfig,
        rule: GuidanceConfig | None = None,
        targets: BucketTargets | None = None,
    ) -> None:
        """Args:
        spans: the student's tokenizer.
        losses: guidance whose `unit` and `aggregation` define the losses.
        rule: guidance that defines the weights, one that `check_rule` accepts.
        targets: targets of both tokenizers and the store's candidates.
        """
        if rule is not None:
            # The scope only says over which tokens a quota is taken, and a baked rule has no quota.
            rule = replace(rule, scope="sequence")
            if (rule.unit, rule.aggregation) == (losses.unit, losses.aggregation):
                losses = rule  # the same losses: one alignment serves both
        if warning := store.warning_of_pieces():
            warnings.warn(warning, stacklevel=2)
        self._scores = ScoresOfTexts(store, check=False, candidates=targets is not None)
        self._targets = targets
        self._losses = losses
        self._rule = rule
        self._line_ends = spans.line_ends() if rule is not None else None

    def bake(
        self, texts: list[str], tokens: TokenizedTexts, refused: Mapping[int, str] | None = None
    ) -> tuple[dict[str, NDArray[Any]], Counter[str]]:
        """Computes the streams of the n tokens of some whole documents.

        Args:
            texts, tokens: the result of `TokenSpans.texts_and_tokens`; every document has a token.
            refused: the reasons why documents have no text, by their number. They get no losses.
        Returns: the values of each stream of `BakedLosses`, by its file name; the counts of
            documents and tokens, by what became of them.
        Raises: StoreError for damaged scores.
        """
        document_scores = self._scores.find(texts)
        for number, reason in (refused or {}).items():
            # The text of such a document is "", which a store may well have scores of.
            document_scores[number] = DocumentScores.none(reason)
        scores = ScoresInOrder(document_scores)
        rows = [_as_row(tokens)]
        pieces = read_pieces(rows, scores)
        method = method_of(self._losses)
        overlapping_tokens = method.overlapping_tokens(pieces)
        # The last place belongs to the token that `_as_row` appends, hence `[:-1]` from here on.
        compared = method.compare(pieces, overlapping_tokens, None)
        with np.errstate(over="ignore"):  # a loss beyond float16 becomes infinite, below NaN
            losses = compared.teacher_loss[:-1].astype(np.float16)
        losses[~np.isfinite(losses)] = np.nan
        streams: dict[str, NDArray[Any]] = {LOSSES: losses}
        counts = self._counts(pieces, overlapping_tokens, losses)
        if refused:
            counts[REFUSED] = len(refused)
        if self._rule is not None:
            if self._rule is not self._losses:
                compared = method_of(self._rule).compare(pieces, overlapping_tokens, None)
            streams[WEIGHTS] = self._weights(tokens, compared)
        if self._targets is not None:
            over = stored_targets(rows, pieces, scores, self._targets, needs_entropy=False)
            streams[CANDIDATES] = over.bucket_nS[:-1].numpy()
            streams[CANDIDATE_MASS] = over.mass_nS[:-1].numpy().astype(np.float16)
            counts["with_candidates"] = int((streams[CANDIDATES] >= 0).any(1).sum())
        return streams, counts

    def _weights(self, tokens: TokenizedTexts, compared: ComparedTokens) -> NDArray[np.uint8]:
        """(n,) the weights of the rule, 0 to 255; all documents are one row of a batch."""
        assert self._rule is not None
        assert self._line_ends is not None
        n, by_group = len(tokens.ids), compared.by_group or compared
        piece = np.repeat(np.arange(len(tokens)), np.diff(tokens.cu_seqlens))
        lines = line_numbers(tokens.ids[None].astype(np.int64), piece[None], self._line_ends)
        # A rule by lines judges groups also where losses are compared by token: `by_group` has them
        # then.
        assert by_group.groups is not None  # all such rules have groups
        values: dict[str, NDArray[Any]] = {
            "teacher_loss": compared.teacher_loss[:n],
            "line_bytes": bytes_of_tokens(tokens.spans, np.diff(tokens.cu_seqlens)),
            "line_groups": by_group.groups[:n],
            "group_loss": by_group.teacher_loss[:n],
        }
        batch = GuidedBatch.of_tokens(
            values,
            torch.arange(n)[None],
            labels=torch.zeros(1, n, dtype=torch.int64),
            line=torch.from_numpy(lines),
        )
        weights_BT = weights_of_lines(batch, self._rule)
        return (weights_BT[0] * _FULL).round().to(torch.uint8).numpy()

    def _counts(
        self,
        pieces: DocumentPairs,
        overlapping_tokens: NDArray[np.int32],
        losses: NDArray[np.float16],
    ) -> Counter[str]:
        """The counts of documents and tokens, by what became of them."""
        reasons = unmapped_reasons(
            pieces.student_spans,
            pieces.teacher_spans,
            overlapping_tokens,
            losses=pieces.teacher_nll,
            **pieces.cu_seqlens,
        )[:-1]
        has_scores = ~np.repeat(pieces.is_missing, pieces.num_tokens)[:-1]
        is_text = (pieces.student_spans[:, 0] < pieces.student_spans[:, 1])[:-1] & has_scores
        # The teacher predicts the first token of a document from nothing. What shares text with no
        # other token cannot have a loss, and does not count against the coverage.
        scorable = is_text & ~(
            pieces.first_only(overlapping_tokens)[:-1] & (reasons == Reason.UNSCORED)
        )
        by_reason = np.bincount(reasons[is_text], minlength=len(Reason)).tolist()
        return Counter(
            documents=len(pieces.is_missing),
            missing_documents=int(pieces.is_missing.sum()),
            tokens=len(losses),
            missing_tokens=int((~has_scores).sum()),
            losses=int(np.isfinite(losses).sum()),
            with_text=int(is_text.sum()),
            scorable=int(scorable.sum()),
            scored=int((scorable & (reasons == Reason.MAPPED)).sum()),
            truncated=by_reason[Reason.TRUNCATED],
            hole=by_reason[Reason.HOLE],
            unscored=by_reason[Reason.UNSCORED],
        )


def _as_row(tokens: TokenizedTexts) -> Row:
    """The row of all documents. A token without text ends it, so that no text counts as cut."""
    sizes = np.diff(tokens.cu_seqlens).astype(np.int32)
    sizes[-1] += 1
    return Row(
        np.append(tokens.ids, np.int32(0)),
        np.concatenate([tokens.spans, np.zeros((1, 2), np.int32)]),
        np.arange(len(sizes), dtype=np.int64),
        sizes,
        np.zeros(len(sizes), np.int32),
    )
