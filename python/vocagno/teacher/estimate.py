"""What scoring takes, from a sample of the text, and a short measured burst or a GPU's peak."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vocagno.data.sample import CorpusSample
from vocagno.errors import ConfigError, require
from vocagno.models.loading import teacher_settings
from vocagno.models.throughput import USED, named_peak, reading_flops, unloaded
from vocagno.system.progress import peak_megabytes
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.corpus_scores import Teacher
from vocagno.teacher.scores import DocumentScores, write_scores
from vocagno.tokens.token_spans import TokenizedTexts

_SECONDS = 20.0
"""Of the measured burst."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of whole corpora under one teacher."""

    documents: int
    """Counted."""
    text_bytes: int
    """Counted."""
    tokens: int
    """From the sample."""
    tokens_error: int
    """Standard error of `tokens`."""
    store_bytes: int
    """From the sample."""
    tokens_per_second: float
    """Of one device."""
    measured_tokens: int | None
    """Tokens of the burst; None where the speed follows from a GPU's peak."""
    peak_memory_mb: int
    """In MiB, of the device, or of the process on a CPU, with the settings at hand; of a GPU that
    is only named that of the weights."""

    def hours(self, devices: int) -> float:
        """On so many devices, if the speed grows in proportion."""
        return hours(self.tokens, self.tokens_per_second, devices)


def hours(tokens: int, tokens_per_second: float, devices: int) -> float:
    """Hours on so many devices, if the speed grows in proportion; none without a speed, as of a
    sample in which no token is to be scored."""
    return tokens / tokens_per_second / devices / 3600 if tokens_per_second else 0.0


def estimate(
    samples: Sequence[CorpusSample], teacher: ConfiguredTeacher, gpu: str | None = None
) -> Estimate:
    """Loads the teacher and scores for some seconds; for a named GPU loads nothing.

    Args:
        gpu: a name of `PEAK_BF16`.
    Raises: as `ConfiguredTeacher.check`; ConfigError for a GPU whose peak is not known, and for a
        burst of a teacher that needs several processes.
    """
    require(
        gpu is not None or not teacher.config.tensor_parallel,
        "--dry_run: measures one process, and teacher.tensor_parallel needs several; compute the "
        "hours with --gpu NAME instead, such as --gpu H100",
    )
    teacher.check()
    found = [sample.tokens(teacher.spans) for sample in samples]
    encoded = [part for tokens in found for part in tokens.encoded]
    tokens = sum(one.count for one in found)
    if gpu is None:
        texts = [text for sample in samples for part in sample.parts for text in part]
        speed, measured = _burst(teacher.load(), texts)
        memory = peak_memory_mb(teacher.device)
    else:
        speed, memory, measured = *_computed(teacher, gpu), None
    return Estimate(
        documents=sum(sample.corpus.documents for sample in samples),
        text_bytes=sum(sample.corpus.text_bytes for sample in samples),
        tokens=tokens,
        tokens_error=round(sum(one.error**2 for one in found) ** 0.5),
        store_bytes=round(_bytes_a_token(encoded) * tokens),
        tokens_per_second=speed,
        measured_tokens=measured,
        peak_memory_mb=memory,
    )


def _computed(teacher: ConfiguredTeacher, gpu: str) -> tuple[float, int]:
    """Tokens a second of a named GPU, and the MiB of the weights in bfloat16."""
    peak = named_peak(gpu)
    if teacher.server is not None:
        raise ConfigError("--gpu: the weights are behind teacher.server; omit it, to measure")
    model = unloaded(teacher_settings(teacher.config))
    flops = reading_flops(model, teacher.config.context)
    return peak * USED / flops, round(2 * model.num_parameters() / 2**20)


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


def reset_peak_memory(device: torch.device) -> None:
    """Lets `peak_memory_mb` forget what was released before; not on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> int:
    """Peak memory in MiB: of the device since `reset_peak_memory`, or of the process on a CPU."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    return round(peak_megabytes() or 0)
