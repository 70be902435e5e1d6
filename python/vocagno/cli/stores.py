"""`vocagno score` and `vocagno prepare`: the stores that training reads, made before it.

Any number of processes may run one command, on all machines that see the folder. They share the
shards, and each returns when all shards are there. A killed process loses only its shard.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.arguments import (
    CORPUS,
    TOKENIZER,
    add_cache,
    add_gpu,
    add_max_refused,
    check_gpu,
)
from vocagno.errors import InputError, require
from vocagno.system.progress import peak_megabytes
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from vocagno.data.store.building import Part


def add_score(parser: Any) -> None:
    """Run a teacher over a corpus, and store its loss of every token."""
    from vocagno.config.teacher import TeacherConfig

    _add_corpus(parser)
    parser.add_argument(
        "--shard_bytes",
        type=int,
        help="bytes of text of a shard, what a killed process loses; default: 2,000,000",
    )
    parser.add_argument(
        "--shards",
        type=str,
        metavar="I/N",
        help="score only part I of N, without locks; then run `vocagno scores finish`",
    )
    parser.add_argument(
        "--status", action="store_true", help="show how far the store is, and score nothing"
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="estimate tokens, bytes and hours from a sample and a short burst, and write nothing",
    )
    parser.add_argument("--candidates", type=int, metavar="K", help="as teacher.candidates")
    add_gpu(parser)
    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores", "mode", "shard", "also"})


def add_prepare(parser: Any) -> None:
    """Tokenize a corpus for a student, and pack it into rows."""
    _add_corpus(parser)
    parser.add_argument("--tokenizer", required=True, help=TOKENIZER)
    parser.add_argument("--eos", type=str, help="token after every document")
    parser.add_argument("--seq_len", type=int, default=2048, help="predicted tokens of a row")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")


def _add_corpus(parser: Any) -> None:
    parser.add_argument("corpus", type=str, help=CORPUS)
    parser.add_argument("--config", action="config", help="YAML file with these options")
    parser.add_argument("--out", type=Path, help="folder of the store; default: in the cache")
    add_cache(parser)
    add_max_refused(parser)


def score(options: Any) -> dict[str, Any] | None:
    """Makes the store where it is missing. Of processes of one launch the first one says so."""
    from vocagno.data.prepare import scanned
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.data.store.state import state_of
    from vocagno.models.loading import local_device
    from vocagno.teacher.scores import SCORES, ScoreStore
    from vocagno.teacher.scoring import ConfiguredTeacher

    first = os.environ.get("RANK", "0") == "0"
    part = _part(options)
    _check_shard_bytes(options)
    check_gpu(options)
    config = options.teacher
    if options.candidates is not None:
        config = replace(config, candidates=options.candidates)
    with terminable():
        corpus = scanned(
            options.corpus,
            options.cache,
            show_progress=first,
            shard_bytes=options.shard_bytes,
            max_refused=options.max_refused,
        )
        teacher = ConfiguredTeacher(config, options.cache, local_device())
        if options.status:
            return state_of(corpus, options.out or teacher.scores_folder(corpus), SCORES)
        if options.dry_run:
            from vocagno.training.estimate import CorpusSample, estimate_scoring

            return estimate_scoring([CorpusSample(corpus)], teacher, options.gpu)
        folder, made = teacher.make_scores(corpus, options.out, show_progress=first, part=part)
    if part is not None:
        about = {"part": options.shards, "shards": len(part.of(corpus.shards))}
        return {"store": str(folder), **about, **made.as_dict()}
    if not first:
        return None
    store = ScoreStore(folder)
    refused = store.manifest.count(REFUSED)
    say_omitted(store.folder, len(store), refused)
    unscored = store.manifest.count("unscored_tokens")
    if unscored:
        print(
            f"{store.folder}: the teacher gave no finite loss for {unscored:,} tokens of "
            f"{store.manifest.count('unscored_documents'):,} documents; they are stored as "
            "unscored",
            file=sys.stderr,
        )
    return {
        "store": str(store.folder),
        "documents": len(store),
        "tokens": store.num_tokens,
        "bytes_per_token": round(store.num_bytes / max(1, store.num_tokens), 3),
        "unscored_documents": store.manifest.count("unscored_documents"),
        "unscored_tokens": unscored,
        REFUSED: refused,
        **made.as_dict(),
        **_peak_memory(),
    }


def _part(options: Any) -> "Part | None":
    """What `--shards` asks for. Raises: InputError for bad options."""
    from vocagno.data.store.building import Part

    if options.shards is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", options.shards)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--shards: expected I/N, I from 1 to N, as in 3/8; got {options.shards}")
    if options.teacher.tensor_parallel:
        raise InputError("--shards: not with teacher.tensor_parallel, whose processes share shards")
    return Part(int(found[1]), int(found[2]))


def _check_shard_bytes(options: Any) -> None:
    """Raises: InputError for a bad number, or one whose store training would not find."""
    from vocagno.data.corpus import SHARD_BYTES

    size = options.shard_bytes
    require(size is None or size > 0, f"--shard_bytes must be positive, got {size}")
    if size not in (None, SHARD_BYTES) and options.out is None and not options.dry_run:
        raise InputError(
            f"--shard_bytes: training finds scores in the cache only with the default "
            f"({SHARD_BYTES:,}); add --out FOLDER, and pass it to training as teacher.scores"
        )


def prepare(options: Any) -> dict[str, Any]:
    """Makes the rows where they are missing."""
    from vocagno.data.prepare import prepared_rows, scanned
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.tokens.student_tokenizer import student_tokenizer

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1  # that this process may use
    workers = cores if options.workers is None else options.workers
    require(options.seq_len > 0, f"--seq_len must be positive, got {options.seq_len}")
    require(workers > 0, f"--workers must be positive, got {workers}")
    threads = max(1, cores // workers)  # of each process, unless the user said otherwise
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    with terminable():
        share = options.max_refused
        corpus = scanned(options.corpus, options.cache, show_progress=True, max_refused=share)
        given = corpus, tokenizer, options.seq_len, options.cache
        rows, made = prepared_rows(*given, show_progress=True, workers=workers, folder=options.out)
    refused = rows.manifest.count(REFUSED)
    say_omitted(rows.folder, corpus.documents, refused)
    return {
        "store": str(rows.folder),
        "documents": corpus.documents,
        REFUSED: refused,
        "rows": len(rows),
        "tokens": rows.num_tokens,
        **made.as_dict(),
        **_peak_memory(),
    }


def _peak_memory() -> dict[str, Any]:
    """Of this process, not of those that it started."""
    peak = peak_megabytes()
    return {} if peak is None else {"peak_memory_mb": round(peak)}
