"""The teacher's loss of each token of documents that are kept as ids, and a weight where the rule
needs no student.

n: tokens of some documents, one after the other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import Row
from vocagno.data.store.format import MAX_REFUSED, REFUSED, RefusalLimit
from vocagno.data.store.shards import StoreError
from vocagno.errors import GuidanceError, require
from vocagno.guidance.batches import line_numbers
from vocagno.guidance.mappings import ComparedTokens, Pieces
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import ScoresInOrder, read_pieces
from vocagno.guidance.rules import Units, known_weights
from vocagno.integrations.baked_files import LOSSES, WEIGHTS, read_manifest
from vocagno.integrations.baked_parts import BakedParts
from vocagno.integrations.token_files import TokenFile
from vocagno.system.files import digest
from vocagno.system.progress import Progress
from vocagno.teacher.scores import DocumentScores, ScoresOfTexts, ScoreStore
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError

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
        rule: of the weights, one that `check_rule` takes.
        """
        if rule is not None:
            rule = replace(rule, scope="sequence")
            if (rule.unit, rule.aggregation) == (losses.unit, losses.aggregation):
                losses = rule  # which gives the same losses
        self._scores = ScoresOfTexts(store, check=False)
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
        found = self._scores.find(texts)
        for number, why in (refused or {}).items():
            found[number] = DocumentScores.none(why)
        scores = ScoresInOrder(found)
        pieces, *_ = read_pieces([_as_row(tokens)], scores)
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
        """The rule's weights."""
        assert self._rule is not None
        assert self._line_ends is not None
        n, by_group = len(tokens.ids), compared.by_group or compared
        piece = np.repeat(np.arange(len(tokens)), np.diff(tokens.cu_seqlens))
        lines = line_numbers(tokens.ids[None].astype(np.int64), piece[None], self._line_ends)
        assert by_group.groups is not None  # all such rules have groups
        units = Units(
            lines_BT=torch.from_numpy(lines),
            bytes_BT=torch.from_numpy(tokens.spans[None, :, 1] - tokens.spans[None, :, 0]),
            groups_BT=torch.from_numpy(by_group.groups[None, :n]),
            group_loss_BT=torch.from_numpy(by_group.teacher_loss[None, :n]),
        )
        losses_BT = torch.from_numpy(compared.teacher_loss[None, :n])
        labels_BT = torch.zeros(1, n, dtype=torch.int64)
        weights_BT = known_weights(losses_BT, labels_BT, units, self._rule)
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


PART_TOKENS = 1 << 23
"""Tokens that processes share the work by, and that a killed process loses."""
BATCH_TOKENS = 1 << 18
"""Tokens that are aligned at a time: what bounds the memory, together with the longest document."""
_RULE = ("unit", "window", "window_max_loss", "aggregation", "unmapped")
_MIN_WEIGHT = {"min_weight": 0.0}
"""Was an option, whose value the manifests of older folders have."""


def bake_file(
    file: TokenFile,
    spans: TokenSpans,
    store: ScoreStore,
    folder: Path,
    losses: GuidanceConfig,
    rule: GuidanceConfig | None = None,
    *,
    max_refused: float = MAX_REFUSED,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Writes the streams of a token file into a folder, for `BakedLosses`. Any number of processes
    may do so at the same time; each returns when all is done.

    Args:
        spans: the student's tokenizer.
        losses: its `unit` and `aggregation` say what the losses are, and its `min_coverage` how
            many of the tokens need one.
        rule: of the weights; None: no weights.
        max_refused: share of the documents whose ids may have no text; they have no losses, and
            are named in a report. With 0 the first one is an error.
    Returns: the counts of the manifest.
    Raises: TokenFileError or StoreError for a folder with something else; TokenizerError for ids
        that are not of this tokenizer; ConfigError as `check_rule`; StoreError or GuidanceError for
        less coverage than `losses.min_coverage`, and for more refused documents.
    """
    if rule is not None:
        check_rule(rule)
    streams = {LOSSES: np.float16} | ({} if rule is None else {WEIGHTS: np.uint8})
    num_parts = -(-file.num_tokens // PART_TOKENS)
    given = _made_from(file, spans, store, losses, rule)
    parts = BakedParts(folder, file.num_tokens, num_parts, streams, given)
    baker = cache(lambda: Baker(spans, store, losses, rule))
    total: Counter[str] = Counter()

    def make(name: str) -> None:
        number, counts, refused = parts.names.index(name), Counter[str](), list[dict[str, Any]]()
        first, stop = (file.first_start((number + n) * PART_TOKENS) for n in (0, 1))
        for at, boundaries in file.batches(first, stop, BATCH_TOKENS):
            texts, tokens, why = _documents(file, spans, at, boundaries, strict=not max_refused)
            for row, reason in why.items():
                place = f"{file.path.name}, document from token {at + int(boundaries[row])} on"
                refused.append({"place": place, "why": reason})
            found = baker().bake(texts, tokens, why)
            parts.write(LOSSES, at, found.losses)
            if found.weights is not None:
                parts.write(WEIGHTS, at, found.weights)
            counts.update(found.counts)
            progress.at(total["tokens"] + counts["tokens"])
        block = file.ids[number * PART_TOKENS : (number + 1) * PART_TOKENS]
        parts.note(name, digest(block.tobytes()), counts, refused)

    def report(name: str) -> None:
        total.update(parts.counts(name))
        _check_missing(total, file, store, losses.min_coverage)
        progress.at(total["tokens"])

    def fields(tokens_hash: str, counts: Counter[str]) -> dict[str, Any]:
        _check_scored(counts, losses.min_coverage)
        RefusalLimit(folder, counts["documents"], max_refused).check(counts[REFUSED])
        about = {
            "name": file.path.name,
            "bytes": file.path.stat().st_size,
            "first_byte": file.first_byte,
            "tokens": file.num_tokens,
            "dtype": file.ids.dtype.name,
            "sample_hash": given["token_file"]["sample_hash"],
            "hash": tokens_hash,
            "block_bytes": PART_TOKENS * file.ids.dtype.itemsize,
        }
        return {"token_file": about, "counts": dict(counts)}

    if not parts.is_finished():
        with Progress("baking", file.num_tokens, unit="tokens", show=show_progress) as progress:
            parts.make(make, report)
        parts.finish(fields)
    counts: dict[str, int] = read_manifest(folder)["counts"]
    return counts


def _made_from(
    file: TokenFile,
    spans: TokenSpans,
    store: ScoreStore,
    losses: GuidanceConfig,
    rule: GuidanceConfig | None,
) -> dict[str, Any]:
    """All that determines the streams, and no place of it."""
    shards = (entry.file_hash for entry in store.manifest.shards)
    return {
        "token_file": file.identity(),
        "tokenizer": spans.fingerprint,
        "scores": {"made_from": store.manifest.made_from, "hash": digest(*shards)},
        "losses": {"unit": losses.unit, "aggregation": losses.aggregation},
        "rule": None if rule is None else _MIN_WEIGHT | {n: asdict(rule)[n] for n in _RULE},
        "part_tokens": PART_TOKENS,
        "batch_tokens": BATCH_TOKENS,
    }


def _documents(
    file: TokenFile, spans: TokenSpans, at: int, boundaries: NDArray[np.int64], *, strict: bool
) -> tuple[list[str], TokenizedTexts, dict[int, str]]:
    """Some documents of the file, and why some have no text: their spans are empty.

    Raises: TokenizerError that names file and place, for ids of another tokenizer, or if `strict`.
    """
    ids = np.asarray(file.ids[at : at + int(boundaries[-1])])
    try:
        return *spans.texts_and_tokens(ids, boundaries), {}
    except ValueError as error:
        if strict or ids.min() < 0 or ids.max() >= spans.vocabulary_size:
            where = f"in the {len(boundaries) - 1:,} documents from token {at:,} on"
            raise TokenizerError(f"{file.path}: {where}: {error}") from error
    texts, parts, refused = list[str](), list[TokenizedTexts](), dict[int, str]()
    for row, (first, stop) in enumerate(pairwise(boundaries.tolist())):
        try:
            (text,), tokens = spans.texts_and_tokens(ids[first:stop])
        except ValueError as error:
            text, refused[row] = "", str(error)
            tokens = _without_text(ids[first:stop])
        texts.append(text)
        parts.append(tokens)
    return texts, TokenizedTexts.concatenate(parts), refused


def _without_text(ids: NDArray[Any]) -> TokenizedTexts:
    """A document of ids that cover nothing."""
    spans, ends = np.zeros((len(ids), 2), np.int32), np.array([0, len(ids)], np.int64)
    return TokenizedTexts(ids.astype(np.int32), spans, ends, np.zeros(1, np.bool_))


def _check_missing(total: Counter[str], file: TokenFile, store: ScoreStore, limit: float) -> None:
    """Raises: StoreError as soon as too many of the file's tokens have no scores."""
    if 1 - total["missing_tokens"] / file.num_tokens < limit:
        raise StoreError(
            f"{store.folder}: {total['missing_documents']:,} of the first {total['documents']:,} "
            f"documents of {file.path} have no scores (--min_coverage: {limit:.2%}), "
            f"{total[REFUSED]:,} of them because their ids have no text: edited or added since the "
            "corpus was scored, another corpus, or ids of another tokenizer; run `vocagno score` "
            "on it"
        )


def _check_scored(counts: Counter[str], limit: float) -> None:
    """Raises: GuidanceError if too few of the tokens with text have a teacher loss."""
    share = counts["scored"] / max(1, counts["scorable"])
    if counts["scorable"] and share < limit:
        reasons = {name: counts[name] for name in ("truncated", "hole", "unscored")}
        worst = max(reasons, key=lambda name: reasons[name])
        raise GuidanceError(
            f"only {share:.2%} of the tokens have a teacher loss (--min_coverage: {limit:.2%}). "
            f"Main cause: {worst} ({reasons[worst]:,} tokens). Check the spans of both tokenizers, "
            "or lower the limit."
        )
