"""What scoring a corpus will take, from a sample of its text and a short measured burst."""

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vocagno.data.corpus import Corpus
from vocagno.system.progress import peak_megabytes
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.corpus_scores import Teacher
from vocagno.teacher.scores import DocumentScores, write_scores
from vocagno.tokens.token_spans import TokenizedTexts

_SHARDS = 16
"""From which the sample is drawn, evenly spaced."""
_SAMPLE_BYTES = 2_000_000
_SECONDS = 20.0
"""Of the measured burst."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a whole corpus under one teacher."""

    documents: int
    """Counted."""
    text_bytes: int
    """Counted."""
    tokens: int
    """From the sample."""
    tokens_error: int
    """Standard error of `tokens`, from the spread over the sampled shards."""
    store_bytes: int
    """From the sample."""
    tokens_per_second: float
    """Measured, of this process on its device."""
    measured_tokens: int
    """Tokens of the burst."""
    peak_memory_mb: int
    """In MiB, of the device, or of the process on a CPU, with the settings at hand."""

    def hours(self, devices: int) -> float:
        """On so many devices like this one, if the speed grows in proportion."""
        return self.tokens / self.tokens_per_second / devices / 3600


def estimate(corpus: Corpus, teacher: ConfiguredTeacher) -> Estimate:
    """Reads a sample of the corpus, loads the teacher and scores for some seconds.

    Raises: as `ConfiguredTeacher.check`; CorpusError if the corpus has changed since it was
        scanned.
    """
    teacher.check()
    parts = list(_sample(corpus))
    sizes = np.array([sum(len(text.encode()) for text in part) for part in parts])
    encoded = [teacher.spans.encode(part) for part in parts]
    counts = np.array([len(one.ids) for one in encoded])
    rate = counts.sum() / sizes.sum()
    residual = counts - rate * sizes  # of a ratio estimator
    error = math.sqrt((residual**2).sum() * len(parts) / max(1, len(parts) - 1)) / sizes.sum()
    speed, measured = _burst(teacher.load(), [text for part in parts for text in part])
    return Estimate(
        documents=corpus.documents,
        text_bytes=corpus.text_bytes,
        tokens=round(rate * corpus.text_bytes),
        tokens_error=round(error * corpus.text_bytes) if len(parts) < len(corpus.shards) else 0,
        store_bytes=round(_bytes_a_token(encoded) * rate * corpus.text_bytes),
        tokens_per_second=speed,
        measured_tokens=measured,
        peak_memory_mb=_peak_memory(teacher.device),
    )


def _sample(corpus: Corpus) -> Iterator[list[str]]:
    """Texts from the beginning of evenly spaced shards."""
    count = min(_SHARDS, len(corpus.shards))
    for number in range(count):
        shard = corpus.shards[number * len(corpus.shards) // count]
        texts, size = list[str](), 0
        for text in corpus.read(shard).texts:
            if texts and size + len(text.encode()) > _SAMPLE_BYTES / count:
                break
            texts.append(text)
            size += len(text.encode())
        yield texts


def _burst(teacher: Teacher, texts: list[str]) -> tuple[float, int]:
    """Tokens a second, and how many were scored. The first batch, in which the device warms up,
    counts only if there is no other."""
    windows = teacher.reader.read(texts).windows
    began = warm = time.perf_counter()
    tokens = after = 0
    for _, losses in teacher.scorer.score(windows):
        now = time.perf_counter()
        tokens += len(losses)
        if warm == began:
            warm = now
        elif now > warm:
            after += len(losses)
        if now - warm > _SECONDS:
            break
    now = time.perf_counter()
    if after > tokens / 2:
        return after / (now - warm), tokens
    return tokens / (now - began), tokens


def _bytes_a_token(encoded: list[TokenizedTexts]) -> float:
    """Of a shard with the sampled documents."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.arrow"
        documents = [
            DocumentScores(one.spans[rows], np.zeros(rows.stop - rows.start, np.float16))
            for one in encoded
            for rows in map(one.text, range(len(one)))
        ]
        write_scores(path, [bytes(16)] * len(documents), documents, {})
        return path.stat().st_size / max(1, sum(len(one.nll) for one in documents))


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    return round(peak_megabytes() or 0)
