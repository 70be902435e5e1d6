"""The configured teacher: makes tokenizer, windows and engine of `TeacherConfig`, and finds or
makes the scores of a corpus."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus
from vocagno.data.rows import RowStore
from vocagno.data.store.building import MakeResult, Part, store_key
from vocagno.data.store.shards import StoreError
from vocagno.errors import ConfigError, require
from vocagno.models.loading import torch_dtype, weights_identity
from vocagno.models.own_tokenizers import teacher_prefix, teacher_spans
from vocagno.system.addresses import path_of
from vocagno.system.collectives import Together
from vocagno.teacher.piece_teacher import PieceTeacher, pieces_of
from vocagno.teacher.score_store import KIND, VERSION, ScoreStore
from vocagno.teacher.scorer import Scorer
from vocagno.teacher.scoring import Teacher, score_corpus
from vocagno.teacher.windows import TextReader
from vocagno.tokens.token_spans import TokenSpans

ENGINES: dict[str, str] = {
    "transformers": "vocagno.teacher.transformers_engine:TransformersEngine",
    "vllm": "vocagno.integrations.vllm_engine:VllmEngine",
    "server": "vocagno.integrations.scoring_server:ServerEngine",
}
"""The `Engine` of each `teacher.engine`, and of `teacher.server`; imported when a run needs it."""
_DTYPE_OF_SERVER = "of the server"
"""Stands in a store's inputs for the type of the weights, which only the server knows."""


class ConfiguredTeacher:
    """A teacher before its weights are loaded. It builds the tokenizer and hashes the weights once,
    on first use."""

    def __init__(
        self,
        config: TeacherConfig,
        cache: Path,
        device: torch.device,
        rows: RowStore | None = None,
    ) -> None:
        """Args: rows: of a student, whose pieces of the documents are read (`PieceTeacher`); None:
        whole documents."""
        require(
            config.candidates > 0 or not config.sampled, "teacher.sampled: needs teacher.candidates"
        )
        if config.warning:
            warnings.warn(config.warning, stacklevel=2)
        self.config = config
        self.cache = cache
        self.device = device
        self.rows = rows

    @cached_property
    def spans(self) -> TokenSpans:
        """The teacher's tokenizer."""
        return teacher_spans(self.config)

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The ids that the teacher reads before a document (`teacher_prefix`)."""
        return teacher_prefix(self.config, self.spans)

    @cached_property
    def reader(self) -> TextReader:
        """Cuts texts into the teacher's windows.
        Raises: ConfigError if the windows have no room for new tokens."""
        config = self.config
        prefix = self.prefix
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
            "prefix": list(self.prefix),
            "context": config.context,
            "min_context": config.context_before,
            "dtype": _DTYPE_OF_SERVER if config.server else dtype,
            "unit": "nats",
            **engine,
            **({"candidates": config.candidates} if config.candidates else {}),
            **({"sampled": True} if config.sampled else {}),
            **({"entropy": True} if config.candidates and self.engine.gives_entropy else {}),
            **({"rows": self.rows.manifest.made_from} if self.rows is not None else {}),
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
        arguments = self.engine.load(), self.reader, check, self.config.candidates
        if self.rows is None:
            return Teacher(*arguments)
        return PieceTeacher(pieces_of(self.rows), *arguments)

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
        is_further = option.startswith("teacher.also")  # of which a run has nothing but the scores
        for label, name, stored, configured in self._explicit_inputs(store.manifest.made_from):
            if stored not in (None, configured, _DTYPE_OF_SERVER):
                remedies = f" or drop teacher.{name}; to score again, drop {option}"
                if name == "bos" and not stored:
                    remedies = f' (teacher.bos: "" for none); to score again, drop {option}'
                raise StoreError(
                    f"{option}: {store.folder} was made with another {label} ({stored}, now "
                    f"{configured}); to use these scores, name that one"
                    f"{remedies * (not is_further)}"
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
            # Without a BOS of the options or of the tokenizer's settings, any store will do.
            if config.bos is not None or self.prefix != self.spans.prefix_ids:
                yield "bos", "bos", made_from.get("prefix"), list(self.prefix)
        if config.engine != TeacherConfig.engine:
            yield "engine", "engine", made_from.get("engine", TeacherConfig.engine), config.engine
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
