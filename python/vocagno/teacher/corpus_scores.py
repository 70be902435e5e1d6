"""Scores a corpus once with the teacher; the losses are stored by the bytes of the text.

M: teacher tokens of a document.
"""

import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import Corpus, CorpusShard, ShardTexts
from vocagno.data.store.building import Advance, Part, make_store
from vocagno.data.store.tally import Made
from vocagno.errors import ConfigError
from vocagno.models.loading import (
    check_context,
    check_vocabulary,
    load_teacher,
    teacher_prefix,
    torch_dtype,
)
from vocagno.system.collectives import Together
from vocagno.teacher.scorer import Scorer, TransformersScorer
from vocagno.teacher.scores import KIND, SCORES, VERSION, DocumentScores, write_scores
from vocagno.teacher.windows import TextReader
from vocagno.tokens.token_spans import TokenSpans

OF_SERVER = "of the server"
"""In place of a type of weights that only the server knows."""


class Teacher:
    """A tokenizer and a scorer: gives one loss per token of a text."""

    def __init__(self, scorer: Scorer, reader: TextReader) -> None:
        self.scorer = scorer
        self.reader = reader
        self._is_doubted = False

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Losses and spans of each text, read independently; calls `advance` with the progress. A
        text whose tokens cannot be placed has none, and says why (`DocumentScores.missing`)."""
        windowed = self.reader.read(texts)
        tokens = windowed.tokens
        nll: NDArray[np.float32] = np.full(len(tokens.ids), np.nan, np.float32)
        scored = 0
        for number, losses in self.scorer.score(windowed.windows):
            nll[windowed.rows[number]] = losses
            scored += len(losses)
            advance(scored / len(tokens.ids), scored)
        self._doubt(nll[np.isfinite(nll)])
        return [
            DocumentScores.none(windowed.refused[number])
            if number in windowed.refused
            else _scored(tokens.spans[place], nll[place], windowed.is_asked[place])
            for number, place in enumerate(map(tokens.text, range(len(tokens))))
        ]

    def _doubt(self, nll: NDArray[np.float32]) -> None:
        """Warns once if the losses are worse than guessing, as with ids of another tokenizer."""
        guessing = math.log(max(2, self.reader.spans.vocabulary_size))
        if not self._is_doubted and len(nll) and nll.mean() > guessing + 1:
            self._is_doubted = True
            print(
                f"warning: the mean teacher loss is {nll.mean():.1f} nats per token, worse than "
                f"guessing ({guessing:.1f}): is this its tokenizer, and text that it knows?",
                file=sys.stderr,
            )


def load_scorer(
    config: TeacherConfig, spans: TokenSpans, device: torch.device
) -> TransformersScorer:
    """The configured model, as a scorer."""
    model = load_teacher(config, device)
    check_vocabulary(model, spans.vocabulary_size, "teacher")
    return TransformersScorer(
        model,
        batch_tokens=config.batch_tokens,
        width=config.context,
        batching=config.batching,
    )


def load_teacher_of(config: TeacherConfig, spans: TokenSpans, device: torch.device) -> Teacher:
    """The configured teacher. Raises: ConfigError as `check_context` and `text_reader`."""
    check_context(config)
    reader = text_reader(config, spans)
    return Teacher(load_scorer(config, spans, device), reader)


def text_reader(config: TeacherConfig, spans: TokenSpans) -> TextReader:
    """The configured teacher's text reader.

    Raises: ConfigError if its windows have no room for new tokens after prefix and context.
    """
    prefix = teacher_prefix(config, spans)
    if config.context + 1 - len(prefix) <= config.context_before:
        raise ConfigError(
            f"teacher.min_context {config.context_before} and {len(prefix)} prefix tokens leave no "
            f"room in teacher.context {config.context}; lower teacher.min_context"
        )
    return TextReader(spans, prefix, context=config.context, min_context=config.context_before)


def _scored(
    spans: NDArray[np.int32], nll: NDArray[np.float32], is_asked: NDArray[np.bool_]
) -> DocumentScores:
    """Tokens that were not requested get no loss. Neither do tokens whose loss is NaN or infinite
    in float16, the stored type."""
    with np.errstate(over="ignore"):
        stored = np.where(is_asked, nll, np.nan).astype(np.float16)
    failed = ~np.isfinite(stored) & is_asked
    return DocumentScores(
        spans,
        np.where(np.isfinite(stored), stored, np.float16(np.nan)),
        num_unscored=int(failed.sum()),
    )


def write_scored(
    path: Path, texts: ShardTexts, scores: list[DocumentScores], made_from: dict[str, Any]
) -> None:
    """As `write_scores`, with the documents that the teacher could not read named as refused."""
    refused = texts.refused({row: one.missing for row, one in enumerate(scores) if one.missing})
    write_scores(path, texts.hashes, scores, made_from, refused=refused)


def scores_made_from(
    config: TeacherConfig, spans: TokenSpans, weights: str, device: torch.device
) -> dict[str, Any]:
    """The inputs, apart from the text, that determine the scores."""
    engine = {} if config.engine == "transformers" else {"engine": config.engine}
    return {
        "format": f"{KIND} {VERSION}",
        "teacher": weights,
        "tokenizer": spans.fingerprint,
        "prefix": list(teacher_prefix(config, spans)),
        "context": config.context,
        "min_context": config.context_before,
        "dtype": OF_SERVER
        if config.server
        else str(torch_dtype(config.dtype, device)).removeprefix("torch."),
        "unit": "nats",
        **engine,
    }


def score_corpus(
    corpus: Corpus,
    folder: Path,
    made_from: dict[str, Any],
    load: Callable[[], Teacher],
    *,
    show_progress: bool,
    together: Together | None = None,
    part: Part | None = None,
) -> Made:
    """Scores a corpus into a store. Existing shards are kept, and processes share the others.

    Args:
        load: called before the first shard is scored, so never if all shards exist.
        together: processes that share one teacher, not the corpus.
        part: as `make_store`.
    """
    loaded = cache(load)

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        if together is not None:
            together.say(shard.name)
        found = corpus.read(shard)
        write_scored(path, found, loaded().score(found.texts, advance), made_from)

    if together is not None and not together.leads:
        shards = {shard.name: shard for shard in corpus.shards}
        while (name := together.say(None)) is not None:
            loaded().score(corpus.read(shards[name]).texts)
        return Made(0, 0, 0.0)
    made = make_store(
        corpus, folder, SCORES, made_from, make, show_progress=show_progress, part=part
    )
    if together is not None:
        together.say(None)
    return made
