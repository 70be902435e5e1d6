"""Computes a teacher's losses: of texts, and of a corpus, once, into a store.

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
from vocagno.teacher.candidates import NONE, Candidates, Scored
from vocagno.teacher.scorer import Scorer, TransformersScorer
from vocagno.teacher.scores import KIND, SCORES, VERSION, DocumentScores, ScoreStore, write_scores
from vocagno.teacher.windows import TextReader, Window
from vocagno.tokens.token_spans import TokenSpans

ENGINES: dict[str, str] = {
    "transformers": "vocagno.teacher.scoring:TransformersEngine",
    "vllm": "vocagno.integrations.vllm_engine:VllmEngine",
    "server": "vocagno.integrations.scoring_server:ServerEngine",
}
"""The `Engine` of each `teacher.engine`, and of `teacher.server`; imported when a run needs it."""
_ENOUGH = 8_192
"""Tokens in a quarter of contexts before their losses are compared."""
_LATE = 1.05
"""How much larger the losses of the last quarter are beyond chance."""
_OF_SERVER = "of the server"
"""In place of a type of weights that only the server knows."""


class ScorerError(InputError):
    """A scorer gives other candidates than it was asked for."""


class Teacher:
    """A tokenizer and a scorer: gives one loss per token of a text."""

    def __init__(
        self,
        scorer: Scorer,
        reader: TextReader,
        check: Callable[[], None] | None = None,
        candidates: int = 0,
    ) -> None:
        """Args:
        check: called when texts are scored; raises if another model scored them.
        candidates: K of the scorer.
        """
        self.scorer = scorer
        self.candidates = candidates
        self.is_sampled: bool = getattr(scorer, "is_sampled", False)
        self.gives_entropy: bool = getattr(scorer, "gives_entropy", False)
        self.reader = reader
        self._check = check
        self._is_doubted = False
        self._quarters: NDArray[np.float64] = np.zeros((2, 2))
        """Sum and number of the losses in the second and the last quarter of whole contexts."""

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Losses and spans of each text, read independently; calls `advance` with the progress. A
        text whose tokens cannot be placed has none, and says why (`DocumentScores.missing`).

        Raises: ScorerError if the scorer gives no candidates, or impossible ones.
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
        scored = 0
        for number, found in self.scorer.score(windowed.windows):
            rows = windowed.rows[number]
            losses = found.nll if isinstance(found, Scored) else found
            nll[rows] = losses
            if candidates is not None:
                of_window = self._checked(found)
                candidates.ids[rows], candidates.codes[rows] = of_window.ids, of_window.codes
                if candidates.entropy is not None:
                    candidates.entropy[rows] = np.asarray(of_window.entropy)
            self._note_places(windowed.windows[number], losses)
            scored += len(losses)
            advance(scored / len(tokens.ids), scored)
        if self._check is not None:
            self._check()
        self._doubt(nll[np.isfinite(nll)])
        return [
            DocumentScores.none(windowed.refused[number])
            if number in windowed.refused
            else _scored(
                tokens.spans[place],
                nll[place],
                windowed.is_asked[place],
                candidates and candidates[place],
            )
            for number, place in enumerate(map(tokens.text, range(len(tokens))))
        ]

    def _checked(self, found: NDArray[np.float32] | Scored) -> Scored:
        """The candidates of a window. Raises: ScorerError for impossible ones."""
        name = type(self.scorer).__name__
        if not isinstance(found, Scored):
            raise ScorerError(f"{name}: gives losses without candidates")
        shape = len(found.nll), self.candidates
        if not found.ids.shape == found.codes.shape == shape:
            raise ScorerError(
                f"{name}: gives candidates of shape {found.ids.shape} and {found.codes.shape}, "
                f"expected {shape} (teacher.candidates)"
            )
        most = self.reader.spans.vocabulary_size
        if ((found.ids < -1) | (found.ids >= most)).any() or (
            (found.ids < 0) != (found.codes == NONE)
        ).any():
            raise ScorerError(
                f"{name}: gives candidates with ids from {found.ids.min()} to {found.ids.max()}; "
                f"expected ids of its tokenizer, below {most:,}, or -1 with code {NONE}"
            )
        of_codes = [found.codes] if found.entropy is None else [found.codes, found.entropy]
        if kinds := {str(one.dtype) for one in of_codes} - {"uint8"}:
            raise ScorerError(
                f"{name}: gives codes of type {', '.join(sorted(kinds))}, expected uint8 "
                "(vocagno.teacher.candidates.codes_of makes them of nats)"
            )
        if self.gives_entropy and (found.entropy is None or len(found.entropy) != len(found.nll)):
            raise ScorerError(
                f"{name}: says that it gives entropies, and gives none of some tokens"
            )
        return found

    def _doubt(self, nll: NDArray[np.float32]) -> None:
        """Warns once if the losses are worse than guessing, as with ids of another tokenizer, or
        grow with what the teacher has read, as beyond the length that it was trained on."""
        if self._is_doubted:
            return
        guessing = math.log(max(2, self.reader.spans.vocabulary_size))
        (second, last), context = self._quarters, self.reader.context
        warning = ""
        if len(nll) and nll.mean() > guessing + 1:
            warning = (
                f"the mean teacher loss is {nll.mean():.1f} nats per token, worse than guessing "
                f"({guessing:.1f}): is this its tokenizer, and text that it knows?"
            )
        elif min(second[1], last[1]) >= _ENOUGH and last[0] / last[1] > (
            _LATE * second[0] / second[1]
        ):
            warning = (
                f"the teacher loses {last[0] / last[1]:.2f} nats a token in the last quarter of "
                f"its context of {context:,}, and {second[0] / second[1]:.2f} in the second: is it "
                f"longer than those that it was trained on? Try teacher.context: {context // 2}"
            )
        if warning:
            self._is_doubted = True
            print(f"warning: {warning}", file=sys.stderr)

    def _note_places(self, window: Window, losses: NDArray[np.float32]) -> None:
        if len(window.ids) <= self.reader.context:
            return
        quarter = self.reader.context // 4
        for of_quarter, first in zip(self._quarters, (1, 3), strict=True):
            start, stop = (max(0, n * quarter - window.asked_from) for n in (first, first + 1))
            part = losses[start:stop][np.isfinite(losses[start:stop])]
            of_quarter += part.sum(dtype=np.float64), len(part)


def _scored(
    spans: NDArray[np.int32],
    nll: NDArray[np.float32],
    is_asked: NDArray[np.bool_],
    candidates: Candidates | None,
) -> DocumentScores:
    """Tokens that were not requested get no loss. Neither do tokens whose loss is NaN or infinite
    in float16, the stored type. Tokens without a loss get no candidates."""
    with np.errstate(over="ignore"):
        stored = np.where(is_asked, nll, np.nan).astype(np.float16)
    failed = ~np.isfinite(stored) & is_asked
    if candidates is not None:
        candidates.ids[~np.isfinite(stored)] = -1
        candidates.codes[~np.isfinite(stored)] = NONE
        if candidates.entropy is not None:
            candidates.entropy[~np.isfinite(stored)] = NONE
    return DocumentScores(
        spans,
        np.where(np.isfinite(stored), stored, np.float16(np.nan)),
        num_unscored=int(failed.sum()),
        candidates=candidates,
    )


def write_scored(
    path: Path, texts: ShardTexts, scores: list[DocumentScores], made_from: dict[str, Any]
) -> None:
    """Writes the scores of a shard's texts. Texts that the teacher could not read are refused."""
    refused = texts.refused({row: one.missing for row, one in enumerate(scores) if one.missing})
    write_scores(path, texts.hashes, scores, made_from, refused=refused)


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
        together: processes that share one teacher, not the corpus.
        part: as `make_store`.
    Raises: as `make_store`; StoreError for a finished store in which no token has a loss.
    """
    loaded = cache(load)

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        if together is not None:
            together.say(shard.first_document)
        found = corpus.read(shard)
        write_scored(path, found, loaded().score(found.texts, advance), made_from)

    if together is not None and not together.leads:
        shards = {shard.first_document: shard for shard in corpus.shards}
        while (first := together.say(None)) is not None:
            loaded().score(corpus.read(shards[first]).texts)
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
    """A teacher before its weights are loaded. Builds the tokenizer and hashes the weights once, on
    first use."""

    def __init__(self, config: TeacherConfig, cache: Path, device: torch.device) -> None:
        require(
            config.candidates > 0 or not config.sampled, "teacher.sampled: needs teacher.candidates"
        )
        self.config = config
        self.cache = cache
        self.device = device

    @cached_property
    def spans(self) -> TokenSpans:
        return teacher_spans(self.config)

    @cached_property
    def reader(self) -> TextReader:
        """Its text reader. Raises: ConfigError if its windows have no room for new tokens."""
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
        """What computes its losses. Raises: ConfigError if a library is missing."""
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
        """The inputs, apart from the text, that determine its scores."""
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
            "dtype": _OF_SERVER if config.server else dtype,
            "unit": "nats",
            **engine,
            **({"candidates": config.candidates} if config.candidates else {}),
            **({"sampled": True} if config.sampled else {}),
            **({"entropy": True} if config.candidates and self.engine.gives_entropy else {}),
        }

    def check(self) -> None:
        """Checks that it can read texts, without its weights. Raises: as `Engine.check`."""
        self.engine.check()
        _ = self.reader

    def load(self, folder: Path | None = None) -> Teacher:
        """The teacher, to score for a store in `folder`. Raises: StoreError as `Engine.guard`."""
        check = None
        if folder is not None:
            self.engine.guard(folder, note=True)
            check = partial(self.engine.guard, folder)
        return Teacher(self.engine.load(), self.reader, check, self.config.candidates)

    def scores_folder(self, corpus: Corpus) -> Path:
        """Its scores of a corpus in the cache. Raises: ConfigError without a model; as `check`."""
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
        """Computes what is missing of its scores of a corpus.

        Args:
            folder: of the store; default: in the cache.
            part: as `make_store`.
        Returns: the folder, and what was made.
        Raises: as `scores_folder`; StoreError if the scores there are of another model than the
            server has now.
        """
        default = self.scores_folder(corpus)  # checks before the folder is claimed
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
        if not made.shards:
            self.engine.guard(folder)
        return folder, made

    def scores(
        self, corpus: Callable[[], Corpus], folder: Path | None, *, show_progress: bool
    ) -> ScoreStore:
        """The store in `folder`, one of `teacher.scores`; None: the one in the cache, made where
        something is missing.

        Args: corpus: called if scores in the cache are wanted.
        Raises: StoreError if that in `folder` was made by another teacher than the configured one,
            or by one that read otherwise; as `make_scores`.
        """
        if folder is None:
            return ScoreStore(self.make_scores(corpus(), show_progress=show_progress)[0])
        store = ScoreStore(folder)
        for what, option, theirs, ours in self._stated(store.manifest.made_from):
            if theirs not in (None, ours, _OF_SERVER):
                raise StoreError(
                    f"teacher.scores: {store.folder} was made with another {what} ({theirs}, now "
                    f"{ours}); drop teacher.{option} to use these scores, or teacher.scores to "
                    "score again"
                )
        if self.config.server:
            self.engine.guard(store.folder)
        return store

    def _stated(self, made_from: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
        """What the options say of a store's inputs: a word for it, the option, the store's and the
        options' value. Defaults say nothing."""
        config = self.config
        if config.names_tokenizer:
            option = next(one for one in ("server", "tokenizer", "model") if getattr(config, one))
            yield "tokenizer", option, made_from.get("tokenizer", "none"), self.spans.fingerprint
            if config.bos is not None:
                prefix = list(teacher_prefix(config, self.spans))
                yield "bos", "bos", made_from.get("prefix"), prefix
        for name in ("context", "min_context", "dtype"):
            if (ours := getattr(config, name)) != getattr(TeacherConfig, name):
                yield name.replace("_", " "), name, made_from.get(name), ours
        if config.candidates:
            theirs = made_from.get("candidates", 0)
            yield "number of candidates", "candidates", theirs, config.candidates
            if config.sampled is not None:
                theirs = made_from.get("sampled", False)
                yield "sampling of candidates", "sampled", theirs, config.sampled
        if config.model is not None:
            yield "teacher", "model", made_from.get("teacher", "none"), self.engine.weights


class Engine:
    """A way to compute a configured teacher's losses: one of `ENGINES`."""

    gives_entropy: bool = False
    """Whether its candidates come with the entropy of the distribution that they are of."""

    def __init__(self, teacher: ConfiguredTeacher) -> None:
        self.teacher = teacher

    @cached_property
    def weights(self) -> str:
        """The identity of the teacher's weights: a hub commit or a hash."""
        return weights_identity(self.teacher.config, self.teacher.cache)

    def check(self) -> None:
        """Raises: ConfigError, which names an option, if its teacher cannot be computed."""
        raise NotImplementedError

    def load(self) -> Scorer:
        """The teacher with its weights."""
        raise NotImplementedError

    def guard(self, folder: Path, *, note: bool = False) -> None:
        """Compares the model with the one that gave the scores in a folder, where `weights` cannot
        tell them apart.

        Args: note: records the model in the folder, if none is recorded there.
        Raises: StoreError if it is another one.
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
    """The configured model of transformers. Raises: ConfigError if the tokenizer has more ids."""
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
