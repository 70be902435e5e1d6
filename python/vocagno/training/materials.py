"""What a run needs before its first step: prepared rows and teacher scores, made where missing."""

from dataclasses import dataclass
from pathlib import Path

import torch

from vocagno.config import Config, ConfigError, TeacherConfig
from vocagno.corpus import Corpus, scan
from vocagno.rows import RowStore
from vocagno.scores import ScoreStore
from vocagno.token_spans import TokenSpans
from vocagno.training.loading import StudentTokenizer, weights_identity
from vocagno.training.preparing import prepare_corpus, rows_made_from
from vocagno.training.scoring import score_corpus, scores_made_from
from vocagno.training.stores import store_key


@dataclass(frozen=True, slots=True)
class Materials:
    """The stores of a run."""

    rows: RowStore
    validation: RowStore | None
    scores: ScoreStore | None
    """None for naive training."""


def gather_materials(
    config: Config, tokenizer: StudentTokenizer, device: torch.device, *, show_progress: bool
) -> Materials:
    """Opens the stores of a run, making what is not in the cache, together with other processes.

    Nobody waits inside a collective: scoring may take hours, and a collective gives up in minutes.
    """
    data = config.data
    corpus = scan(data.train, data.cache)
    rows = prepared_rows(corpus, tokenizer, data.seq_len, data.cache, show_progress=show_progress)
    if not len(rows):
        raise ConfigError(f"data.train: {data.train} holds no text to train on")
    validation = None
    if data.validation is not None:
        held_out = scan(data.validation, data.cache)
        validation = prepared_rows(
            held_out, tokenizer, data.seq_len, data.cache, show_progress=show_progress
        )
        if not len(validation):
            raise ConfigError(f"data.validation: {data.validation} holds no text to predict")
    scores = None
    if config.guidance.method != "cpt":
        scores = _scores(config.teacher, corpus, data.cache, device, show_progress=show_progress)
        scores.check_text(rows.text_hashes, str(data.train))
    return Materials(rows, validation, scores)


def prepared_rows(
    corpus: Corpus, tokenizer: StudentTokenizer, seq_len: int, cache: Path, *, show_progress: bool
) -> RowStore:
    """The rows of a corpus out of the cache, packed first if they are not there."""
    folder = cache / "rows" / store_key(corpus, rows_made_from(tokenizer, seq_len))
    prepare_corpus(corpus, folder, tokenizer, seq_len, show_progress=show_progress)
    return RowStore(folder)


def cached_scores(
    config: TeacherConfig,
    corpus: Corpus,
    cache: Path,
    device: torch.device,
    *,
    show_progress: bool,
    folder: Path | None = None,
) -> ScoreStore:
    """The teacher's scores of a corpus, in `folder` or the cache; made first where missing."""
    if config.model is None:
        raise ConfigError("teacher.model: needed to score a corpus")
    weights = weights_identity(config, cache)
    spans = teacher_spans(config)
    made_from = scores_made_from(config, spans, weights, device)
    folder = folder or cache / "scores" / store_key(corpus, made_from)
    score_corpus(corpus, folder, config, spans, made_from, device, show_progress=show_progress)
    return ScoreStore(folder)


def teacher_spans(config: TeacherConfig) -> TokenSpans:
    """The teacher's tokenizer: its own file, or the one of its model."""
    if config.tokenizer is not None:
        return TokenSpans.from_pretrained(config.tokenizer)
    assert config.model is not None
    return TokenSpans.from_pretrained(config.model, gguf_file=config.gguf_file)


def _scores(
    config: TeacherConfig, corpus: Corpus, cache: Path, device: torch.device, *, show_progress: bool
) -> ScoreStore:
    if config.scores is None:
        return cached_scores(config, corpus, cache, device, show_progress=show_progress)
    store = ScoreStore(config.scores)
    if config.tokenizer is not None or config.model is not None:
        name = config.tokenizer or config.model
        store.check_tokenizer(teacher_spans(config).fingerprint, f"the tokenizer of {name}")
    return store
