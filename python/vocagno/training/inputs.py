"""The inputs of a run: prepared rows and teacher scores, made where missing.

`resolve` checks a configuration against its tokenizers, models and texts. Every tokenizer is built
once, and every identity of weights is computed once.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import (
    Config,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    StudentConfig,
    TrainConfig,
    row_counts,
)
from vocagno.data.corpus import Corpus
from vocagno.data.prepare import kept_texts, open_rows, prepared_rows, scanned
from vocagno.data.rows import MixedPieces, MixedRows, RowStore
from vocagno.data.store.refusals import REFUSED, RefusalLimit, say_omitted
from vocagno.data.text_store import TextStore
from vocagno.errors import ConfigError
from vocagno.models.loading import check_context, check_own_tokenizer, student_settings
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.live import check_same_vocabulary
from vocagno.teacher.scores import DocumentScores, MatchedScores, ScoreStore
from vocagno.tokens.student_tokenizer import StudentTokenizer, student_tokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.sample_pages import Sample, choose_samples


@dataclass(frozen=True, slots=True)
class LiveTeacherInputs:
    """A live teacher's inputs other than its weights."""

    teacher: ConfiguredTeacher
    texts: MixedPieces[tuple[str, int]] | None
    """None for a teacher that reads the rows themselves."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The parts of a run's configuration, and the tokenizers and stores that they name."""

    student: StudentConfig
    data: DataConfig
    guidance: GuidanceConfig
    train: TrainConfig
    optimizer: OptimizerConfig
    evaluation: EvaluationConfig
    output: Path
    options: dict[str, Any]
    """All of them by their full names, for trackers."""
    tokenizer: StudentTokenizer
    settings: Any
    """The transformers configuration of the student."""
    rows: MixedRows
    validation: Mapping[str, RowStore]
    """Held-out rows by name; there may be none."""
    scores: Mapping[str, MatchedScores]
    """Of each corpus; none for naive training, and with a live teacher."""
    live: LiveTeacherInputs | None = None
    samples: Sequence[Sample] = ()
    """Documents of which the run draws what the teacher chose."""
    sample_teacher: TokenSpans | None = None
    """The teacher's tokenizer for them, if it is known."""

    def made_from(self) -> dict[str, dict[str, Any]]:
        """The facts that determine the stores and the teacher, by name."""
        made_from = {}
        for what, stores in (
            ("rows", self.rows.stores),
            ("scores", {name: matched.store for name, matched in self.scores.items()}),
        ):
            for name, store in stores.items():
                key = what if len(stores) == 1 else f"{what} of {name}"
                made_from[key] = {"text": store.text_hashes, **store.manifest.made_from}
                if refused := store.manifest.count(REFUSED):  # by this release of the tokenizer
                    made_from[key][REFUSED] = refused
        if self.live is not None:
            made_from["live teacher"] = self.live.teacher.made_from
        return made_from

    def stored_scores(self) -> MixedPieces[DocumentScores] | None:
        """The scores of all corpora, if there are any."""
        if not self.scores:
            return None
        return MixedPieces(list(self.scores.values()), self.rows.document_ends)


def resolve(config: Config, device: torch.device, *, show_progress: bool) -> Inputs:
    """Checks the configuration, and opens the stores of a run. Stores that are not in the cache are
    made, together with other processes.

    No process waits inside a collective: scoring may take hours, a collective times out in minutes.

    Raises: ConfigError for a student or teacher that cannot be what the run needs; StoreError if
        more of the text than `guidance.min_coverage` allows has no scores.
    """
    data, guidance = config.data, config.guidance
    tokenizer, settings = _student(config)
    teacher = ConfiguredTeacher(config.teacher, data.cache, device)
    _check_teacher(config, tokenizer, teacher)  # before rows and scores are made

    @cache
    def corpus(name: str) -> Corpus:
        found = scanned(name, data.cache, show_progress=show_progress, max_refused=data.max_refused)
        if found.text_bytes == 0:
            raise ConfigError(f"data.train: every document of {name} is empty")
        return found

    if data.row_stores:
        given = zip(data.corpora, data.row_stores, strict=True)
        stores = {name: open_rows(folder, tokenizer, data.seq_len) for name, folder in given}
    else:
        stores = {
            name: _rows(corpus(name), data, tokenizer, show=show_progress) for name in data.corpora
        }
    validation = {}
    for name, source in data.held_out.items():
        held_out = scanned(
            source, data.cache, show_progress=show_progress, max_refused=data.max_refused
        )
        validation[name] = _rows(held_out, data, tokenizer, show=show_progress)
    _check_refused([*stores.values(), *validation.values()], data.max_refused, show=show_progress)
    for role, found in (("train", stores), ("validation", validation)):
        for name, store in found.items():
            if not len(store):
                raise ConfigError(f"data.{role}: {name} holds no text to predict")
    rows = MixedRows(stores)
    if show_progress and len(stores) > 1:
        print(_shares(config, stores), file=sys.stderr)
    scores, live = {}, None
    if guidance.needs_teacher and config.teacher.mode == "live":
        texts = None
        if not guidance.needs_same_vocabulary:
            kept = {
                name: kept_texts(corpus(name), data.cache, show_progress=show_progress)
                for name in stores
            }
            for name, store in stores.items():
                _check_same_texts(store, kept[name])
            texts = MixedPieces(list(kept.values()), rows.document_ends)
        live = LiveTeacherInputs(teacher, texts)
    elif guidance.needs_teacher:
        folders = config.teacher.scores_of(len(stores))
        for (name, store), folder in zip(stores.items(), folders, strict=True):
            of_name = partial(corpus, name)
            scored = teacher.scores(of_name, folder, show_progress=show_progress)
            scores[name] = MatchedScores(scored, store)
            missing = scores[name].check(guidance.min_coverage, name)
            if missing and show_progress:
                print(f"{missing}; they count as unmapped", file=sys.stderr)
    scored_by = [one.store for one in scores.values()]
    _check_refused(scored_by, data.max_refused, show=show_progress)
    samples, spans = _samples(config, corpus, rows, tokenizer), None
    if samples and config.teacher.names_tokenizer:
        spans = teacher.spans
    return Inputs(
        student=config.student,
        data=data,
        guidance=guidance,
        train=config.train,
        optimizer=config.optimizer,
        evaluation=config.eval,
        output=config.output,
        options=config.as_options(),
        tokenizer=tokenizer,
        settings=settings,
        rows=rows,
        validation=validation,
        scores=scores,
        live=live,
        samples=samples,
        sample_teacher=spans,
    )


def _rows(corpus: Corpus, data: DataConfig, tokenizer: StudentTokenizer, *, show: bool) -> RowStore:
    """The rows of a corpus in the cache."""
    return prepared_rows(corpus, tokenizer, data.seq_len, data.cache, show_progress=show)[0]


def _check_same_texts(rows: RowStore, texts: TextStore) -> None:
    """A live teacher finds the text of a document by its number."""
    if rows.text_hashes != texts.text_hashes:
        raise ConfigError(
            f"data.rows: the documents of {rows.folder} are not those of data.train in its order, "
            "which a live teacher reads; use rows of `vocagno prepare`, or teacher.mode: stored"
        )


def _shares(config: Config, stores: Mapping[str, RowStore]) -> str:
    """How much of each corpus the run reads, as a sentence."""
    counts = row_counts(config.data.corpora)
    samples, cycle = config.train.steps * config.train.global_batch, sum(counts.values())
    parts = [
        f"{name}: {100 * count / cycle:.3g} % of the rows, "
        f"{samples * count / cycle / len(stores[name]):.3g} epochs"
        for name, count in counts.items()
    ]
    return "; ".join(parts)


def _student(config: Config) -> tuple[StudentTokenizer, Any]:
    student = config.student
    tokenizer = student_tokenizer(student.tokenizer_source, student.eos)
    size = tokenizer.spans.vocabulary_size
    settings = student_settings(student, size, config.data.seq_len)  # before hours of scoring
    if student.tokenizer is not None:
        check_own_tokenizer(tokenizer.spans, student.model, "student")
    return tokenizer, settings


def _check_teacher(config: Config, tokenizer: StudentTokenizer, teacher: ConfiguredTeacher) -> None:
    """Refuses a teacher that cannot be what the method needs, before anything is made."""
    options, guidance = config.teacher, config.guidance
    if guidance.needs_same_vocabulary and options.names_tokenizer:
        check_same_vocabulary(tokenizer.spans, teacher.spans, guidance.method)
    if not guidance.needs_teacher or options.model is None or options.scores is not None:
        return
    if options.mode == "live" and guidance.needs_same_vocabulary:  # it reads whole rows
        check_context(options, config.data.seq_len, "data.seq_len")
    else:
        teacher.check()


def _check_refused(stores: Sequence[RowStore | ScoreStore], share: float, *, show: bool) -> None:
    """Says what the stores omit. Raises: StoreError if that is more than this share."""
    for store in stores:
        documents, refused = (store.manifest.count(unit) for unit in ("documents", REFUSED))
        RefusalLimit(store.folder, documents, share).check(refused)
        if show:
            say_omitted(store.folder, documents, refused)


def _samples(
    config: Config,
    corpus: Callable[[str], Corpus],
    rows: MixedRows,
    tokenizer: StudentTokenizer,
) -> list[Sample]:
    if not config.draws_samples:
        return []
    samples: list[Sample] = []
    for number, name in enumerate(rows.stores):
        before = rows.first_document(number)
        chosen = choose_samples(corpus(name), tokenizer, config.data.seq_len, before)
        if not chosen and config.train.sample_every is not None:
            raise ConfigError(f"train.sample_every: the first documents of {name} are empty")
        of_corpus = f" of {name}" if len(rows.stores) > 1 else ""
        samples += [replace(sample, title=sample.title + of_corpus) for sample in chosen]
    return samples
