"""The teacher reads a corpus once; its losses are stored on the bytes of the text.

M: teacher tokens of a document, B: windows of a batch, T: tokens read of a window.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vocagno.config import TeacherConfig
from vocagno.corpus import Corpus, CorpusShard, text_hash
from vocagno.scores import KIND, UNIT, VERSION, DocumentScores, write_scores
from vocagno.token_spans import TokenSpans
from vocagno.training.head import chunked_nll, hidden_states, language_head
from vocagno.training.loading import (
    check_positions,
    check_vocabulary,
    load_teacher,
    teacher_prefix,
    torch_dtype,
)
from vocagno.training.losses import causal_shift
from vocagno.training.stores import StoreKind, make_store

SCORES = StoreKind(KIND, VERSION, UNIT, "scoring")


@dataclass(frozen=True, slots=True)
class Window:
    """A run of one document's tokens that the teacher reads at once."""

    document: int
    start: int
    stop: int
    score_from: int
    """First token of the document whose loss is taken from this window."""


def windows(document: int, num_tokens: int, capacity: int, min_context: int) -> Iterator[Window]:
    """Cuts a document into overlapping windows of at most `capacity` tokens.

    Every token is scored once, and after the first window with at least `min_context` tokens of
    its document before it.
    """
    if not 0 < min_context < capacity:
        raise ValueError(f"min_context must be in [1, {capacity}), got {min_context}")
    start = score_from = 0
    while score_from < num_tokens:
        stop = min(start + capacity, num_tokens)
        yield Window(document, start, stop, score_from)
        start, score_from = stop - min_context, stop


class Teacher:
    """A causal language model with its tokenizer, giving one loss a token.

    Every window starts with the teacher's BOS, if it has one; a document's first token has a loss
    only then.
    """

    def __init__(self, config: TeacherConfig, spans: TokenSpans, device: torch.device) -> None:
        self.config, self.spans, self.device = config, spans, device
        self.prefix = np.array(teacher_prefix(config, spans), np.int64)
        self.model = load_teacher(config, device)
        check_vocabulary(self.model, spans.vocabulary_size, "teacher")
        check_positions(self.model, config.context, "teacher.context", "teacher")
        self.head = language_head(self.model)

    def score(
        self, texts: list[str], advance: Callable[[float], None] = lambda fraction: None
    ) -> list[DocumentScores]:
        """Losses and spans of each text, read on its own; `advance` is told how far it is."""
        tokens = self.spans.encode(texts)
        ids = [tokens.ids[tokens.text(i)].astype(np.int64) for i in range(len(tokens))]
        nll = [np.full(len(document), np.nan, np.float32) for document in ids]
        scored = 0
        for batch in self._batches(ids):
            for window, losses in zip(batch, self._read(batch, ids), strict=True):
                # A first token without a prefix is never asked for and keeps its NaN.
                nll[window.document][window.stop - len(losses) : window.stop] = losses
                scored += len(losses)
            advance(scored / len(tokens.ids))
        return [_scored(tokens.spans[tokens.text(i)], losses) for i, losses in enumerate(nll)]

    def _batches(self, ids: list[NDArray[np.int64]]) -> Iterator[list[Window]]:
        """Windows of like length together, so that little of a batch is padding."""
        capacity = self.config.context + 1 - len(self.prefix)  # the last token is not read
        cut = [
            window
            for number, document in enumerate(ids)
            for window in windows(number, len(document), capacity, self.config.min_context)
        ]
        cut.sort(key=lambda window: window.start - window.stop)
        batch: list[Window] = []
        for window in cut:
            longest = (batch or [window])[0]
            width = longest.stop - longest.start + len(self.prefix)
            if batch and width * (len(batch) + 1) > self.config.batch_tokens:
                yield batch
                batch = []
            batch.append(window)
        if batch:
            yield batch

    def _read(
        self, batch: list[Window], ids: list[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.float32]]:
        """The losses of the tokens that each window scores."""
        sequences = [
            np.concatenate([self.prefix, ids[w.document][w.start : w.stop]]) for w in batch
        ]
        width = max(len(sequence) for sequence in sequences)
        padded_BT = np.zeros((len(batch), width), np.int64)
        scored_BT = np.zeros((len(batch), width), bool)
        for row, (window, sequence) in enumerate(zip(batch, sequences, strict=True)):
            padded_BT[row, : len(sequence)] = sequence
            first = len(self.prefix) + window.score_from - window.start
            scored_BT[row, first : len(sequence)] = True
        inputs_BT, labels_BT = causal_shift(torch.from_numpy(padded_BT).to(self.device))
        _, asked_BT = causal_shift(torch.from_numpy(scored_BT).to(self.device))
        losses = self._nll(inputs_BT, labels_BT, asked_BT)
        counts = asked_BT.sum(1).tolist()
        yield from np.split(losses, np.cumsum(counts)[:-1])

    @torch.inference_mode()
    def _nll(self, inputs_BT: Tensor, labels_BT: Tensor, asked_BT: Tensor) -> NDArray[np.float32]:
        """Losses of the labels asked for, row by row. Padding stands at the end, so that no token
        asked for attends to it and no mask is needed."""
        if not inputs_BT.shape[1]:
            return np.empty(0, np.float32)
        states = hidden_states(self.model, inputs_BT)[asked_BT]
        nll: NDArray[np.float32] = chunked_nll(states, self.head, labels_BT[asked_BT]).cpu().numpy()
        return nll


def _scored(spans: NDArray[np.int32], nll: NDArray[np.float32]) -> DocumentScores:
    """Tokens that stand for no text (a lone dummy prefix) guide nobody: they get no loss."""
    empty = spans[:, 0] >= spans[:, 1]
    return DocumentScores(spans, np.where(empty, np.nan, nll).astype(np.float16))


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
    config: TeacherConfig,
    spans: TokenSpans,
    made_from: dict[str, Any],
    device: torch.device,
    *,
    show_progress: bool,
) -> None:
    """Scores a corpus into a store; what is there already stays, and processes share the rest.

    The teacher is loaded when the first shard is to be scored, so never if all are there.
    """
    teacher: list[Teacher] = []

    def make(
        shard: CorpusShard,
        path: Path,
        metadata: dict[str, Any],
        advance: Callable[[float], None],
    ) -> None:
        if not teacher:
            teacher.append(Teacher(config, spans, device))
        texts = corpus.texts(shard)
        hashes = [text_hash(text) for text in texts]
        write_scores(path, hashes, teacher[0].score(texts, advance), metadata)

    make_store(corpus, folder, SCORES, made_from, make, show_progress=show_progress)
