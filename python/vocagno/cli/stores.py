"""`vocagno score` and `vocagno prepare`: the stores that training reads, made before it.

Any number of processes may run one command, on all machines that see the folder. They share the
shards, and each returns when all shards are there. A killed process loses only its shard.
"""

import os
import sys
from pathlib import Path
from typing import Any

from vocagno.config.commands import CORPUS
from vocagno.errors import InputError


def add_score(parser: Any) -> None:
    """Run a teacher over a corpus, and store its loss of every token."""
    from vocagno.config.run import TeacherConfig

    _add_corpus(parser)
    parser.add_argument("--out", type=Path, help="folder of the store; default: in the cache")
    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores", "mode", "shard"})


def add_prepare(parser: Any) -> None:
    """Tokenize a corpus for a student, and pack it into rows."""
    _add_corpus(parser)
    parser.add_argument("--out", type=Path, help="folder of the store; default: in the cache")
    parser.add_argument(
        "--tokenizer", required=True, help="tokenizer.json(.gz), folder or hub name"
    )
    parser.add_argument("--eos", type=str, help="token after every document")
    parser.add_argument("--seq_len", type=int, default=2048, help="predicted tokens of a row")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")


def _add_corpus(parser: Any) -> None:
    from vocagno.config.run import DataConfig

    cache = DataConfig.__dataclass_fields__["cache"].default
    parser.add_argument("corpus", type=str, help=CORPUS)
    parser.add_argument("--config", action="config", help="YAML file with these options")
    parser.add_argument("--cache", type=Path, default=cache, help="folder of the cache")


def score(options: Any) -> dict[str, Any] | None:
    """Makes the store where it is missing. Of processes of one launch the first one says so."""
    from vocagno.data.prepare import scanned
    from vocagno.models.loading import local_device
    from vocagno.system.signals import terminable
    from vocagno.teacher.configured import ConfiguredTeacher

    first = os.environ.get("RANK", "0") == "0"
    with terminable():
        corpus = scanned(options.corpus, options.cache, show_progress=first)
        teacher = ConfiguredTeacher(options.teacher, options.cache, local_device())
        store, made = teacher.cached_scores(corpus, show_progress=first, folder=options.out)
    if not first:
        return None
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
        **made.as_dict(),
        **_peak_memory(),
    }


def prepare(options: Any) -> dict[str, Any]:
    """Makes the rows where they are missing."""
    from vocagno.data.prepare import prepared_rows, scanned
    from vocagno.system.signals import terminable
    from vocagno.tokens.student_tokenizer import student_tokenizer

    if options.seq_len < 1:
        raise InputError(f"--seq_len must be positive, got {options.seq_len}")
    workers = _cores() if options.workers is None else options.workers
    if workers < 1:
        raise InputError(f"--workers must be positive, got {workers}")
    threads = max(1, _cores() // workers)  # of each process, unless the user said otherwise
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    with terminable():
        corpus = scanned(options.corpus, options.cache, show_progress=True)
        given = corpus, tokenizer, options.seq_len, options.cache
        rows, made = prepared_rows(*given, show_progress=True, workers=workers, folder=options.out)
    return {
        "store": str(rows.folder),
        "documents": corpus.documents,
        "rows": len(rows),
        "tokens": rows.num_tokens,
        **made.as_dict(),
        **_peak_memory(),
    }


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _peak_memory() -> dict[str, Any]:
    """Of this process, not of those that it started."""
    from vocagno.system.progress import peak_megabytes

    peak = peak_megabytes()
    return {} if peak is None else {"peak_memory_mb": round(peak)}
