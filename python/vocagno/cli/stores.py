"""The commands `vocagno score`, `prepare` and `bake`, which make what training reads.

`score` and `prepare` make the stores of training, `bake` the losses for a token file of another
trainer. Any number of processes may run one command, on all machines that see the folder. They
share the shards, and each process returns when all shards are there. A killed process loses only
the shard that it was making.
"""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocagno.alignment.mapping import Reduction
from vocagno.cli.guidance import add_rule
from vocagno.config.arguments import (
    CORPUS,
    TOKENIZER,
    add_cache_and_max_refused,
    add_scoring_teacher,
)
from vocagno.errors import InputError, require
from vocagno.system.progress import peak_megabytes
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from vocagno.data.store.building import Part


def add_score(parser: Any) -> None:
    """Run a teacher over a corpus, and store its loss of every token."""
    _add_corpus(parser)
    parser.add_argument(
        "--shard_bytes",
        type=int,
        help="The bytes of text of a shard: what a killed process loses. Default: those of the "
        "store in --out, else a sixteenth of the text, from 20,000 to 2,000,000.",
    )
    parser.add_argument(
        "--shards",
        type=str,
        metavar="I/N",
        help="Score only part I of N, without locks. After all parts, run `vocagno scores finish`.",
    )
    without_scoring = parser.add_mutually_exclusive_group()
    without_scoring.add_argument(
        "--status", action="store_true", help="Show how far the store is, and score nothing."
    )
    without_scoring.add_argument(
        "--dry_run",
        action="store_true",
        help="Estimate tokens, bytes and hours from a sample and a short burst, and write nothing.",
    )
    parser.add_argument(
        "--candidates", type=int, metavar="K", help="Shorter name of --teacher.candidates."
    )
    parser.add_argument(
        "--sampled", action="store_true", default=None, help="Shorter name of --teacher.sampled."
    )
    parser.add_argument(
        "--student",
        type=str | None,
        help="With --candidates: check first that they can train a student with this tokenizer: "
        f"{TOKENIZER}.",
    )
    parser.add_argument(
        "--rows",
        type=Path,
        help="Rows of a student (vocagno prepare --out): the teacher reads their pieces of each "
        "document, so that it has the student's context, not windows of its own.",
    )
    add_scoring_teacher(parser)


def add_prepare(parser: Any) -> None:
    """Tokenize a corpus for a student, and pack it into rows."""
    _add_corpus(parser)
    parser.add_argument("--tokenizer", required=True, help=f"The student's tokenizer: {TOKENIZER}.")
    parser.add_argument("--eos", type=str, help="The token that ends every document.")
    parser.add_argument(
        "--seq_len", type=int, default=2048, help="The number of predicted tokens of a row."
    )
    parser.add_argument(
        "--workers", type=int, help="The number of processes. Default: one for each core."
    )


def _add_corpus(parser: Any) -> None:
    parser.add_argument("corpus", type=str, help=f"The corpus: {CORPUS}.")
    parser.add_argument("--config", action="config", help="Read options from this YAML file.")
    parser.add_argument(
        "--out", type=Path, help="The folder of the store. Default: a folder in the cache."
    )
    add_cache_and_max_refused(parser)


def score(options: Any) -> dict[str, Any] | None:
    """Makes the shards that the store lacks. The first process returns what the store has."""
    from vocagno.data.prepare import scan_with_progress
    from vocagno.data.rows import RowStore
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.data.store.state import shard_bytes_of, state_of
    from vocagno.models.loading import local_device
    from vocagno.teacher.configured import ConfiguredTeacher
    from vocagno.teacher.score_store import SCORES, ScoreStore

    is_first = os.environ.get("RANK", "0") == "0"
    part = _read_part(options)
    _check_shard_bytes(options)
    aliases = {name: getattr(options, name) for name in ("candidates", "sampled")}
    overrides = {name: value for name, value in aliases.items() if value is not None}
    config = replace(options.teacher, **overrides)
    # An estimate reads parts of documents, of which the rows know nothing.
    rows = None if options.rows is None or options.dry_run else RowStore(options.rows)
    teacher = ConfiguredTeacher(config, options.cache, local_device(), rows)
    if options.student is not None:
        from vocagno.tokens.buckets import buckets
        from vocagno.tokens.token_spans import TokenSpans

        require(
            config.candidates > 0,
            "--student: checks the candidates of the scores; add --candidates K, or omit it",
        )
        student = TokenSpans.from_pretrained(options.student)
        buckets(student, teacher.spans, cache=options.cache / "buckets").check()
    with terminable():
        # To read the corpus may take long, so the model is checked before. A corpus that does not
        # exist is reported first, by `scan_with_progress`.
        if config.model is not None and Path(options.corpus).exists():
            teacher.check()
        corpus = scan_with_progress(
            options.corpus,
            options.cache,
            show_progress=is_first,
            shard_bytes=options.shard_bytes or shard_bytes_of(options.out),
            max_refused=options.max_refused,
        )
        if rows is not None:
            require(
                rows.text_hashes == [shard.text_hash for shard in corpus.shards],
                f"--rows: {rows.folder} has other texts than {corpus.name}, or other shards; make "
                "them by `vocagno prepare` of this corpus, and score without --shard_bytes",
            )
        if options.status:
            return state_of(corpus, options.out or teacher.scores_folder(corpus), SCORES)
        if options.dry_run:
            from vocagno.training.estimate import CorpusSample, estimate_scoring

            return estimate_scoring([CorpusSample(corpus)], teacher)
        folder, made = teacher.make_scores(corpus, options.out, show_progress=is_first, part=part)
    if part is not None:
        about = {"part": options.shards, "shards": len(part.of(corpus.shards))}
        return {"store": str(folder), **about, **made.as_dict()}
    if not is_first:
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


def _read_part(options: Any) -> "Part | None":
    """Reads `--shards`. None stands for all shards. Raises: InputError for bad options."""
    from vocagno.data.store.building import Part

    if options.shards is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", options.shards)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shards: expected I/N, I from 1 to N, as in 3/8; got {options.shards}")
    if options.teacher.tensor_parallel:
        raise InputError("--shards: teacher.tensor_parallel shares them already; omit either")
    return Part(int(match[1]), int(match[2]))


def _check_shard_bytes(options: Any) -> None:
    """Refuses a size that is not positive, or whose store training would not find.

    Raises: InputError.
    """
    size = options.shard_bytes
    require(size is None or size > 0, f"--shard_bytes must be positive, got {size}")
    if size is not None and options.out is None and not options.dry_run:
        raise InputError(
            "--shard_bytes: training finds scores in the cache only with the default size; add "
            "--out FOLDER, and pass it to training as teacher.scores"
        )


def prepare(options: Any) -> dict[str, Any]:
    """Makes the rows that the store lacks. Returns what the store has."""
    from vocagno.data.prepare import prepare_rows, scan_with_progress
    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.data.store.state import shard_bytes_of
    from vocagno.tokens.student_tokenizer import student_tokenizer

    # The cores that this process may use: in a container, fewer than the machine has.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    workers = cores if options.workers is None else options.workers
    require(options.seq_len > 0, f"--seq_len must be positive, got {options.seq_len}")
    require(workers > 0, f"--workers must be positive, got {workers}")
    threads = max(1, cores // workers)  # of each process, unless the user said otherwise
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    with terminable():
        corpus = scan_with_progress(
            options.corpus,
            options.cache,
            show_progress=True,
            shard_bytes=shard_bytes_of(options.out),
            max_refused=options.max_refused,
        )
        rows, made = prepare_rows(
            corpus,
            tokenizer,
            options.seq_len,
            options.cache,
            show_progress=True,
            workers=workers,
            folder=options.out,
        )
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
    """Returns the peak memory of this process, without that of the processes it started."""
    peak = peak_megabytes()
    return {} if peak is None else {"peak_memory_mb": round(peak)}


def add_bake(parser: Any) -> None:
    """Write the teacher's loss of each token of a token file, for trainers that read it.

    The losses are float16, one for each token of a `.bin`, `.ds` or `.npy` file. On request, the
    command writes weights and candidates, too.
    """
    parser.add_argument("tokens", type=Path, help="A .bin with .idx, .ds with .ds.index, or .npy.")
    parser.add_argument("--scores", type=Path, required=True, help="The store of teacher scores.")
    parser.add_argument(
        "--tokenizer", type=str, required=True, help=f"The tokenizer of the ids: {TOKENIZER}."
    )
    parser.add_argument("--out", type=Path, required=True, help="The folder to write to.")
    parser.add_argument(
        "--eos",
        type=str | None,
        help="For .npy: the token that ends every document. Default: the tokenizer's own.",
    )
    parser.add_argument(
        "--boundaries",
        type=Path | None,
        help="For .npy: a file that says where documents begin and end, in place of --eos.",
    )
    parser.add_argument(
        "--dtype",
        type=Literal["uint16", "uint32"] | None,
        help="For .npy without NumPy's header: the type of the ids.",
    )
    parser.add_argument(
        "--unit",
        type=Literal["token", "group"],
        default="token",
        help="Whether a token or a group of tokens has a loss (guidance.unit).",
    )
    parser.add_argument(
        "--aggregation",
        type=Reduction,
        default="max",
        help="How a token's loss follows from several teacher tokens (guidance.aggregation).",
    )
    parser.add_argument(
        "--min_coverage",
        type=float,
        default=0.99,
        help="Stop if a smaller share of the tokens has a loss.",
    )
    parser.add_argument(
        "--weights", action="store_true", help="Write weights, too, by the rule of --guidance."
    )
    parser.add_argument(
        "--teacher_tokenizer",
        type=str | None,
        help="Write candidates, too, over the buckets of --tokenizer and this one, the teacher's: "
        f"{TOKENIZER}.",
    )
    add_cache_and_max_refused(parser)
    add_rule(parser)


def bake(options: Any) -> dict[str, Any]:
    """Writes the streams that are missing. Returns their folder, and counts of what they hold."""
    from vocagno.config.guidance import GuidanceConfig

    rule = options.guidance if options.weights else None
    require(
        options.weights or options.guidance == GuidanceConfig(),
        "--guidance: sets the rule of the weights; add --weights, or omit it",
    )
    require(
        options.unit == "token" or options.aggregation == "max",
        f"--aggregation: {options.aggregation}: a group adds its losses up; omit it, or give "
        "--unit token",
    )
    require(
        0 <= options.min_coverage <= 1,
        f"--min_coverage must be in [0, 1], got {options.min_coverage}",
    )
    losses = GuidanceConfig(
        unit=options.unit, aggregation=options.aggregation, min_coverage=options.min_coverage
    )

    from vocagno.data.store.format import REFUSED, say_omitted
    from vocagno.integrations.baking.documents import check_rule
    from vocagno.integrations.baking.whole_file import bake_file
    from vocagno.teacher.score_store import ScoreStore

    if rule is not None:
        check_rule(rule)
        if rule.warning:
            print(f"warning: {rule.warning}", file=sys.stderr)
    file, spans = _open_token_file(options)
    store = ScoreStore(options.scores)
    targets = None
    if options.teacher_tokenizer is not None:
        from vocagno.guidance.bucket_targets import BucketTargets
        from vocagno.tokens.buckets import buckets
        from vocagno.tokens.token_spans import TokenSpans

        require(
            store.candidates > 0,
            f"--teacher_tokenizer: {options.scores} has no candidates; score with --candidates",
        )
        teacher = TokenSpans.from_pretrained(options.teacher_tokenizer)
        fingerprint = store.manifest.made_from.get("tokenizer")
        require(
            teacher.fingerprint == fingerprint,
            f"--teacher_tokenizer: {options.teacher_tokenizer} is not that of the scores "
            f"({fingerprint}); give the teacher's",
        )
        shared = buckets(spans, teacher, cache=options.cache / "buckets")
        targets = BucketTargets(shared, store.candidates)
    with terminable():
        counts = bake_file(
            file,
            spans,
            store,
            options.out,
            losses,
            rule,
            targets,
            max_refused=options.max_refused,
            show_progress=True,
        )
    say_omitted(options.out, counts["documents"], counts.get(REFUSED, 0))
    return {"folder": str(options.out), **counts}


def _open_token_file(options: Any) -> tuple[Any, Any]:
    """Opens the token file. Returns it with the tokenizer of its ids."""
    from vocagno.integrations.token_files import open_token_file, tokens_path
    from vocagno.tokens.student_tokenizer import student_tokenizer
    from vocagno.tokens.token_spans import TokenSpans

    layout = {"boundaries": options.boundaries, "dtype": options.dtype}
    if tokens_path(options.tokens).suffix != ".npy" or options.boundaries is not None:
        require(options.eos is None, "--eos: is for a .npy without --boundaries; omit it")
        file = open_token_file(options.tokens, **layout)
        return file, TokenSpans.from_pretrained(options.tokenizer)
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    require(
        bool(tokenizer.spans.is_special([tokenizer.eos_id])[0]),
        f"--eos: {tokenizer.eos!r} is an ordinary token of {options.tokenizer} and would count as "
        "text; mark it as special in its tokenizer.json",
    )
    return open_token_file(options.tokens, eos_id=tokenizer.eos_id, **layout), tokenizer.spans
