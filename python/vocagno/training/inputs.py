"""The inputs of a run: prepared rows and teacher scores, made where missing.

`resolve` checks a configuration against its tokenizers, models and texts; one function makes each
input. Every tokenizer is built once, and every identity of weights is computed once.
"""

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from vocagno.config.options import Config, row_counts
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus, read_batches, text_hash
from vocagno.data.corpus_files import CorpusError
from vocagno.data.prepare import open_rows, prepare_rows, prepare_texts, scan_with_progress
from vocagno.data.rows import MixedPieces, MixedRows, RowStore
from vocagno.data.store.format import REFUSED, RefusalLimit, say_omitted
from vocagno.errors import require
from vocagno.guidance.bucket_loss import WITHOUT_ENTROPY
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.methods import method_of
from vocagno.guidance.pieces import SeveralTeachers, StoredScores
from vocagno.models.loading import check_context, student_settings
from vocagno.models.own_tokenizers import (
    check_own_tokenizer,
    check_same_vocabulary,
    tokenizer_of_student,
)
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import MatchedScores, ScoreStore
from vocagno.tokens.buckets import Buckets, buckets
from vocagno.tokens.student_tokenizer import StudentTokenizer
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training.sample_pages import Sample, choose_samples, samples_of_rows
from vocagno.training.validation import check_prompts

_MUCH_PADDING = 0.25
"""The share of padding in the rows of a corpus above which a run warns."""
_MANY_EPOCHS = 20
"""Epochs of a corpus above which a run warns; text gains little after four (arXiv 2305.16264)."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The configuration of a run, and the tokenizers and stores that it names."""

    config: Config
    tokenizer: StudentTokenizer
    settings: Any
    """The transformers configuration of the student."""
    rows: MixedRows
    validation: Mapping[str, RowStore]
    """Held-out rows by name; there may be none."""
    scores: Mapping[str, MatchedScores]
    """The teacher's stored scores by corpus; empty for naive training and with a live teacher."""
    further_scores: Sequence[Mapping[str, MatchedScores]] = ()
    """The stored scores of each further teacher (`teacher.also`), by corpus."""
    live_teacher: ConfiguredTeacher | None = None
    """The teacher, if it is live."""
    live_texts: MixedPieces[tuple[str, int]] | None = None
    """The texts that a live teacher reads; None if it reads the rows themselves."""
    samples: Sequence[Sample] = ()
    """Documents for which the run shows what the teacher chooses."""
    sample_teacher: TokenSpans | None = None
    """The teacher's tokenizer, for its tokens in `samples`; None if it is not configured."""
    targets: BucketTargets | None = None
    """The buckets of both vocabularies, for `distill`."""

    def made_from(self) -> dict[str, dict[str, Any]]:
        """The facts that determine the stores and the teacher, by name.

        The names and facts are kept in `materials.json`; a resumed run must have the same. Held-out
        rows are among them, because the losses of two texts make no curve.
        """
        made_from = _facts_of_rows(self.rows, self.validation)
        for number, scores in enumerate((self.scores, *self.further_scores), 1):
            kind = "scores" if number == 1 else f"scores of teacher {number}"
            stores = {name: matched.store for name, matched in scores.items()}
            made_from |= _facts(kind, stores)
        if self.live_teacher is not None:
            made_from["live teacher"] = self.live_teacher.made_from
        if self.targets is not None:
            made_from["buckets"] = {"key": self.targets.table.key}
        if self.config.guidance.is_own_rule:
            # The whole module: a rule may read its constants and functions.
            rule_class = type(method_of(self.config.guidance))
            rule = inspect.getsource(inspect.getmodule(rule_class) or rule_class)
            made_from["rule"] = {"source": text_hash(rule).hex()}
        return made_from

    def stored_scores(self) -> StoredScores | None:
        """The scores of all corpora as one source; None without stored scores."""
        if not self.scores:
            return None
        ends = self.rows.document_ends
        teachers = self.scores, *self.further_scores
        mixed = [MixedPieces(list(scores.values()), ends) for scores in teachers]
        return SeveralTeachers(mixed) if self.further_scores else mixed[0]


def _facts(kind: str, stores: Mapping[str, RowStore | ScoreStore]) -> dict[str, dict[str, Any]]:
    """The facts that determine stores of one kind, by the kind and, of several, the corpus."""
    facts = {}
    for name, store in stores.items():
        key = kind if len(stores) == 1 else f"{kind} of {name}"
        facts[key] = {"text": store.text_hashes, **store.manifest.made_from}
        if refused := store.manifest.count(REFUSED):  # by this release of the tokenizer
            facts[key][REFUSED] = refused
    return facts


def _facts_of_rows(
    rows: MixedRows, validation: Mapping[str, RowStore]
) -> dict[str, dict[str, Any]]:
    """The facts that determine all rows of a run, by name."""
    return _facts("rows", rows.stores) | _facts("held-out rows", validation)


def resolve(
    config: Config,
    device: torch.device,
    *,
    show_progress: bool,
    check: Callable[[Mapping[str, Mapping[str, Any]]], object] = lambda facts: None,
) -> Inputs:
    """Checks the configuration and opens the stores of a run.

    The processes make stores that are not in the cache together. None of them waits inside a
    collective: scoring may take hours, a collective times out in minutes.

    Args: check: called with the facts of the rows (`Inputs.made_from`) before a text is scored; it
        may refuse them.
    Raises: ConfigError for a student or teacher that cannot be what the run needs; StoreError if
        more of the text than `guidance.min_coverage` allows has no scores.
    """
    # Cheap checks come before hours of work: tokenizers, teacher and buckets can refuse a run
    # before a token is scored.
    corpora = _Corpora(config, show_progress)
    tokenizer, settings = resolve_student(config)
    teacher = _teacher(config, tokenizer, device)  # refused before rows and scores are made
    further = further_teachers(config, device)
    tables = bucket_tables(config, tokenizer, [teacher, *further])  # before hours of scoring
    rows, validation = _rows(corpora, tokenizer), _validation(corpora, tokenizer)
    if show_progress:
        print(f"device: {device}; {_shares(config, rows.stores)}", file=sys.stderr)
        _warn_of_epochs(config, rows.stores)
        _warn_of_padding(config, rows.stores)
        _warn_of_known_text(rows.stores, validation)
        if config.guidance.warning:
            print(f"warning: {config.guidance.warning}", file=sys.stderr)
    check(_facts_of_rows(rows, validation))
    # First those that are there: one that does not fit is named before hours of scoring.
    further_scores = [_scores(corpora, rows, another, "teacher.also.scores") for another in further]
    scores, live_texts = _scores(corpora, rows, teacher), _live_texts(corpora, rows)
    targets = _targets(config, tables, [teacher, *further], [scores, *further_scores])
    samples = _samples(corpora, rows, tokenizer)
    return Inputs(
        config=config,
        tokenizer=tokenizer,
        settings=settings,
        rows=rows,
        validation=validation,
        scores=scores,
        further_scores=further_scores,
        live_teacher=teacher if config.has_live_teacher else None,
        live_texts=live_texts,
        samples=samples,
        sample_teacher=teacher.spans if samples and config.teacher.names_tokenizer else None,
        targets=targets,
    )


class _Corpora:
    """The corpora of a run by name; each is scanned once, when it is first needed."""

    def __init__(self, config: Config, show: bool) -> None:
        self.config, self.show = config, show
        self._scanned: dict[str, Corpus] = {}

    def __getitem__(self, name: str) -> Corpus:
        if name not in self._scanned:
            data = self.config.data
            self._scanned[name] = scan_with_progress(
                name, data.cache, show_progress=self.show, max_refused=data.max_refused
            )
        return self._scanned[name]

    def rows(self, name: str, tokenizer: StudentTokenizer) -> RowStore:
        """The rows of a corpus in the cache, where they are made if they are missing."""
        data = self.config.data
        store, _ = prepare_rows(
            self[name], tokenizer, data.seq_len, data.cache, show_progress=self.show
        )
        return store

    def check_rows(self, stores: Mapping[str, RowStore], option: str) -> None:
        """Checks that stores omit little (`check_refused`) and hold rows.

        Raises: StoreError; ConfigError, which names the option, for a store without rows.
        """
        self.check_refused(list(stores.values()))
        for name, store in stores.items():
            require(len(store) > 0, f"{option}: {name} holds no text to predict")

    def check_refused(self, stores: Sequence[RowStore | ScoreStore]) -> None:
        """Prints how many documents each store omits, because its tokenizer refused them.

        Raises: StoreError if they are more than `data.max_refused` allows.
        """
        for store in stores:
            documents, refused = (store.manifest.count(unit) for unit in ("documents", REFUSED))
            RefusalLimit(store.folder, documents, self.config.data.max_refused).check(refused)
            if self.show:
                say_omitted(store.folder, documents, refused)


def resolve_student(config: Config) -> tuple[StudentTokenizer, Any]:
    """The student's tokenizer and its transformers configuration, which fit each other and the
    benchmarks of the run.
    Raises: ConfigError or InputError for those that do not."""
    student = config.student
    tokenizer = tokenizer_of_student(student)
    size = tokenizer.spans.vocabulary_size
    prefix = tokenizer.spans.prefix_ids
    ids = {"eos_token_id": tokenizer.eos_id, "bos_token_id": prefix[0] if prefix else None}
    settings = student_settings(student, size, config.data.seq_len, **ids)  # before hours of work
    # A tokenizer that is not named is that of the model's own folder.
    if student.tokenizer is not None:
        check_own_tokenizer(tokenizer.spans, student.model, "student")
    check_prompts(config.eval, tokenizer.spans, settings)
    return tokenizer, settings


def _teacher(
    config: Config, tokenizer: StudentTokenizer, device: torch.device
) -> ConfiguredTeacher:
    """The teacher. Raises: ConfigError for one that cannot give what the method needs."""
    options, guidance = config.teacher, config.guidance
    teacher = ConfiguredTeacher(options, config.data.cache, device)
    if guidance.needs_same_vocabulary and options.names_tokenizer:
        check_same_vocabulary(tokenizer.spans, teacher.spans, guidance.method)
    if guidance.needs_teacher and options.model is not None and options.scores is None:
        if options.mode == "live" and guidance.needs_same_vocabulary:  # it reads whole rows
            check_context(options, config.data.seq_len, "data.seq_len")
            if warning := options.warning_of_rows(guidance.method):
                warnings.warn(warning, stacklevel=2)
        else:
            teacher.check()
    return teacher


def _rows(corpora: _Corpora, tokenizer: StudentTokenizer) -> MixedRows:
    """The rows of each corpus: the stores that are named, or those in the cache."""
    data = corpora.config.data
    if data.row_stores:
        folders = zip(data.corpora, data.row_stores, strict=True)
        stores = {name: open_rows(folder, tokenizer, data.seq_len) for name, folder in folders}
    else:
        stores = {name: corpora.rows(name, tokenizer) for name in data.corpora}
    corpora.check_rows(stores, "data.train")
    if data.row_stores:
        _check_order(stores)
    return MixedRows(stores)


def _check_order(stores: Mapping[str, RowStore]) -> None:
    """Checks that no rows begin with the text of another corpus, with whose weight they would be
    mixed, and by whose name the log would call them.

    Only corpora that can be read on this machine are looked at: rows are trained on without their
    corpus, too.
    Raises: ConfigError that names the rows and the corpora.
    """
    begins = {}
    for name, store in stores.items():
        shard, row = store.locate(0)
        begins[name] = shard.text_hashes[row][0].tobytes()
    for corpus in filter(os.path.exists, stores if len(stores) > 1 else ()):
        try:
            first = text_hash(next(read_batches(corpus, batch_bytes=1))[0])
        except (CorpusError, OSError):
            continue  # a name that is not a corpus, or a pointer to one that is elsewhere
        for name, begin in begins.items():
            require(
                begin != first or name == corpus or begins[corpus] == first,
                f"data.rows: {stores[name].folder} has the place of {name}, but begins with the "
                f"first text of {corpus}; name rows in the order of data.train",
            )


def _validation(corpora: _Corpora, tokenizer: StudentTokenizer) -> dict[str, RowStore]:
    """The rows of each held-out text, by its name."""
    held_out = corpora.config.data.held_out
    stores = {name: corpora.rows(source, tokenizer) for name, source in held_out.items()}
    corpora.check_rows(stores, "data.validation")
    return stores


def _scores(
    corpora: _Corpora,
    rows: MixedRows,
    teacher: ConfiguredTeacher,
    option: str = "teacher.scores",
) -> dict[str, MatchedScores]:
    """The stored scores by corpus; empty without a teacher and with a live one.
    Args: option: the one that names the stores, for messages."""
    guidance = corpora.config.guidance
    if not guidance.needs_teacher or teacher.config.mode == "live":
        return {}
    scores = {}
    folders = teacher.config.scores_of(len(rows.stores))
    for (name, store), folder in zip(rows.stores.items(), folders, strict=True):
        corpus = partial(corpora.__getitem__, name)  # a folder of scores needs no scan of its text
        scored = teacher.scores(corpus, folder, show_progress=corpora.show, option=option)
        scores[name] = MatchedScores(scored, store, candidates=guidance.needs_candidates)
        if scores[name].warning and corpora.show:
            print(f"warning: {option}: {scores[name].warning}", file=sys.stderr)
        missing = scores[name].check(guidance.min_coverage, name)
        if missing and corpora.show:
            print(f"{missing}; they count as unmapped", file=sys.stderr)
    corpora.check_refused([matched.store for matched in scores.values()])
    return scores


def further_teachers(config: Config, device: torch.device) -> list[ConfiguredTeacher]:
    """The teachers of `teacher.also`, of which the run reads stored scores."""
    further = config.teacher.also or []
    options = [TeacherConfig(scores=also.scores, tokenizer=also.tokenizer) for also in further]
    return [ConfiguredTeacher(teacher, config.data.cache, device) for teacher in options]


def bucket_tables(
    config: Config, tokenizer: StudentTokenizer, teachers: Sequence[ConfiguredTeacher]
) -> list[Buckets]:
    """The buckets that the student shares with each teacher, for `distill`; else an empty list.

    They are made once and kept in the cache.

    Raises: BucketError for tokenizers that share too little.
    """
    if not config.guidance.needs_candidates:
        return []
    cache = config.data.cache / "buckets"
    tables = [buckets(tokenizer.spans, teacher.spans, cache=cache) for teacher in teachers]
    # Pairs were once refused after hours of scoring.
    for table in tables:
        table.check()
    return tables


def _targets(
    config: Config,
    tables: Sequence[Buckets],
    teachers: Sequence[ConfiguredTeacher],
    scores: Sequence[Mapping[str, MatchedScores]],
) -> BucketTargets | None:
    """The maker of `distill`'s targets from the candidates of all teachers; None for others.

    Raises: ConfigError for stores without candidates or entropies that are needed, with different
        numbers of candidates, or of which only some are sampled.
    """
    if not tables:
        return None
    num_candidates = []
    for number, (teacher, by_corpus) in enumerate(zip(teachers, scores, strict=True)):
        option = "teacher.also.scores" if number else "teacher.scores"
        stores = [matched.store for matched in by_corpus.values()]
        counts = {store.candidates for store in stores} or {teacher.config.candidates}
        for store in stores if config.guidance.needs_entropy else []:
            require(store.has_entropy, f"{option}: {store.folder}: {WITHOUT_ENTROPY}")
        require(
            len({store.is_sampled for store in stores}) < 2,
            f"{option}: the candidates of some corpora are sampled, and those of others are "
            "the most likely ones; score all corpora alike, with or without --sampled",
        )
        require(
            len(counts) == 1 and 0 not in counts,
            f"{option}: have {' and '.join(map(str, sorted(counts)))} candidates a token; "
            "guidance.method: distill needs some, equally many each; score again with --candidates",
        )
        num_candidates.append(counts.pop())
    shares = [1.0, *(also.share for also in config.teacher.also or [])]
    return BucketTargets(tables, num_candidates, shares)


def _live_texts(corpora: _Corpora, rows: MixedRows) -> MixedPieces[tuple[str, int]] | None:
    """The texts of all corpora by number of document, for a live teacher; None if it reads rows.

    Raises: ConfigError for rows of other texts.
    """
    config = corpora.config
    if not config.has_live_teacher or config.guidance.needs_same_vocabulary:
        return None
    sources = []
    for name, store in rows.stores.items():
        texts = prepare_texts(corpora[name], config.data.cache, show_progress=corpora.show)
        require(
            store.text_hashes == texts.text_hashes,
            f"data.rows: the documents of {store.folder} are not those of data.train in its order, "
            "which a live teacher reads; use rows of `vocagno prepare`, or teacher.mode: stored",
        )
        sources.append(texts)
    return MixedPieces(sources, rows.document_ends)


def _shares(config: Config, stores: Mapping[str, RowStore]) -> str:
    """A sentence on how much of each corpus the run reads."""
    counts = row_counts(config.data.corpora)
    samples, cycle = config.train.steps * config.train.global_batch, sum(counts.values())
    parts = [
        f"{name}: {100 * count / cycle:.3g} % of the rows, "
        f"{samples * count / cycle / len(stores[name]):.3g} epochs"
        for name, count in counts.items()
    ]
    return "; ".join(parts)


def _warn_of_epochs(config: Config, stores: Mapping[str, RowStore]) -> None:
    """Prints a warning if the run reads a corpus so often that it learns it by heart."""
    counts = row_counts(config.data.corpora)
    samples, cycle = config.train.steps * config.train.global_batch, sum(counts.values())
    for name, count in counts.items():
        store = stores[name]
        if (epochs := samples * count / cycle / len(store)) > _MANY_EPOCHS:
            print(
                f"warning: data.train: the run reads {name} {epochs:,.0f} times, which has "
                f"{store.num_tokens:,} tokens in {len(store):,} rows; is this the right file? "
                "Give more text, or lower train.steps",
                file=sys.stderr,
            )


def _warn_of_padding(config: Config, stores: Mapping[str, RowStore]) -> None:
    """Prints a warning if a step would learn much less than its rows could hold."""
    for name, store in stores.items():
        share = 1 - store.num_tokens / (len(store) * config.data.seq_len)
        # A single short document has nothing to be joined with.
        if share > _MUCH_PADDING and len(store.text_hashes) > 1:
            print(
                f"warning: data.train: {share:.0%} of the rows of {name} is padding, because each "
                "file, and each shard of one, ends in a padded row; join small files into one, or "
                "lower data.seq_len",
                file=sys.stderr,
            )


def _warn_of_known_text(stores: Mapping[str, RowStore], validation: Mapping[str, RowStore]) -> None:
    """Prints a warning if held-out text is text that trains. Whole shards are compared, by hash."""
    training_texts = {text for store in stores.values() for text in store.text_hashes}
    for name, store in validation.items():
        if shared := sum(text in training_texts for text in store.text_hashes):
            print(
                f"warning: data.validation: {shared} of {len(store.text_hashes)} shards of {name} "
                "have the text of data.train, so the loss there is not of held-out text; hold "
                "other documents out",
                file=sys.stderr,
            )


def _samples(corpora: _Corpora, rows: MixedRows, tokenizer: StudentTokenizer) -> list[Sample]:
    """The documents for which the run shows what the teacher chooses; empty if it shows none.

    Raises: ConfigError if they are asked for, and the first documents are empty, or rows that
        `data.rows` names are not of them.
    """
    config = corpora.config
    # Stores of rows and of scores need no text: a run on both does not read it for its report.
    at_the_end = not (config.data.rows and config.teacher.scores)
    if not (config.chooses_tokens and (at_the_end or config.train.sample_every is not None)):
        return []
    samples: list[Sample] = []
    for number, (name, store) in enumerate(rows.stores.items()):
        first_document = rows.first_document(number)
        documents = choose_samples(corpora[name], tokenizer, config.data.seq_len, first_document)
        if config.data.rows is not None:
            documents = samples_of_rows(documents, store, first_document)
        require(
            bool(documents) or config.train.sample_every is None,
            f"train.sample_every: the first documents of {name} are empty, or not those of "
            "data.rows, in whose order scores are found; give the text of the rows, or omit it",
        )
        of_corpus = f" of {name}" if len(rows.stores) > 1 else ""
        samples += [replace(sample, title=sample.title + of_corpus) for sample in documents]
    return samples
