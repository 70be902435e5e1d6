"""Bakes streams parallel to a token file: a teacher loss, candidates and a weight for each token.

A weight can be baked if the rule needs no student. Any number of processes of one machine share the
work, part by part. All parts are written into one file for each stream, at their places, and noted
when they are on disk. A killed process loses the parts that it was working on. When all parts are
noted, the streams get their names and the manifest is written.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.alignment.mapping import Reason, unmapped_reasons
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import Row
from vocagno.data.store.format import MAX_REFUSED, REFUSED, RefusalLimit, write_entries
from vocagno.data.store.shards import StoreError
from vocagno.data.store.state import Claim, first_difference
from vocagno.errors import GuidanceError, require
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.bucket_targets import BucketTargets, check_targets
from vocagno.guidance.collator import line_numbers
from vocagno.guidance.comparison import ComparedTokens, DocumentPairs
from vocagno.guidance.line_rule import weights_of_lines
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import ScoresInOrder, read_pieces, stored_targets
from vocagno.guidance.text_batches import LEAST_COMPARED
from vocagno.integrations.baked_files import (
    CANDIDATE_MASS,
    CANDIDATES,
    LOSSES,
    MANIFEST,
    WEIGHTS,
    read_manifest,
    stream_header,
    write_buckets,
    write_manifest,
)
from vocagno.integrations.pretokenized import without_spans
from vocagno.integrations.token_files import TokenFile, TokenFileError, sample_hash
from vocagno.system.files import atomic_file, digest, flush_folder, write_json
from vocagno.system.progress import Progress
from vocagno.system.shared_work import exclusively, share
from vocagno.teacher.score_store import DocumentScores, ScoresOfTexts, ScoreStore
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
_FULL = 255
"""The byte that stands for a weight of 1."""
_MAKING = ".making"
"""The folder of unfinished streams and of notes."""


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
        values = {
            "teacher_loss": compared.teacher_loss[:n],
            "line_bytes": tokens.spans[:, 1] - tokens.spans[:, 0],
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


class BakedParts:
    """The parts of the streams of one token file."""

    def __init__(
        self,
        folder: Path,
        num_tokens: int,
        num_parts: int,
        streams: Mapping[str, Any],
        made_from: dict[str, Any],
    ) -> None:
        """Args:
            streams: the type of each stream by its file name; it has a shape if each token has
                several values.
            made_from: the facts that determine the streams, for JSON.
        Raises: TokenFileError or StoreError if the folder holds, or is to hold, something else.
        """
        self.folder = folder
        self.made_from = made_from
        self.names: list[str] = [f"part-{number:06d}" for number in range(num_parts)]
        self._making = folder / _MAKING
        self._types = {name: np.dtype(dtype) for name, dtype in streams.items()}
        if self.is_finished():
            # A finished folder is left as it is: without `.making` there is nothing to resume.
            before = read_manifest(folder)["made_from"]
            if before != made_from:
                raise TokenFileError(
                    f"{folder}: holds losses of another {first_difference(before, made_from)}; "
                    "name another folder, or delete this one"
                )
            return
        with exclusively("streams", folder):
            Claim("losses", "", num_parts, made_from).save(folder)
            for name, dtype in self._types.items():
                # One file of the full size for each stream, into which all processes write at their
                # places: no part is copied again at the end.
                if not self._place(name).is_file():
                    header = stream_header(dtype, num_tokens)
                    with atomic_file(self._making / name) as file:
                        file.write(header)
                        file.truncate(len(header) + num_tokens * dtype.itemsize)

    def is_finished(self) -> bool:
        """True if the manifest is written, by this process or another."""
        return (self.folder / MANIFEST).is_file()

    def make(self, make: Callable[[str], None], report: Callable[[str], object]) -> None:
        """Makes parts until all are noted, by this process or others (`system.shared_work.share`).

        Args:
            make: makes and notes the part of a name.
            report: is called with the name of each part that is noted.
        """
        share(
            self.names,
            self.folder,
            done=lambda name: self.is_finished() or self._note_of(name).is_file(),
            make=make,
            report=report,
            partial=_MAKING,
        )

    def write(self, stream: str, first: int, values: NDArray[Any]) -> None:
        """Writes values of a stream from token `first` on."""
        dtype = self._types[stream]
        with self._place(stream).open("r+b") as file:
            file.seek(len(stream_header(dtype, 0)) + first * dtype.itemsize)
            file.write(values.astype(dtype.base, copy=False).tobytes())

    def note(self, name: str, **fields: Any) -> None:
        """Notes a part as written, after it has reached the disk.

        Args: fields: the `hash` of its tokens, its `counts`, and `refused`, lines of the report.
        """
        for stream in self._types:
            with self._place(stream).open("r+b") as file:
                os.fsync(file.fileno())
        write_json(self._note_of(name), fields)

    def counts(self, name: str) -> Counter[str]:
        """The counts of a noted part; empty if another process has finished all parts."""
        try:
            return Counter(self._note(name)["counts"])
        except FileNotFoundError:
            return Counter()

    def finish(self, fields: Callable[[str, Counter[str]], dict[str, Any]]) -> None:
        """Gives the streams their names and writes the manifest, unless another process has.

        Args: fields: makes the manifest from the hash of all tokens and the sums of all counts.
        """
        with exclusively("streams", self.folder):
            if not self.is_finished():
                # In the order of the parts, whoever made them: hash and report do not depend on the
                # processes.
                notes = [self._note(name) for name in self.names]
                counts = Counter[str]()
                for note in notes:
                    counts.update(note["counts"])
                write_entries(self.folder, [*chain.from_iterable(n["refused"] for n in notes)])
                manifest = fields(digest(*(note["hash"] for note in notes)), counts)
                for name in self._types:
                    if (self._making / name).is_file():
                        (self._making / name).replace(self.folder / name)
                flush_folder(self.folder)  # the names first: a manifest promises the streams
                samples = {name: sample_hash(self.folder / name) for name in self._types}
                manifest |= {"made_from": self.made_from, "files": [*samples], "samples": samples}
                write_manifest(self.folder, manifest)
        shutil.rmtree(self._making, ignore_errors=True)  # another process may be removing it

    def _place(self, name: str) -> Path:
        """The path of a stream, which has its name already if a process was killed in `finish`."""
        final = self.folder / name
        return final if final.is_file() else self._making / name

    def _note_of(self, name: str) -> Path:
        return self._making / f"{name}.json"

    def _note(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self._note_of(name).read_bytes())
        return fields


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
            manifest["buckets"] = write_buckets(folder, folder / _MAKING, targets.table)
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
