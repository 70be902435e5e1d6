"""Estimates what scoring and a run take, from a sample of the text and a short burst of work."""

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import torch

from vocagno.config.options import Config, EvaluationConfig
from vocagno.data.corpus import Corpus, scan
from vocagno.data.prepare import prepare_rows, scan_with_progress
from vocagno.data.store.format import MANIFEST
from vocagno.errors import require
from vocagno.system.progress import peak_megabytes
from vocagno.teacher.candidate_frames import CANDIDATE_BYTES
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.score_store import DocumentScores, write_scores
from vocagno.teacher.scoring import Teacher
from vocagno.tokens.student_tokenizer import StudentTokenizer
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.training.inputs import bucket_tables, further_teachers, resolve, resolve_student
from vocagno.training.loop import Training

DEVICES = (1, 8, 64)
"""The numbers of devices for which hours are estimated."""
SHARDS = 16
"""The most shards, evenly spaced, from which a sample is taken."""
_SAMPLE_BYTES = 2_000_000
"""The bytes of text of a sample, divided among its shards."""
_SECONDS = 20.0
"""Seconds after which no further part of a measured burst begins."""
_MICRO_BATCHES = 4
"""The most micro-batches in a step of the burst on an accelerator; a CPU takes one."""
_BYTES_A_TOKEN = 4
"""The bytes of text that make a token, by which the text of a training burst is cut to size."""


class CorpusSample:
    """Documents from the beginning of evenly spaced shards of a corpus."""

    def __init__(self, corpus: Corpus) -> None:
        """Raises: CorpusError if the corpus has changed since it was scanned."""
        self.corpus = corpus
        self.texts: list[str] = []
        self.prompt_bytes: list[int] = []
        self.shards: list[int] = []
        """The number of each document's shard, among the shards that were read."""
        count = min(SHARDS, len(corpus.shards))
        for number in range(count):
            # Evenly spaced, as a corpus may be sorted: its first documents may be unlike all
            # others.
            documents = corpus.read_shard(corpus.shards[number * len(corpus.shards) // count])
            ends = np.cumsum([len(text.encode()) for text in documents.texts])
            end = max(1, int(np.searchsorted(ends, _SAMPLE_BYTES / count, side="right")))
            self.texts += documents.texts[:end]
            self.prompt_bytes += documents.prompt_bytes[:end]
            self.shards += [number] * len(documents.texts[:end])

    def tokens(self, spans: TokenSpans) -> tuple[int, float, TokenizedTexts]:
        """Estimates the tokens of the corpus from the ratio of tokens to bytes in the sample.

        Returns: the estimate; its standard error, from the spread over the shards; the tokens of
            the sample.
        """
        encoded, _ = spans.try_encode(self.texts)
        counts = np.bincount(self.shards, np.diff(encoded.cu_seqlens))
        sizes = np.bincount(self.shards, [len(text.encode()) for text in self.texts])
        sample_bytes, all_bytes = max(1, sizes.sum()), max(1, self.corpus.text_bytes)
        # The standard error of a ratio of sums (tokens over bytes) with shards as the sampled
        # units, because documents of one shard may be alike.
        residual = counts - counts.sum() / sample_bytes * sizes
        # The last factor is 0 for a sample that is the whole corpus, which leaves no error.
        unread = 1 - sample_bytes / all_bytes
        variance = (residual**2).sum() * len(sizes) / max(1, len(sizes) - 1) * unread
        scale = all_bytes / sample_bytes
        return round(counts.sum() * scale), math.sqrt(variance) * scale, encoded

    def write(self, path: Path, most_bytes: int, *, cut: bool) -> None:
        """Writes documents of the sample as JSON Lines until they have `most_bytes` of text.

        At least one document is written. Args: cut: True if a document may be cut off at that size.
        """
        size = 0
        with path.open("w", encoding="utf-8") as file:
            for text, num_prompt in zip(self.texts, self.prompt_bytes, strict=True):
                data = text.encode()
                if (size and size >= most_bytes) or not data:
                    continue
                end = max(num_prompt + 1, most_bytes - size) if cut else len(data)
                prompt = data[:num_prompt].decode()
                rest = data[num_prompt:end].decode(errors="ignore")
                fields = {"prompt": prompt, "completion": rest} if prompt else {"text": rest}
                file.write(json.dumps(fields) + "\n")
                size += min(end, len(data))


def estimate_scoring(samples: Sequence[CorpusSample], teacher: ConfiguredTeacher) -> dict[str, Any]:
    """Estimates sizes, memory and hours of scoring whole corpora: the teacher scores for seconds.

    Returns: the figures by name.
    Raises: ConfigError for a teacher that cannot score (`ConfiguredTeacher.check`), or that needs
        several processes.
    """
    require(
        not teacher.config.tensor_parallel,
        "--dry_run: measures one process, and teacher.tensor_parallel needs several; start scoring "
        "instead: it says how long it takes, and resumes after it was stopped",
    )
    teacher.check()
    sizes, encoded = _count(samples, teacher.spans)
    texts = [text for sample in samples for text in sample.texts]
    speed, scored = _scoring_burst(teacher.load(), texts)
    memory = peak_memory_mb(teacher.device)
    _say("scoring", f"{scored:,} tokens on {teacher.device}")
    token_bytes = _scores_bytes(encoded) + CANDIDATE_BYTES * teacher.config.candidates
    return sizes | {
        "store_bytes": round(token_bytes * sizes["tokens"]),
        "tokens_per_second": round(speed, 1),
        "peak_memory_mb": memory,
        **_hours(sizes["tokens"], speed),
    }


def estimate_run(config: Config, accelerator: accelerate.Accelerator) -> dict[str, Any]:
    """Estimates sizes, memory and hours of a run. It writes only the cache of corpora and buckets.

    Returns: the figures by name.
    Raises: ConfigError for what a run refuses, and under several processes; BucketError before
        anything is measured.
    """
    one_process = "--dry_run: start one process; hours are given for several devices"
    require(accelerator.num_processes == 1, one_process)
    cache, seq_len = config.data.cache, config.data.seq_len
    tokenizer, _ = resolve_student(config)
    teacher = ConfiguredTeacher(config.teacher, cache, accelerator.device)
    bucket_tables(config, tokenizer, [teacher, *further_teachers(config, accelerator.device)])
    corpora = [scan_with_progress(name, cache, show_progress=True) for name in config.data.corpora]
    samples = [CorpusSample(corpus) for corpus in corpora]
    sizes, _ = _count(samples, tokenizer.spans)
    trained = config.train.steps * config.train.global_batch * seq_len
    rows_bytes = round(sum(_rows_bytes(sample, tokenizer, seq_len) for sample in samples))
    estimate: dict[str, Any] = sizes | {"rows_bytes": rows_bytes, "trained_tokens": trained}
    scoring = None
    if config.guidance.needs_teacher and config.teacher.mode == "stored":
        folders = zip(samples, config.teacher.scores_of(len(samples)), strict=True)
        unscored = [
            sample
            for sample, folder in folders
            if folder is None and not (teacher.scores_folder(sample.corpus) / MANIFEST).is_file()
        ]
        scoring = estimate_scoring(unscored, teacher) if unscored else None
    if scoring is not None:
        # The names of the hours do not depend on the arguments.
        names = {"tokens": "teacher_tokens", "store_bytes": "scores_bytes"}
        names |= {name: f"scoring_{name}" for name in ("tokens_per_second", *_hours(0, 0))}
        estimate |= {new: scoring[old] for old, new in names.items()}
    held_out = [
        scan_with_progress(name, cache, show_progress=True)
        for name in config.data.held_out.values()
    ]
    validated = sum(CorpusSample(corpus).tokens(tokenizer.spans)[0] for corpus in held_out)
    speed, burst = _training_burst(config, samples, scoring, accelerator, validated)
    training = {f"training_{name}": value for name, value in _hours(trained, speed).items()}
    # More devices shorten steps, validation and scoring, but not what one process does.
    serial = sum(burst[f"{task}_seconds"] for task in ("loading", "checkpoints", "report"))
    shared = trained / speed + burst["validation_seconds"]
    if scoring is not None and scoring["tokens_per_second"]:
        shared += scoring["tokens"] / scoring["tokens_per_second"]
    whole = {f"run_hours_on_{n}": _three_digits((shared / n + serial) / 3600) for n in DEVICES}
    return estimate | {"training_tokens_per_second": round(speed, 1), **burst, **training, **whole}


def _say(task: str, measured: str) -> None:
    """Prints where the figures of a task come from: a sample, a measurement or an assumption."""
    print(
        f"{task}: from a sample: tokens and bytes; measured: {measured}; assumed: the speed grows "
        "in proportion to the devices",
        file=sys.stderr,
    )


def _hours(tokens: int, tokens_per_second: float) -> dict[str, float]:
    """Hours by number of devices; 0 without a speed, which a sample without tokens has not."""
    hours = tokens / tokens_per_second / 3600 if tokens_per_second else 0.0
    return {f"hours_on_{n}": _three_digits(hours / n) for n in DEVICES}


def _count(
    samples: Sequence[CorpusSample], spans: TokenSpans
) -> tuple[dict[str, int], list[TokenizedTexts]]:
    """Counts documents, bytes and (estimated) tokens of whole corpora; tokenizes their samples."""
    tokens, errors, encoded = zip(*(sample.tokens(spans) for sample in samples), strict=True)
    counts = {
        "documents": sum(sample.corpus.documents for sample in samples),
        "text_bytes": sum(sample.corpus.text_bytes for sample in samples),
        "tokens": sum(tokens),
        "tokens_standard_error": round(math.hypot(*errors)),
    }
    return counts, list(encoded)


def _scoring_burst(teacher: Teacher, texts: list[str]) -> tuple[float, int]:
    """Scores texts for some seconds. Returns: tokens a second, and how many tokens were scored.

    A scorer gives the windows of a batch at once, after the time of all of them. So parts are
    scored to their ends, each twice as large as the one before, and the speed is the largest
    part's.
    """
    windows = teacher.reader.read(texts).windows
    list(teacher.scorer.score(windows[:1]))  # the device warms up
    began, tokens, largest, speed, first, size = time.perf_counter(), 0, 0, 0.0, 0, 1
    while first < len(windows) and time.perf_counter() - began < _SECONDS:
        part, started = windows[first : first + size], time.perf_counter()
        list(teacher.scorer.score(part))
        asked = sum(len(window.ids) - window.asked_from for window in part)
        if asked > largest:
            largest, speed = asked, asked / (time.perf_counter() - started)
        tokens, first, size = tokens + asked, first + size, 2 * size
    return speed, tokens


def _scores_bytes(encoded: list[TokenizedTexts]) -> float:
    """Bytes of a token in a store of scores: those of a shard with the sampled documents."""
    spans = [
        tokens.spans[tokens.text(number)] for tokens in encoded for number in range(len(tokens))
    ]
    documents = [DocumentScores(of_text, np.zeros(len(of_text), np.float16)) for of_text in spans]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.arrow"
        write_scores(path, [bytes(16)] * len(documents), documents, {})
        return path.stat().st_size / max(1, sum(map(len, spans)))


def _rows_bytes(sample: CorpusSample, tokenizer: StudentTokenizer, seq_len: int) -> float:
    """Bytes of the rows of a corpus: those of the sample's rows, scaled to all of the text."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "sample.jsonl"
        sample.write(path, _SAMPLE_BYTES, cut=False)
        part = scan(path, max_refused=1.0)
        rows, _ = prepare_rows(part, tokenizer, seq_len, path.parent, show_progress=False)
        return rows.num_bytes * sample.corpus.text_bytes / part.text_bytes


def _training_burst(
    config: Config,
    samples: Sequence[CorpusSample],
    scoring: dict[str, Any] | None,
    accelerator: accelerate.Accelerator,
    validated: int,
) -> tuple[float, dict[str, Any]]:
    """Trains on the sample for some seconds.

    Args:
        scoring: the estimate of scoring, if scoring is part of the run.
        validated: held-out tokens.
    Returns: tokens a second in rows that are full, and the other figures of the burst by name.
    """
    is_cpu, micro_batch = accelerator.device.type == "cpu", config.train.micro_batch
    micro_batches = min(1 if is_cpu else _MICRO_BATCHES, accelerator.gradient_accumulation_steps)
    accelerator.gradient_accumulation_steps = micro_batches
    global_batch = micro_batch * micro_batches
    num_tokens = float((2 * global_batch + len(samples)) * config.data.seq_len)
    if scoring is not None:  # the sample is scored first, which must not take longer than the burst
        num_tokens = min(num_tokens, _SECONDS * scoring["tokens_per_second"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpora: dict[str, float] = {}
        most_bytes = round(num_tokens * _BYTES_A_TOKEN / len(samples))
        for sample, weight in zip(samples, config.data.corpora.values(), strict=True):
            path = folder / f"{len(corpora)}.jsonl"
            # Stored scores are found by a hash of the text, so it must be whole.
            is_cut = config.teacher.scores is None and not config.teacher.also
            sample.write(path, most_bytes, cut=is_cut)
            corpora[str(path)] = weight
        data = replace(config.data, train=corpora, rows=None, validation=None)
        train = replace(config.train, sample_every=None, log_with=[])
        sampled = replace(
            config,
            data=replace(data, cache=folder / "cache"),
            train=replace(train, global_batch=global_batch),
            eval=EvaluationConfig(),
            output=folder / "run",
        )
        inputs = resolve(sampled, accelerator.device, show_progress=False)
        began = time.monotonic()
        training = Training(inputs, accelerator, run="")  # nothing of it is resumed
        loading = time.monotonic() - began
        reset_peak_memory(accelerator.device)  # the teacher that scored the sample needed more
        entry = training.burst(_SECONDS)
        # The last row of each corpus is padded: many of a sample are, and few of whole corpora.
        stores = inputs.rows.stores.values()
        places = config.data.seq_len * sum(map(len, stores))
        filled = sum(store.num_tokens for store in stores) / places
        memory = peak_memory_mb(accelerator.device)
        other_tasks = _measure_other_tasks(config, training, validated)
    steps = f"steps of {micro_batches} micro-batches of {micro_batch} rows on {accelerator.device}"
    # How long answers become is the model's own affair, and not to be known from a burst.
    not_counted = "" if config.eval.every is None else "; not counted: the benchmarks of eval.every"
    _say("training", f"{entry['tokens']:,} tokens in {steps}{not_counted}")
    figures = {
        "kept_fraction": round(entry["kept_fraction"], 4),
        "peak_memory_mb": memory,
        "loading_seconds": _three_digits(loading),
        **other_tasks,
    }
    return entry["tokens_per_s"] / filled, figures


def _measure_other_tasks(config: Config, training: Training, validated: int) -> dict[str, Any]:
    """Measures once each task of a run besides its steps.

    Returns: by name, the seconds of all validations, of all checkpoints with the final model, and
        of the samples of the report; the bytes of the checkpoints that are kept.
    """
    train, validation = config.train, 0.0
    if validated:
        # The loop also validates at the end, and before the first step of a trained student.
        times = math.ceil(train.steps / train.eval_every) + (config.student.model is not None)
        measured = training.validate(training.inputs.rows.stores)
        share = validated / max(1, measured["validation_tokens"])
        validation = times * share * measured["validation_seconds"]
    began = time.monotonic()
    # Written to the temporary folder of the estimate: its disk may be another one than that of
    # `output`.
    training.checkpoints.save(1)
    seconds = time.monotonic() - began
    files = [path for path in training.checkpoints.folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    # At the end the weights are written again, as the final model.
    model = sum(path.stat().st_size for path in files if path.suffix == ".safetensors")
    saved = math.ceil(train.steps / train.checkpoint_every)
    began = time.monotonic()
    if training.sampler is not None:
        training.sampler.passages(training.student, training.accelerator.device)
    return {
        "validation_seconds": _three_digits(validation),
        "checkpoints_seconds": _three_digits(seconds * (saved + model / size)),
        "report_seconds": _three_digits(time.monotonic() - began),
        "checkpoints_bytes": min(saved, train.keep_checkpoints) * size + model,
    }


def _three_digits(number: float) -> float:
    """Rounds to three digits, not decimals: a task may take milliseconds, or days."""
    return float(f"{number:.3g}")


def reset_peak_memory(device: torch.device) -> None:
    """Begins a new measurement of `peak_memory_mb`; has no effect on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_mb(device: torch.device) -> int:
    """Peak memory in MiB: of the device since `reset_peak_memory`; on a CPU, of the process."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    return round(peak_megabytes() or 0)
