"""The teacher reads a corpus once; its losses are stored on the bytes of the text.

M: teacher tokens of a document.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vocagno.config import ConfigError, TeacherConfig
from vocagno.corpus import Corpus, CorpusShard
from vocagno.scores import KIND, UNIT, VERSION, DocumentScores, ScoreShard, write_scores
from vocagno.token_spans import TokenSpans
from vocagno.training.loading import (
    check_positions,
    check_vocabulary,
    load_teacher,
    teacher_prefix,
    torch_dtype,
)
from vocagno.training.making import Advance, Made, StoreKind, make_store
from vocagno.training.scorer import Reading, Scorer, TransformersScorer
from vocagno.training.together import Together
from vocagno.training.windows import Window, windows

SCORES = StoreKind(KIND, VERSION, UNIT, ScoreShard, "scoring")


class Teacher:
    """A scorer with its tokenizer, giving one loss a token of a text.

    Every window starts with `prefix` (BOS), if there is one; a document's first token has a loss
    only then.
    """

    def __init__(
        self,
        scorer: Scorer,
        spans: TokenSpans,
        prefix: Sequence[int],
        *,
        context: int,
        min_context: int,
    ) -> None:
        self.scorer, self.spans = scorer, spans
        self.prefix = np.array(prefix, np.int64)
        self._capacity = context + 1 - len(self.prefix)  # the last token is not read
        self._min_context = min_context

    def score(
        self, texts: list[str], advance: Advance = lambda fraction, tokens: None
    ) -> list[DocumentScores]:
        """Losses and spans of each text, read on its own; `advance` is told how far it is."""
        tokens = self.spans.encode(texts)
        ids = [tokens.ids[tokens.text(i)].astype(np.int64) for i in range(len(tokens))]
        nll = [np.full(len(document), np.nan, np.float32) for document in ids]
        cut = [
            window
            for number, document in enumerate(ids)
            for window in windows(number, len(document), self._capacity, self._min_context)
        ]
        scored = 0
        for number, losses in self.scorer.read([self._reading(window, ids) for window in cut]):
            window = cut[number]
            nll[window.document][window.stop - len(losses) : window.stop] = losses
            scored += window.stop - window.score_from
            advance(scored / len(tokens.ids), scored)
        is_asked = np.arange(max(map(len, ids), default=0)) >= (not len(self.prefix))
        return [
            _scored(tokens.spans[tokens.text(i)], losses, is_asked[: len(losses)])
            for i, losses in enumerate(nll)
        ]

    def _reading(self, window: Window, ids: list[NDArray[np.int64]]) -> Reading:
        """A first token without a prefix is not asked for and keeps its NaN."""
        text = ids[window.document][window.start : window.stop]
        asked_from = len(self.prefix) + window.score_from - window.start
        return Reading(np.concatenate([self.prefix, text]), max(1, asked_from))


def load_scorer(config: TeacherConfig, spans: TokenSpans, device: torch.device) -> Scorer:
    """The configured model, as a scorer."""
    model = load_teacher(config, device)
    check_vocabulary(model, spans.vocabulary_size, "teacher")
    check_positions(model, config.context, "teacher.context", "teacher")
    return TransformersScorer(
        model,
        batch_tokens=config.batch_tokens,
        width=config.context,
        batching=config.batching,
    )


def load_teacher_of(config: TeacherConfig, spans: TokenSpans, device: torch.device) -> Teacher:
    """The configured teacher.

    Raises: ConfigError if its windows have no room for new tokens beside prefix and context.
    """
    prefix = teacher_prefix(config, spans)
    if config.context + 1 - len(prefix) <= config.min_context:
        raise ConfigError(
            f"teacher.min_context {config.min_context} leaves no room in teacher.context "
            f"{config.context} beside the {len(prefix)} tokens before a text; lower it"
        )
    return Teacher(
        load_scorer(config, spans, device),
        spans,
        prefix,
        context=config.context,
        min_context=config.min_context,
    )


def _scored(
    spans: NDArray[np.int32], nll: NDArray[np.float32], is_asked: NDArray[np.bool_]
) -> DocumentScores:
    """Tokens that stand for no text (a lone dummy prefix) guide nobody: they get no loss, nor do
    those for which the teacher gave no finite number (in float16, which is what is stored)."""
    has_text = spans[:, 0] < spans[:, 1]
    with np.errstate(over="ignore"):
        stored = np.where(has_text, nll, np.nan).astype(np.float16)
    failed = ~np.isfinite(stored) & has_text & is_asked
    return DocumentScores(
        spans, np.where(np.isfinite(stored), stored, np.float16(np.nan)),
        num_unscored=int(failed.sum()),
    )  # fmt: skip


def scores_made_from(
    config: TeacherConfig, spans: TokenSpans, weights: str, device: torch.device
) -> dict[str, Any]:
    """What decides the scores of a text, apart from the text."""
    return {
        "format": f"{KIND} {VERSION}",
        "teacher": weights,
        "tokenizer": spans.fingerprint,
        "prefix": list(teacher_prefix(config, spans)),
        "context": config.context,
        "min_context": config.min_context,
        "dtype": str(torch_dtype(config.dtype, device)).removeprefix("torch."),
        "unit": "nats",
    }


def score_corpus(
    corpus: Corpus,
    folder: Path,
    made_from: dict[str, Any],
    load: Callable[[], Teacher],
    *,
    show_progress: bool,
    together: Together | None = None,
) -> Made:
    """Scores a corpus into a store; what is there already stays, and processes share the rest.

    Args:
        load: called when the first shard is to be scored, so never if all are there.
        together: processes that share the teacher, and not the corpus.
    """
    loaded = cache(load)

    def make(shard: CorpusShard, path: Path, advance: Advance) -> None:
        if together is not None:
            together.say(shard.name)
        found = corpus.read(shard)
        write_scores(path, found.hashes, loaded().score(found.texts, advance), made_from)

    if together is not None and not together.leads:
        shards = {shard.name: shard for shard in corpus.shards}
        while (name := together.say(None)) is not None:
            loaded().score(corpus.read(shards[name]).texts)
        return Made(0, 0, 0.0)
    made = make_store(corpus, folder, SCORES, made_from, make, show_progress=show_progress)
    if together is not None:
        together.say(None)
    return made
