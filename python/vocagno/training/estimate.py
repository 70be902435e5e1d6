"""What a run takes, from a sample of its text, and a short measured burst or a GPU's peak."""

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate

from vocagno.config.evaluation import EvaluationConfig
from vocagno.config.run import Config
from vocagno.data.prepare import rows_made_from, scanned
from vocagno.data.rows import cut_rows, join_documents, write_rows
from vocagno.data.sample import CorpusSample, Tokens
from vocagno.data.store.manifest import MANIFEST
from vocagno.errors import ConfigError
from vocagno.models.loading import student_settings, teacher_settings
from vocagno.models.throughput import USED, model_flops, named_peak, reading_flops, unloaded
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.estimate import (
    Estimate,
    estimate,
    hours,
    peak_memory_mb,
    reset_peak_memory,
)
from vocagno.tokens.student_tokenizer import StudentTokenizer, student_tokenizer
from vocagno.training.accelerator import start
from vocagno.training.inputs import resolve
from vocagno.training.loop import Training

DEVICES = (1, 8, 64)
_SECONDS = 20.0
"""Of the measured burst, and of the scoring before it."""
_MICRO_BATCHES = 4
"""Most micro-batches of a step of the burst on an accelerator; one on a CPU."""
_BYTES_A_TOKEN = 4
_STATE_BYTES = {"adamw": 16, "adamw_8bit": 10}
"""Of a weight, its gradient and the optimizer's state."""


def estimate_run(config: Config, gpu: str | None) -> dict[str, Any]:
    """Sizes, memory and hours of a run, as a table. Nothing is written but the cache of corpora.

    Args:
        gpu: compute from the peak of this GPU, a name of `PEAK_BF16`; None: measure here.
    Raises: ConfigError as a run does, and under several processes.
    """
    if gpu is not None:
        named_peak(gpu)  # before the corpus is read
    accelerator = start(config)
    if accelerator.num_processes > 1:
        raise ConfigError("--dry_run: start one process; hours are given for several devices")
    cache = config.data.cache
    tokenizer = student_tokenizer(config.student.tokenizer_source, config.student.eos)
    samples = {
        name: CorpusSample(scanned(name, cache, show_progress=True)) for name in config.data.corpora
    }
    tokens = {name: sample.tokens(tokenizer.spans) for name, sample in samples.items()}
    count = sum(one.count for one in tokens.values())
    trained = config.train.steps * config.train.global_batch * config.data.seq_len
    found: dict[str, Any] = {
        "documents": sum(sample.corpus.documents for sample in samples.values()),
        "text_bytes": sum(sample.corpus.text_bytes for sample in samples.values()),
        "tokens": count,
        "tokens_standard_error": round(sum(one.error**2 for one in tokens.values()) ** 0.5),
        "rows_bytes": round(_bytes_a_token(samples, tokens, tokenizer, config) * count),
        "trained_tokens": trained,
    }
    print("from a sample: tokens and bytes", file=sys.stderr)
    teacher = ConfiguredTeacher(config.teacher, cache, accelerator.device)
    scoring = _scoring(config, samples, teacher, gpu)
    if scoring is not None:
        found |= {
            "teacher_tokens": scoring.tokens,
            "scores_bytes": scoring.store_bytes,
            "scoring_tokens_per_second": round(scoring.tokens_per_second, 1),
            **{f"scoring_hours_on_{n}": _short(scoring.hours(n)) for n in DEVICES},
        }
    if gpu is None:
        speed, more = _measured(config, samples, scoring, accelerator)
    else:
        speed, more = _computed(config, tokenizer, gpu)
    found |= {"training_tokens_per_second": round(speed, 1), **more}
    print("assumed: the speed grows in proportion to the devices", file=sys.stderr)
    return found | {f"training_hours_on_{n}": _short(hours(trained, speed, n)) for n in DEVICES}


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def _bytes_a_token(
    samples: Mapping[str, CorpusSample],
    tokens: Mapping[str, Tokens],
    tokenizer: StudentTokenizer,
    config: Config,
) -> float:
    """Of a shard of rows with the sampled documents."""
    seq_len, size, number = config.data.seq_len, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.arrow"
        for name, sample in samples.items():
            made_from = rows_made_from(tokenizer, seq_len, sample.corpus.prompt_fingerprint)
            for encoded in tokens[name].encoded:
                before, eos = tokenizer.spans.prefix_ids, tokenizer.eos_id
                rows = cut_rows(join_documents(encoded, 0, before, eos), seq_len)
                hashes, ids = [bytes(16)] * len(encoded), tokenizer.spans.vocabulary_size
                write_rows(path, rows, seq_len, ids, hashes, 0, made_from)
                size += path.stat().st_size
                number += len(encoded.ids)
    return size / max(1, number)


def _scoring(
    config: Config, samples: Mapping[str, CorpusSample], teacher: ConfiguredTeacher, gpu: str | None
) -> Estimate | None:
    """What is to be scored before the run; None if there is nothing."""
    if not config.guidance.needs_teacher or config.teacher.mode == "live":
        return None
    folders = config.teacher.scores_of(len(samples))
    wanted = [
        sample
        for sample, folder in zip(samples.values(), folders, strict=True)
        if folder is None and not (teacher.scores_folder(sample.corpus) / MANIFEST).is_file()
    ]
    return estimate(wanted, teacher, gpu) if wanted else None


def _measured(
    config: Config,
    samples: Mapping[str, CorpusSample],
    scoring: Estimate | None,
    accelerator: accelerate.Accelerator,
) -> tuple[float, dict[str, Any]]:
    """Trains on the sample for some seconds: tokens a second, and what else is known of it."""
    is_cpu = accelerator.device.type == "cpu"
    micro_batches = min(1 if is_cpu else _MICRO_BATCHES, accelerator.gradient_accumulation_steps)
    accelerator.gradient_accumulation_steps = micro_batches
    global_batch = config.train.micro_batch * micro_batches
    wanted = 2.0 * global_batch * config.data.seq_len
    if scoring is not None:
        wanted = min(wanted, _SECONDS * scoring.tokens_per_second)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpora = {}
        for number, (name, weight) in enumerate(config.data.corpora.items()):
            path = folder / f"{number}.jsonl"
            most_bytes = round(wanted * _BYTES_A_TOKEN / len(samples))
            samples[name].write(path, most_bytes, cut=config.teacher.scores is None)
            corpora[str(path)] = weight
        train = replace(
            config.train, global_batch=global_batch, sample_every=None, log_with=[], profile_steps=0
        )
        sampled = replace(
            config,
            data=replace(
                config.data, train=corpora, rows=None, validation=None, cache=folder / "cache"
            ),
            train=train,
            eval=EvaluationConfig(),
            output=folder / "run",
        )
        training = Training(resolve(sampled, accelerator.device, show_progress=False), accelerator)
        reset_peak_memory(accelerator.device)  # the teacher that scored the sample needed more
        entry = training.burst(_SECONDS)
    print(
        f"measured: {entry['tokens']:,} tokens in steps of {micro_batches} micro-batches of "
        f"{config.train.micro_batch} rows on {accelerator.device}",
        file=sys.stderr,
    )
    more = {
        "kept_fraction": round(entry["kept_fraction"], 4),
        "peak_memory_mb": peak_memory_mb(accelerator.device),
    }
    return entry["tokens_per_s"], more


def _computed(
    config: Config, tokenizer: StudentTokenizer, gpu: str
) -> tuple[float, dict[str, Any]]:
    """Tokens a second of a named GPU, and the memory of the student's state."""
    size = tokenizer.spans.vocabulary_size
    student = unloaded(student_settings(config.student, size, config.data.seq_len))
    flops = model_flops(student, config.data.seq_len)
    state = student.num_parameters() * _STATE_BYTES[config.optimizer.name]
    if config.guidance.needs_teacher and config.teacher.mode == "live":
        teacher = unloaded(teacher_settings(config.teacher))
        flops += reading_flops(teacher, config.teacher.context)
        state += 2 * teacher.num_parameters()
    print(
        f"assumed: {USED:.0%} of the peak of a {gpu}, the operations of naive training, as many "
        "tokens of the teacher as of the student; memory: weights, gradients and optimizer, "
        "without activations",
        file=sys.stderr,
    )
    return named_peak(gpu) * USED / flops, {"state_memory_mb": round(state / 2**20)}
