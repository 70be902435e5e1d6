"""Scoring: a tokenizer and a scorer give each token of a text its loss, and a whole corpus is
scored once into a store.

M: teacher tokens of a document, K: candidates of a token.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.data.corpus import Corpus, CorpusShard, ShardTexts
from vocagno.data.store.building import Advance, MakeResult, Part, make_store
from vocagno.data.store.shards import StoreError
from vocagno.errors import InputError
from vocagno.system.collectives import Together
from vocagno.teacher.candidates import NONE, Candidates, ScoredWindow
from vocagno.teacher.score_store import SCORES, DocumentScores, ScoreStore, write_scores
from vocagno.teacher.scorer import Scorer
from vocagno.teacher.windows import TextReader, Window

_MIN_QUARTER_TOKENS = 8_192
"""Number of tokens in a quarter of the context from which on its mean loss is compared."""
_LATE_LOSS_RATIO = 1.05
"""A mean loss of the last quarter that exceeds the second's by this factor is not chance."""


class ScorerError(InputError):
    """A scorer gave another number of losses than tokens, or impossible candidates, or none."""


class Teacher:
    """A tokenizer and a scorer, which together give each token of a text its loss."""

    def __init__(
        self,
        scorer: Scorer,
        reader: TextReader,
        check: Callable[[], None] | None = None,
        candidates: int = 0,
    ) -> None:
        """Args:
        check: called after each call of `score`; raises if the server now has another model.
        candidates: K of the scorer.
        """
        self.scorer = scorer
        self.candidates = candidates
        self.is_sampled: bool = getattr(scorer, "is_sampled", False)
        self.gives_entropy: bool = getattr(scorer, "gives_entropy", False)
        self.reader = reader
        self._check = check
        self._has_warned = False
        self._quarters: NDArray[np.float64] = np.zeros((2, 2))
        """Rows: the second and the last quarter of full contexts. Columns: the sum and the number
        of their losses."""

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Computes losses and spans of each text, read independently of the others.

        A text whose tokens cannot be placed in it has no scores; `DocumentScores.missing` is the
        reason. `advance` is called with the share and the number of tokens that are done.

        Raises: ScorerError if the scorer gives another number of losses than tokens, and if it
            gives no candidates, or impossible ones, where they are requested.
        """
        windowed = self.reader.read(texts)
        tokens = windowed.tokens
        nll: NDArray[np.float32] = np.full(len(tokens.ids), np.nan, np.float32)
        candidates = None
        if self.candidates:
            candidates = replace(
                Candidates.none(
                    len(nll),
                    self.candidates,
                    is_sampled=self.is_sampled,
                    has_entropy=self.gives_entropy,
                ),
                tokens=tokens.ids.astype(np.int32),
            )
        num_scored = 0
        for number, result in self.scorer.score(windowed.windows):
            rows = windowed.rows[number]
            losses = result.nll if isinstance(result, ScoredWindow) else result
            count, shape = rows.stop - rows.start, np.shape(losses)
            # NumPy would spread a single loss over all of these tokens.
            if shape != (count,):
                name = type(self.scorer).__name__
                raise ScorerError(f"{name}: gives losses of shape {shape} for {count} tokens")
            nll[rows] = losses
            if candidates is not None:
                window_scores = self._check_candidates(result)
                candidates.ids[rows], candidates.codes[rows] = (
                    window_scores.ids,
                    window_scores.codes,
                )
                if candidates.entropy is not None:
                    candidates.entropy[rows] = np.asarray(window_scores.entropy)
            self._add_to_quarters(windowed.windows[number], losses)
            num_scored += len(losses)
            advance(num_scored / len(tokens.ids), num_scored)
        # The check follows the losses: a server that changed its model while they were computed
        # must not leave them in a store.
        if self._check is not None:
            self._check()
        self._warn_if_implausible(nll[np.isfinite(nll)])
        return [
            DocumentScores.none(windowed.refused[number])
            if number in windowed.refused
            else _document_scores(
                tokens.spans[rows],
                nll[rows],
                windowed.is_asked[rows],
                candidates and candidates[rows],
            )
            for number, rows in enumerate(map(tokens.text, range(len(tokens))))
        ]

    def _check_candidates(self, result: NDArray[np.float32] | ScoredWindow) -> ScoredWindow:
        """Returns the scorer's result for a window if its candidates are possible ones.
        Raises: ScorerError, which names the scorer, otherwise."""
        name = type(self.scorer).__name__
        if not isinstance(result, ScoredWindow):
            raise ScorerError(f"{name}: gives losses without candidates")
        nll, ids, codes, entropy = result
        shape = len(nll), self.candidates
        if not ids.shape == codes.shape == shape:
            raise ScorerError(
                f"{name}: gives candidates of shape {ids.shape} and {codes.shape}, expected "
                f"{shape} (teacher.candidates)"
            )
        num_ids = self.reader.spans.vocabulary_size
        if ((ids < -1) | (ids >= num_ids)).any() or ((ids < 0) != (codes == NONE)).any():
            raise ScorerError(
                f"{name}: gives candidates with ids from {ids.min()} to {ids.max()}; expected ids "
                f"of its tokenizer, below {num_ids:,}, or -1 with code {NONE}"
            )
        coded_columns = [codes] if entropy is None else [codes, entropy]
        if wrong_types := {str(column.dtype) for column in coded_columns} - {"uint8"}:
            raise ScorerError(
                f"{name}: gives codes of type {', '.join(sorted(wrong_types))}, expected uint8 "
                "(vocagno.teacher.candidates.codes_of makes them of nats)"
            )
        if self.gives_entropy and (entropy is None or len(entropy) != len(nll)):
            raise ScorerError(
                f"{name}: says that it gives entropies, and gives none of some tokens"
            )
        return result

    def _warn_if_implausible(self, nll: NDArray[np.float32]) -> None:
        """Warns once if the losses are worse than guessing (ids of another tokenizer), or grow with
        the number of tokens read (a context longer than the teacher was trained on)."""
        if self._has_warned:
            return
        guessing = math.log(max(2, self.reader.spans.vocabulary_size))
        (second, last), context = self._quarters, self.reader.context
        warning = ""
        if len(nll) and nll.mean() > guessing + 1:
            warning = (
                f"the mean teacher loss is {nll.mean():.1f} nats per token, worse than guessing "
                f"({guessing:.1f}): is this its tokenizer, and text that it knows?"
            )
        elif min(second[1], last[1]) >= _MIN_QUARTER_TOKENS and last[0] / last[1] > (
            _LATE_LOSS_RATIO * second[0] / second[1]
        ):
            warning = (
                f"the teacher loses {last[0] / last[1]:.2f} nats a token in the last quarter of "
                f"its context of {context:,}, and {second[0] / second[1]:.2f} in the second: is it "
                f"longer than those that it was trained on? Try teacher.context: {context // 2}"
            )
        if warning:
            self._has_warned = True
            print(f"warning: {warning}", file=sys.stderr)

    def _add_to_quarters(self, window: Window, losses: NDArray[np.float32]) -> None:
        """Adds the losses of a full window to the sums of its second and its last quarter."""
        if len(window.ids) <= self.reader.context:
            return
        quarter = self.reader.context // 4
        # The second quarter is the reference: tokens of the first have too little before them.
        for sum_and_count, number in zip(self._quarters, (1, 3), strict=True):
            start, stop = (max(0, n * quarter - window.asked_from) for n in (number, number + 1))
            finite = losses[start:stop][np.isfinite(losses[start:stop])]
            sum_and_count += finite.sum(dtype=np.float64), len(finite)


def _document_scores(
    spans: NDArray[np.int32],
    nll: NDArray[np.float32],
    is_asked: NDArray[np.bool_],
    candidates: Candidates | None,
) -> DocumentScores:
    """Makes the scores of one document as they are stored.

    Tokens that were not requested get no loss. Neither do tokens whose loss is NaN or infinite in
    float16, the stored type. Tokens without a loss get no candidates.
    """
    with np.errstate(over="ignore"):
        stored = np.where(is_asked, nll, np.nan).astype(np.float16)
    has_no_loss = ~np.isfinite(stored)
    if candidates is not None:
        candidates.ids[has_no_loss] = -1
        candidates.codes[has_no_loss] = NONE
        if candidates.entropy is not None:
            candidates.entropy[has_no_loss] = NONE
    return DocumentScores(
        spans,
        np.where(has_no_loss, np.float16(np.nan), stored),
        num_unscored=int((has_no_loss & is_asked).sum()),
        candidates=candidates,
    )


def write_scored(
    path: Path, texts: ShardTexts, scores: list[DocumentScores], made_from: dict[str, Any]
) -> None:
    """Writes the scores of a shard's texts. Texts that the teacher could not read are refused."""
    reasons = {row: document.missing for row, document in enumerate(scores) if document.missing}
    write_scores(path, texts.hashes, scores, made_from, refused=texts.refusals(reasons))


def score_corpus(
    corpus: Corpus,
    folder: Path,
    made_from: dict[str, Any],
    load: Callable[[], Teacher],
    *,
    show_progress: bool,
    together: Together | None = None,
    part: Part | None = None,
) -> MakeResult:
    """Scores a corpus into a store. Existing shards are kept, and processes share the others.

    Args:
        made_from: what determines the scores. Its `tokenizer`, if it has one, is the fingerprint of
            the teacher's (`TokenSpans.fingerprint`), its `prefix` the list of ids before a text.
        load: called before the first shard is scored, so never if all shards exist.
        together: the processes that hold one teacher between them. All of them read every shard;
            the leading one writes it.
        part: the shards that this call makes, for `make_store`; None: all of them.
    Raises: StoreError for a finished store in which no token has a loss, and for a `made_from` that
        names another tokenizer or prefix than the teacher has; what `make_store` raises.
    """

    @cache
    def teacher() -> Teacher:  # called for each shard, loaded with the first
        loaded = load()
        if (reader := getattr(loaded, "reader", None)) is not None:  # known scores read no text
            _check_origin(folder, made_from, reader)
        return loaded

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        if together is not None:
            together.say(shard.first_document)
        # The leading process says which shard is next, as locks decide that while it runs.
        texts = corpus.read_shard(shard)
        write_scored(path, texts, teacher().score(texts.texts, advance), made_from)

    if together is not None and not together.leads:
        # The others only follow: they score each shard that the leading process names, until it
        # says None, so that the collectives inside the model find all processes.
        shards = {shard.first_document: shard for shard in corpus.shards}
        while (first := together.say(None)) is not None:
            teacher().score(corpus.read_shard(shards[first]).texts)
        return MakeResult(0, 0, 0.0)
    made = make_store(
        corpus, folder, SCORES, made_from, make, show_progress=show_progress, part=part
    )
    if together is not None:
        together.say(None)
    if part is None:
        check_has_losses(ScoreStore(folder), corpus.name)
    return made


def _check_origin(folder: Path, made_from: dict[str, Any], reader: TextReader) -> None:
    """Compares what a store is said to be made from with the teacher that makes it.
    Raises: StoreError if tokenizer or prefix differ."""
    for name, value in (("tokenizer", reader.spans.fingerprint), ("prefix", list(reader.prefix))):
        if made_from.get(name, value) != value:
            raise StoreError(
                f"{folder}: made_from has the {name} {made_from[name]!r}, but the teacher's is "
                f"{value!r}; correct or omit it"
            )


def check_has_losses(store: ScoreStore, text: str) -> None:
    """Checks that some token of a finished store has a loss. Args: text: its name, for the message.
    Raises: StoreError if none has one."""
    if not any(np.isfinite(shard.nll.values).any() for shard in store.shards()):
        raise StoreError(
            f"{store.folder}: of the {store.num_tokens:,} tokens of {text} none has a loss; a "
            "first token has none (without teacher.bos), nor has one whose loss is not finite: "
            "use longer documents, or another teacher"
        )
