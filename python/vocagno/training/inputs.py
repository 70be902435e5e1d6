"""What a run needs before its first step: prepared rows and teacher scores, made where missing."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vocagno.config.run import Config, TeacherConfig
from vocagno.data.corpus import Corpus
from vocagno.data.prepare import kept_texts, prepared_rows, scanned
from vocagno.data.rows import RowStore
from vocagno.data.store.builder import Made, store_key
from vocagno.data.store.shards import StoreError
from vocagno.data.text_store import TextStore
from vocagno.errors import ConfigError
from vocagno.models.loading import check_context, teacher_spans, weights_identity
from vocagno.system.collectives import Together
from vocagno.teacher.corpus_scores import (
    Teacher,
    load_scorer,
    score_corpus,
    scores_made_from,
    text_reader,
)
from vocagno.teacher.live_same_vocabulary import check_same_vocabulary
from vocagno.teacher.matched_scores import MatchedScores
from vocagno.teacher.scores import ScoreStore
from vocagno.teacher.windows import TextReader
from vocagno.tokens.student_tokenizer import StudentTokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.sample_pages import Sample, choose_samples


@dataclass(frozen=True, slots=True)
class Materials:
    """The stores of a run."""

    rows: RowStore
    validation: RowStore | None
    scores: MatchedScores | None
    """None for naive training, and with a live teacher."""
    live: "LiveMaterials | None" = None
    samples: Sequence[Sample] = ()
    """Documents of which the run draws what the teacher chose."""
    sample_teacher: TokenSpans | None = None
    """The teacher's tokenizer for them, if it is known."""


@dataclass(frozen=True, slots=True)
class LiveMaterials:
    """What a live teacher needs, but for its weights."""

    texts: TextStore | None
    """None for a teacher that reads the rows themselves."""
    reader: TextReader
    made_from: dict[str, Any]
    """Which teacher it is: what would decide its scores."""


def gather_materials(
    config: Config, tokenizer: StudentTokenizer, device: torch.device, *, show_progress: bool
) -> Materials:
    """Opens the stores of a run, making what is not in the cache, together with other processes.

    Nobody waits inside a collective: scoring may take hours, and a collective gives up in minutes.

    Raises: StoreError if more of the text than `guidance.min_coverage` allows has no scores.
    """
    data, guidance = config.data, config.guidance
    _check_teacher(config, tokenizer)  # before rows and scores are made
    corpus = scanned(data.train, data.cache, show_progress=show_progress)
    if corpus.text_bytes == 0:
        raise ConfigError(f"data.train: every document of {data.train} is empty")
    rows, _ = prepared_rows(
        corpus, tokenizer, data.seq_len, data.cache, show_progress=show_progress
    )
    if not len(rows):
        raise ConfigError(f"data.train: {data.train} holds no text to train on")
    validation = None
    if data.validation is not None:
        held_out = scanned(data.validation, data.cache, show_progress=show_progress)
        validation, _ = prepared_rows(
            held_out, tokenizer, data.seq_len, data.cache, show_progress=show_progress
        )
        if not len(validation):
            raise ConfigError(f"data.validation: {data.validation} holds no text to predict")
    scores = live = None
    if guidance.needs_teacher and config.teacher.mode == "live":
        live = _live(config, corpus, device, show_progress=show_progress)
    elif guidance.needs_teacher:
        store = _scores(config.teacher, corpus, data.cache, device, show_progress=show_progress)
        scores = MatchedScores(store, rows)
        _check_missing(scores, config, show=show_progress)
    samples: list[Sample] = []
    sample_teacher = None
    if config.train.sample_every is not None:
        samples = choose_samples(corpus, tokenizer, data.seq_len)
        if not samples:
            raise ConfigError(f"train.sample_every: the first documents of {data.train} are empty")
        if live is not None:
            sample_teacher = live.reader.spans
        elif config.teacher.names_tokenizer:
            sample_teacher = teacher_spans(config.teacher)
    return Materials(rows, validation, scores, live, samples, sample_teacher)


def _check_teacher(config: Config, tokenizer: StudentTokenizer) -> None:
    """Refuses a teacher that cannot be what the method needs, before anything is made."""
    teacher, guidance = config.teacher, config.guidance
    if guidance.needs_same_vocabulary and teacher.names_tokenizer:
        check_same_vocabulary(tokenizer.spans, teacher_spans(teacher), guidance.method)
    if not guidance.needs_teacher or teacher.model is None or teacher.scores is not None:
        return
    if teacher.mode == "live" and guidance.needs_same_vocabulary:  # it reads whole rows
        check_context(teacher, config.data.seq_len, "data.seq_len")
    else:
        check_context(teacher)


def _live(
    config: Config, corpus: Corpus, device: torch.device, *, show_progress: bool
) -> LiveMaterials:
    teacher, cache = config.teacher, config.data.cache
    spans = teacher_spans(teacher)
    reader = text_reader(teacher, spans)
    made_from = scores_made_from(teacher, spans, weights_identity(teacher, cache), device)
    if config.guidance.needs_same_vocabulary:
        return LiveMaterials(None, reader, made_from)
    return LiveMaterials(kept_texts(corpus, cache, show_progress=show_progress), reader, made_from)


def _check_missing(scores: MatchedScores, config: Config, *, show: bool) -> None:
    if not scores.missing_documents:
        return
    missing = (
        f"{scores.store.folder}: {scores.missing_documents:,} documents of {config.data.train} "
        f"({scores.missing_share:.2%} of its tokens) have no scores here"
    )
    limit = config.guidance.min_coverage
    if 1 - scores.missing_share < limit:
        raise StoreError(
            f"{missing}, and guidance.min_coverage is {limit:.2%}: they were edited or added since "
            "the corpus was scored, or it is another corpus; run `vocagno score` on it"
        )
    if show:
        print(f"{missing}; they count as unmapped", file=sys.stderr)


def cached_scores(
    config: TeacherConfig,
    corpus: Corpus,
    cache: Path,
    device: torch.device,
    *,
    show_progress: bool,
    folder: Path | None = None,
) -> tuple[ScoreStore, Made]:
    """The teacher's scores of a corpus, in `folder` or the cache; made first where missing."""
    if config.model is None:
        raise ConfigError("teacher.model: needed to score a corpus")
    check_context(config)  # before weights are hashed, and before the folder is claimed
    spans = teacher_spans(config)
    reader = text_reader(config, spans)
    made_from = scores_made_from(config, spans, weights_identity(config, cache), device)
    folder = folder or cache / "scores" / store_key(corpus, made_from)
    with Together() if config.tensor_parallel else nullcontext() as together:
        made = score_corpus(
            corpus, folder, made_from,
            lambda: Teacher(load_scorer(config, spans, device), reader),
            show_progress=show_progress, together=together,
        )  # fmt: skip
    return ScoreStore(folder), made


def _scores(
    config: TeacherConfig, corpus: Corpus, cache: Path, device: torch.device, *, show_progress: bool
) -> ScoreStore:
    if config.scores is None:
        return cached_scores(config, corpus, cache, device, show_progress=show_progress)[0]
    store = ScoreStore(config.scores)
    if config.names_tokenizer:
        name = config.tokenizer or config.model
        store.check_tokenizer(teacher_spans(config).fingerprint, f"the tokenizer of {name}")
    if config.model is not None:
        weights = weights_identity(config, cache)
        if weights != (theirs := store.manifest.made_from["teacher"]):
            raise StoreError(
                f"teacher.scores: {store.folder} was made by another teacher ({theirs}) than "
                f"teacher.model {config.model} ({weights}); drop teacher.model to use these "
                "scores, or teacher.scores to use that model"
            )
    return store
