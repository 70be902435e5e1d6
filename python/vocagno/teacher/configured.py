"""The configured teacher: builds it from `TeacherConfig`, scores texts with it, and scores a whole
corpus once into a store of losses.

M: teacher tokens of a document, K: candidates of a token.
"""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus, CorpusShard, ShardTexts
from vocagno.data.store.building import Advance, MakeResult, Part, make_store, store_key
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError, InputError, require
from vocagno.models.loading import (
    check_context,
    check_vocabulary,
    load_teacher,
    teacher_prefix,
    teacher_spans,
    torch_dtype,
    weights_identity,
)
from vocagno.system.addresses import path_of
from vocagno.system.collectives import Together
from vocagno.teacher.candidates import NONE, Candidates, ScoredWindow
from vocagno.teacher.score_store import (
    KIND,
    SCORES,
    VERSION,
    DocumentScores,
    ScoreStore,
    write_scores,
)
from vocagno.teacher.scorer import Scorer, TransformersScorer
from vocagno.teacher.windows import TextReader, Window
from vocagno.tokens.token_spans import TokenSpans

ENGINES: dict[str, str] = {
    "transformers": "vocagno.teacher.configured:TransformersEngine",
    "vllm": "vocagno.integrations.vllm_engine:VllmEngine",
    "server": "vocagno.integrations.scoring_server:ServerEngine",
}
"""The `Engine` of each `teacher.engine`, and of `teacher.server`; imported when a run needs it."""
_MIN_QUARTER_TOKENS = 8_192
"""Number of tokens in a quarter of the context from which on its mean loss is compared."""
_LATE_LOSS_RATIO = 1.05
"""A mean loss of the last quarter that exceeds the second's by this factor is not chance."""
_DTYPE_OF_SERVER = "of the server"
"""Stands in a store's inputs for the type of the weights, which only the server knows."""


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
        load: called before the first shard is scored, so never if all shards exist.
        together: the processes that hold one teacher between them. All of them read every shard;
            the leading one writes it.
        part: the shards that this call makes, for `make_store`; None: all of them.
    Raises: StoreError for a finished store in which no token has a loss, and what `make_store`
        raises.
    """
    teacher = cache(load)  # called for each shard, loaded with the first

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
        store = ScoreStore(folder)
        if not any(np.isfinite(shard.nll.values).any() for shard in store.shards()):
            raise StoreError(
                f"{folder}: of the {store.num_tokens:,} tokens of {corpus.name} none has a loss; a "
                "first token has none (without teacher.bos), nor has one whose loss is not finite: "
                "use longer documents, or another teacher"
            )
    return made


class ConfiguredTeacher:
    """A teacher before its weights are loaded. It builds the tokenizer and hashes the weights once,
    on first use."""

    def __init__(self, config: TeacherConfig, cache: Path, device: torch.device) -> None:
        require(
            config.candidates > 0 or not config.sampled, "teacher.sampled: needs teacher.candidates"
        )
        self.config = config
        self.cache = cache
        self.device = device

    @cached_property
    def spans(self) -> TokenSpans:
        """The teacher's tokenizer."""
        return teacher_spans(self.config)

    @cached_property
    def reader(self) -> TextReader:
        """Cuts texts into the teacher's windows.
        Raises: ConfigError if the windows have no room for new tokens."""
        config = self.config
        prefix = teacher_prefix(config, self.spans)
        require(
            config.context + 1 - len(prefix) > config.context_before,
            f"teacher.min_context {config.context_before} and {len(prefix)} prefix tokens leave no "
            f"room in teacher.context {config.context}; lower teacher.min_context",
        )
        return TextReader(
            self.spans, prefix, context=config.context, min_context=config.context_before
        )

    @cached_property
    def engine(self) -> "Engine":
        """The library or server that computes the losses.
        Raises: ConfigError if a library is missing."""
        name = "server" if self.config.server else self.config.engine
        try:
            engine_type: type[Engine] = resolve_name(ENGINES[name])
        except ImportError as error:
            option = "server" if self.config.server else f"engine: {name}"
            extra = ": pip install '.[server]'" if self.config.server else ""
            raise ConfigError(f"teacher.{option}: needs {error.name}{extra}") from error
        return engine_type(self)

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """The inputs, apart from the text, that determine the scores. They are part of the name of
        a store in the cache, so a key stands here only where it is not the default: another key
        would make all stores again."""
        config = self.config
        dtype = str(torch_dtype(config.dtype, self.device)).removeprefix("torch.")
        engine = {} if config.engine == "transformers" else {"engine": config.engine}
        return {
            "format": f"{KIND} {VERSION}",
            "teacher": self.engine.weights,
            "tokenizer": self.spans.fingerprint,
            "prefix": list(teacher_prefix(config, self.spans)),
            "context": config.context,
            "min_context": config.context_before,
            "dtype": _DTYPE_OF_SERVER if config.server else dtype,
            "unit": "nats",
            **engine,
            **({"candidates": config.candidates} if config.candidates else {}),
            **({"sampled": True} if config.sampled else {}),
            **({"entropy": True} if config.candidates and self.engine.gives_entropy else {}),
        }

    def check(self) -> None:
        """Checks, without loading weights, that this teacher can read texts.
        Raises: ConfigError, which names an option, if it cannot."""
        self.engine.check()
        _ = self.reader

    def load(self, folder: Path | None = None) -> Teacher:
        """Loads the teacher, to score for a store in `folder`.
        Raises: StoreError if another model made the scores there (`Engine.guard`)."""
        check = None
        if folder is not None:
            self.engine.guard(folder, note=True)
            check = partial(self.engine.guard, folder)
        return Teacher(self.engine.load(), self.reader, check, self.config.candidates)

    def scores_folder(self, corpus: Corpus) -> Path:
        """The folder in the cache for the scores of a corpus.
        Raises: ConfigError if no model is configured, or if it cannot read texts."""
        if self.config.model is None and self.config.server is None:
            raise ConfigError("teacher.model: needed to score a corpus")
        self.check()  # before hashing the weights
        return self.cache / "scores" / store_key(corpus, self.made_from)

    def make_scores(
        self,
        corpus: Corpus,
        folder: Path | None = None,
        *,
        show_progress: bool,
        part: Part | None = None,
    ) -> tuple[Path, MakeResult]:
        """Computes what is missing of the scores of a corpus.

        Args:
            folder: of the store; default: in the cache.
            part: the shards that this call makes, for `make_store`; None: all of them.
        Returns: the folder, and what was made.
        Raises: ConfigError if no model is configured, or if it cannot read texts; StoreError if
            the scores there are of another model than the server has now.
        """
        default = self.scores_folder(corpus)  # checks options before the folder is claimed
        folder = path_of(folder or default)
        load = partial(self.load, folder)
        with Together() if self.config.tensor_parallel else nullcontext() as together:
            made = score_corpus(
                corpus,
                folder,
                self.made_from,
                load,
                show_progress=show_progress,
                together=together,
                part=part,
            )
        # Nothing was scored, so that `load` has not compared the model with the scores that are
        # here.
        if not made.shards:
            self.engine.guard(folder)
        return folder, made

    def scores(
        self,
        corpus: Callable[[], Corpus],
        folder: Path | None,
        *,
        show_progress: bool,
        option: str = "teacher.scores",
    ) -> ScoreStore:
        """Opens the store in `folder` (one of `teacher.scores`) or, if that is None, the one in the
        cache, of which it makes what is missing.

        Args:
            corpus: called only for scores in the cache.
            option: the one that names the folder, for messages.
        Raises: StoreError if the store in `folder` was made by another teacher than the configured
            one, or by one with other options; what `make_scores` raises.
        """
        if folder is None:
            return ScoreStore(self.make_scores(corpus(), show_progress=show_progress)[0])
        store = ScoreStore(folder)
        for label, name, stored, configured in self._explicit_inputs(store.manifest.made_from):
            if stored not in (None, configured, _DTYPE_OF_SERVER):
                raise StoreError(
                    f"{option}: {store.folder} was made with another {label} ({stored}, now "
                    f"{configured}); drop teacher.{name} to use these scores, or {option} to score "
                    "again"
                )
        if self.config.server:
            self.engine.guard(store.folder)
        return store

    def _explicit_inputs(self, made_from: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
        """Yields the inputs of a store that the options set: a word for the input, the option, the
        store's value and the option's. An option at its default is compatible with any store."""
        config = self.config
        if config.names_tokenizer:
            option = next(key for key in ("server", "tokenizer", "model") if getattr(config, key))
            yield "tokenizer", option, made_from.get("tokenizer", "none"), self.spans.fingerprint
            if config.bos is not None:
                prefix = list(teacher_prefix(config, self.spans))
                yield "bos", "bos", made_from.get("prefix"), prefix
        for name in ("context", "min_context", "dtype"):
            if (value := getattr(config, name)) != getattr(TeacherConfig, name):
                yield name.replace("_", " "), name, made_from.get(name), value
        if config.candidates:
            count = made_from.get("candidates", 0)
            yield "number of candidates", "candidates", count, config.candidates
            if config.sampled is not None:
                is_sampled = made_from.get("sampled", False)
                yield "sampling of candidates", "sampled", is_sampled, config.sampled
        if config.model is not None:
            yield "teacher", "model", made_from.get("teacher", "none"), self.engine.weights


class Engine:
    """A way to compute a configured teacher's losses: one of `ENGINES`."""

    gives_entropy: bool = False
    """True if candidates come with the entropy of the teacher's whole distribution."""

    def __init__(self, teacher: ConfiguredTeacher) -> None:
        self.teacher = teacher

    @cached_property
    def weights(self) -> str:
        """Identifies the teacher's weights: a hub commit or a hash of the files."""
        return weights_identity(self.teacher.config, self.teacher.cache)

    def check(self) -> None:
        """Checks that the teacher can be computed with its options.
        Raises: ConfigError, which names an option, if not."""
        raise NotImplementedError

    def load(self) -> Scorer:
        """Loads the weights."""
        raise NotImplementedError

    def guard(self, folder: Path, *, note: bool = False) -> None:
        """Compares the model with the one that made the scores in a folder, for engines whose
        `weights` cannot tell two models apart (a server). Others have nothing to compare.

        Args: note: records the model in the folder, if none is recorded there.
        Raises: StoreError if the models differ.
        """


class TransformersEngine(Engine):
    """A model of transformers in this process."""

    gives_entropy = True

    def check(self) -> None:
        """Raises: ConfigError if the model reads fewer than `teacher.context` tokens."""
        check_context(self.teacher.config)

    def load(self) -> TransformersScorer:
        return load_scorer(self.teacher.config, self.teacher.spans, self.teacher.device)


def load_scorer(
    config: TeacherConfig, spans: TokenSpans, device: torch.device
) -> TransformersScorer:
    """Loads the configured model of transformers as a scorer.
    Raises: ConfigError if the tokenizer has more ids than the model."""
    model = load_teacher(config, device)
    check_vocabulary(model, spans.vocabulary_size, "teacher.")
    return TransformersScorer(
        model,
        batch_tokens=config.batch_tokens,
        width=config.context,
        batching=config.batching,
        candidates=config.candidates,
        sampled=bool(config.sampled),
        num_ids=spans.vocabulary_size,
    )
