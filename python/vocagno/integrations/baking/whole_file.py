"""Bakes a whole token file: its teacher losses, and on request candidates and weights."""

from collections import Counter
from dataclasses import asdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.config.guidance import GuidanceConfig
from vocagno.data.store.format import MAX_REFUSED, REFUSED, RefusalLimit
from vocagno.data.store.shards import StoreError
from vocagno.errors import GuidanceError, require
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.text_batches import LEAST_COMPARED
from vocagno.integrations.baked_files import (
    CANDIDATE_MASS,
    CANDIDATES,
    LOSSES,
    WEIGHTS,
    read_manifest,
    write_buckets,
)
from vocagno.integrations.baking.documents import Baker, check_rule
from vocagno.integrations.baking.parts import MAKING, BakedParts
from vocagno.integrations.pretokenized import without_spans
from vocagno.integrations.token_files import TokenFile
from vocagno.system.files import digest
from vocagno.system.progress import Progress
from vocagno.teacher.score_store import ScoreStore
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError

PART_TOKENS = 1 << 23
"""The tokens of a part: the unit of work of a process, which is lost if the process is killed."""
BATCH_TOKENS = 1 << 18
"""The tokens that are aligned at a time. It bounds the memory, with the longest document."""
_RULE = ("unit", "window", "window_max_loss", "aggregation", "unmapped")
"""The options of guidance on which a baked weight depends."""
_MIN_WEIGHT = {"min_weight": 0.0}
"""A former option, whose value the manifests of older folders have."""


def bake_file(
    file: TokenFile,
    spans: TokenSpans,
    store: ScoreStore,
    folder: Path,
    losses: GuidanceConfig,
    rule: GuidanceConfig | None = None,
    targets: BucketTargets | None = None,
    *,
    max_refused: float = MAX_REFUSED,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Writes the streams of a token file into a folder, for `BakedLosses`.

    Any number of processes may do so at the same time; each returns when all is done.

    Args:
        spans: the student's tokenizer.
        losses: guidance whose `unit` and `aggregation` define the losses, and whose `min_coverage`
            is the share of the tokens that must have one.
        rule: guidance that defines the weights; None: no weights.
        targets: targets of both tokenizers and the store's candidates; None: no candidates.
        max_refused: the share of the documents whose ids may have no text; they have no losses, and
            are named in a report. With 0 the first one is an error.
    Returns: the counts of the manifest.
    Raises: TokenFileError or StoreError for a folder with something else; TokenizerError for ids
        that are not of this tokenizer; ConfigError for a rule that needs the student, and for
        targets that do not fit; StoreError or GuidanceError for too little coverage, or too many
        refused documents.
    """
    if rule is not None:
        check_rule(rule)
    if targets is not None:
        _check_targets(targets, spans, store)
    types: dict[str, Any] = {LOSSES: np.float16} | ({} if rule is None else {WEIGHTS: np.uint8})
    num_parts = -(-file.num_tokens // PART_TOKENS)
    made_from = _made_from(file, spans, store, losses, rule)
    if targets is not None:
        width = store.candidates
        types |= {CANDIDATES: (np.int32, (width,)), CANDIDATE_MASS: (np.float16, (width,))}
        made_from["candidates"] = {"count": width, "bucket_key": targets.table.key}
    parts = BakedParts(folder, file.num_tokens, num_parts, types, made_from)
    # Made with the first part: a process that finds all parts noted needs none.
    baker = cache(lambda: Baker(spans, store, losses, rule, targets))
    total = Counter[str]()

    def make(name: str) -> None:
        number, counts, refused = parts.names.index(name), Counter[str](), list[dict[str, Any]]()
        # A document belongs to the part in which it begins.
        first, stop = (file.first_start((number + n) * PART_TOKENS) for n in (0, 1))
        for at, boundaries in file.batches(first, stop, BATCH_TOKENS):
            texts, tokens, reasons = _documents(file, spans, at, boundaries, strict=not max_refused)
            for row, reason in reasons.items():
                place = f"{file.path.name}, document from token {at + int(boundaries[row])} on"
                refused.append({"place": place, "why": reason})
            streams, batch_counts = baker().bake(texts, tokens, reasons)
            for stream, values in streams.items():
                parts.write(stream, at, values)
            counts.update(batch_counts)
            progress.at(total["tokens"] + counts["tokens"])
        # The hash is of a fixed range of tokens, not of the documents of the part, so that the
        # blocks of all parts are the file without gaps (`blocks_hash` computes it again).
        block = file.ids[number * PART_TOKENS : (number + 1) * PART_TOKENS]
        parts.note(name, hash=digest(block.tobytes()), counts=counts, refused=refused)

    def report(name: str) -> None:
        total.update(parts.counts(name))
        _check_missing(total, file, store, losses.min_coverage)
        progress.at(total["tokens"])

    def check(counts: Counter[str]) -> None:
        _check_missing(counts, file, store, losses.min_coverage)
        _check_scored(counts, losses.min_coverage)
        RefusalLimit(folder, counts["documents"], max_refused).check(counts[REFUSED])

    def fields(tokens_hash: str, counts: Counter[str]) -> dict[str, Any]:
        check(counts)
        about = {
            "name": file.path.name,
            "bytes": file.path.stat().st_size,
            "first_byte": file.first_byte,
            "tokens": file.num_tokens,
            "dtype": file.ids.dtype.name,
            "sample_hash": made_from["token_file"]["sample_hash"],
            "hash": tokens_hash,
            "block_bytes": PART_TOKENS * file.ids.dtype.itemsize,
        }
        manifest = {"token_file": about, "counts": dict(counts)}
        if targets is not None:
            manifest["buckets"] = write_buckets(folder, folder / MAKING, targets.table)
        return manifest

    if not parts.is_finished():
        with Progress("baking", file.num_tokens, unit="tokens", show=show_progress) as progress:
            parts.make(make, report)
        parts.finish(fields)
    counts: dict[str, int] = read_manifest(folder)["counts"]
    # Also where the streams were finished before: the limits may be stricter now.
    check(Counter(counts))
    return counts


def _made_from(
    file: TokenFile,
    spans: TokenSpans,
    store: ScoreStore,
    losses: GuidanceConfig,
    rule: GuidanceConfig | None,
) -> dict[str, Any]:
    """The facts that determine the streams. They hold no path: files may move."""
    # The bytes of the scores, not only what they were made from: scored again on another device,
    # their last bits differ, and a resumed run would mix both.
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
    """Some documents of the file, and the reasons why some have no text, whose spans are empty.

    Raises: TokenizerError that names file and place, for ids of another tokenizer, or if `strict`.
    """
    ids = np.asarray(file.ids[at : at + int(boundaries[-1])])
    try:
        return *spans.texts_and_tokens(ids, boundaries), {}
    except ValueError as error:
        # Ids that no token has: the whole file is another tokenizer's, and no single document at
        # fault.
        if strict or ids.min() < 0 or ids.max() >= spans.vocabulary_size:
            where = f"in the {len(boundaries) - 1:,} documents from token {at:,} on"
            raise TokenizerError(f"{file.path}: {where}: {error}") from error
    # Only now one document after the other, which is slower: usually no document of a batch is
    # refused.
    texts, parts, refused = list[str](), list[TokenizedTexts](), dict[int, str]()
    for row, (first, stop) in enumerate(pairwise(boundaries.tolist())):
        try:
            (text,), tokens = spans.texts_and_tokens(ids[first:stop])
        except ValueError as error:
            text, refused[row] = "", str(error)
            tokens = without_spans(ids[first:stop], None)
        texts.append(text)
        parts.append(tokens)
    return texts, TokenizedTexts.concatenate(parts), refused


def _check_missing(total: Counter[str], file: TokenFile, store: ScoreStore, limit: float) -> None:
    """Checks the sums over the parts so far, so that a useless run ends early.

    Raises: StoreError as soon as too many of the file's tokens have no scores.
    """
    # Of all tokens of the file, not of those so far: one bad document at the start stops nothing.
    if 1 - total["missing_tokens"] / file.num_tokens < limit:
        raise StoreError(
            f"{store.folder}: {total['missing_documents']:,} of the first {total['documents']:,} "
            f"documents of {file.path} have no scores (--min_coverage: {limit:.2%}), "
            f"{total[REFUSED]:,} of them because their ids have no text: edited or added since the "
            "corpus was scored, another corpus, or ids of another tokenizer; run `vocagno score` "
            "on it"
        )


def _check_scored(counts: Counter[str], limit: float) -> None:
    """Checks that enough tokens have a teacher loss, and candidates. Raises: GuidanceError."""
    # Under buckets of another teacher few candidates are in any bucket, and those that are mean
    # nothing.
    covered = counts["with_candidates"]
    if "with_candidates" in counts and covered < LEAST_COMPARED * counts["losses"]:
        raise GuidanceError(
            f"only {covered:,} of {counts['losses']:,} tokens with a teacher loss have candidates: "
            "are these the buckets of the scores' teacher?"
        )
    share = counts["scored"] / max(1, counts["scorable"])
    if counts["scorable"] and share < limit:
        reasons = {name: counts[name] for name in ("truncated", "hole", "unscored")}
        worst = max(reasons, key=lambda name: reasons[name])
        raise GuidanceError(
            f"only {share:.2%} of the tokens have a teacher loss (--min_coverage: {limit:.2%}). "
            f"Main cause: {worst} ({reasons[worst]:,} tokens). Check the spans of both tokenizers, "
            "or lower the limit."
        )


def _check_targets(targets: BucketTargets, spans: TokenSpans, store: ScoreStore) -> None:
    """Checks that targets fit tokenizer and scores. Raises: ConfigError if they do not."""
    teacher = store.manifest.made_from.get("tokenizer")
    require(
        teacher is not None,
        f"{store.folder}: does not say its teacher's tokenizer, which candidates need; score again",
    )
    check_targets(GuidanceConfig(method="distill"), targets, spans.fingerprint, teacher)
    require(
        targets.table.places == [store.candidates],
        f"targets: of {targets.table.places} candidates, the scores have {store.candidates} of "
        "each token",
    )
