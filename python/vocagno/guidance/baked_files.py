"""Bakes the teacher's losses of a token file: one float16 a token, and one uint8 for a weight."""

from collections import Counter
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.config.guidance import GuidanceConfig
from vocagno.data.baked import LOSSES, WEIGHTS, read_manifest
from vocagno.data.baked_parts import BakedParts
from vocagno.data.store.refusals import MAX_REFUSED, REFUSED, RefusalLimit
from vocagno.data.store.shards import StoreError
from vocagno.data.token_files import TokenFile
from vocagno.errors import GuidanceError
from vocagno.guidance.baking import Baker, check_rule
from vocagno.system.files import digest
from vocagno.system.progress import Progress
from vocagno.teacher.scores import ScoreStore
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError

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
