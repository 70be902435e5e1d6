"""A configured teacher before its weights are loaded, and its scores of a corpus."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus
from vocagno.data.store.building import Part, store_key
from vocagno.data.store.shards import StoreError
from vocagno.data.store.tally import Made
from vocagno.errors import ConfigError
from vocagno.integrations.vllm_engine import VllmScorer, check_vllm
from vocagno.models.loading import (
    check_context,
    teacher_prefix,
    teacher_spans,
    weights_identity,
)
from vocagno.system.collectives import Together
from vocagno.teacher.corpus_scores import (
    OF_SERVER,
    Teacher,
    load_scorer,
    score_corpus,
    scores_made_from,
    text_reader,
)
from vocagno.teacher.scorer import Scorer, TransformersScorer
from vocagno.teacher.scores import ScoreStore
from vocagno.teacher.windows import TextReader
from vocagno.tokens.token_spans import TokenSpans

if TYPE_CHECKING:
    from vocagno.integrations.scoring_server import ProbedTeacher, ServerScorer


class ConfiguredTeacher:
    """Builds the tokenizer and hashes the weights once, on first use."""

    def __init__(self, config: TeacherConfig, cache: Path, device: torch.device) -> None:
        self.config = config
        self.cache = cache
        self.device = device

    @cached_property
    def spans(self) -> TokenSpans:
        """The teacher's tokenizer."""
        return teacher_spans(self.config)

    @cached_property
    def reader(self) -> TextReader:
        """Its text reader. Raises: ConfigError as `text_reader`."""
        return text_reader(self.config, self.spans)

    @cached_property
    def server(self) -> "ServerScorer | None":
        """The server that has the model, if there is one."""
        if self.config.server is None:
            return None
        try:
            from vocagno.integrations.scoring_server import ServerScorer
        except ImportError as error:
            raise ConfigError("teacher.server: needs requests: pip install '.[server]'") from error
        return ServerScorer(self.config)

    @cached_property
    def weights(self) -> str:
        """The identity of its weights: a hub commit or a hash; of a server the model's name."""
        if self.server is not None:
            return f"{self.config.protocol} server: {self.server.served.name}"
        return weights_identity(self.config, self.cache)

    @cached_property
    def made_from(self) -> dict[str, Any]:
        """The inputs, apart from the text, that determine its scores."""
        return scores_made_from(self.config, self.spans, self.weights, self.device)

    def check(self) -> None:
        """Checks that it can read texts, without its weights.

        Raises: ConfigError as `check_context`, `check_vllm` and `text_reader`.
        """
        if self.server is not None:
            self.server.check(self.reader)
        elif self.config.engine == "vllm":
            check_vllm(self.config)
        else:
            check_context(self.config)
        _ = self.reader

    def load(self) -> Teacher:
        """The model on its device, or the server that has it, with its reader."""
        return Teacher(self.server or self._engine(), self.reader)

    def load_for(self, folder: Path) -> Teacher:
        """As `load`, for the scores in a folder: a server must have the model that gave those that
        are there."""
        return self._probed(folder) or self.load()

    def _probed(self, folder: Path) -> "ProbedTeacher | None":
        if self.server is None:
            return None
        from vocagno.integrations.scoring_server import ProbedTeacher

        return ProbedTeacher(self.server, self.reader, folder)

    def _engine(self) -> Scorer:
        if self.config.engine == "vllm":
            return VllmScorer(self.config, self.spans.vocabulary_size, self.device)
        return self.load_scorer()

    def load_scorer(self) -> TransformersScorer:
        """The model on its device."""
        return load_scorer(self.config, self.spans, self.device)

    def scores_folder(self, corpus: Corpus) -> Path:
        """Where its scores of a corpus are in the cache.

        Raises: ConfigError without a model, or for a context that the model cannot read.
        """
        if self.config.model is None and self.config.server is None:
            raise ConfigError("teacher.model: needed to score a corpus")
        self.check()  # before hashing the weights
        return self.cache / "scores" / store_key(corpus, self.made_from)

    def cached_scores(
        self, corpus: Corpus, *, show_progress: bool, folder: Path | None = None
    ) -> tuple[ScoreStore, Made]:
        """Its scores of a corpus, in `folder` or the cache; computed first if missing.

        Raises: as `scores_folder`.
        """
        folder = folder or self.scores_folder(corpus)
        made = self.make_scores(corpus, folder, show_progress=show_progress)
        return ScoreStore(folder), made

    def make_scores(
        self, corpus: Corpus, folder: Path, *, show_progress: bool, part: Part | None = None
    ) -> Made:
        """Computes what is missing of its scores of a corpus. Args: part: as `make_store`.

        Raises: as `scores_folder`; StoreError if the scores there are of another model than the
            server has now.
        """
        self.scores_folder(corpus)  # checks before the folder is claimed
        made_from = self.made_from
        with Together() if self.config.tensor_parallel else nullcontext() as together:
            made = score_corpus(
                corpus,
                folder,
                made_from,
                partial(self.load_for, folder),
                show_progress=show_progress,
                together=together,
                part=part,
            )
        if not made.shards and (probed := self._probed(folder)):
            probed.check()
        return made

    def scores(
        self, corpus: Callable[[], Corpus], folder: Path | None, *, show_progress: bool
    ) -> ScoreStore:
        """The store in `folder`, one of `teacher.scores`; None: the one in the cache.

        Args: corpus: called if scores in the cache are wanted.
        Raises: StoreError if that in `folder` was made by another teacher than the configured one,
            or by one that read otherwise.
        """
        if folder is None:
            return self.cached_scores(corpus(), show_progress=show_progress)[0]
        store = ScoreStore(folder)
        prefix = None
        if self.config.names_tokenizer:
            name = self.config.tokenizer or self.config.model
            store.check_tokenizer(self.spans.fingerprint, f"the tokenizer of {name}")
            prefix = list(teacher_prefix(self.config, self.spans))
        _check_reading(store, self.config, prefix)
        if self.config.model is None:
            return store
        if self.weights != (theirs := store.manifest.made_from["teacher"]):
            raise StoreError(
                f"teacher.scores: {store.folder} was made by another teacher ({theirs}) than "
                f"teacher.model {self.config.model} ({self.weights}); drop teacher.model to use "
                "these scores, or teacher.scores to use that model"
            )
        return store


def _check_reading(store: ScoreStore, config: TeacherConfig, prefix: list[int] | None) -> None:
    """Rejects scores of a teacher that read otherwise than the options say. Their defaults say
    nothing.

    Args: prefix: the ids that `bos` stands for, if the tokenizer is known.
    """
    made_from = store.manifest.made_from
    stated: dict[str, tuple[Any, Any]] = {
        name: (getattr(config, name), made_from.get(name))
        for name in ("context", "min_context", "dtype")
        if getattr(config, name) != getattr(TeacherConfig, name)
    }
    if config.bos is not None and prefix is not None:
        stated["bos"] = prefix, made_from.get("prefix")
    for name, (ours, theirs) in stated.items():
        if theirs not in (None, ours, OF_SERVER):
            raise StoreError(
                f"teacher.scores: {store.folder} was made with teacher.{name} {theirs}, not "
                f"{ours}; drop teacher.{name} to use these scores, or teacher.scores to score again"
            )
