"""The command `vocagno filter`, which writes a corpus without what is noise to a teacher."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocagno.config.arguments import CORPUS, add_cache_and_max_refused, add_scoring_teacher
from vocagno.errors import ConfigError
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from vocagno.data.corpus import Corpus
    from vocagno.teacher.score_store import ScoreStore


def add_filter(parser: Any) -> None:
    """Write a corpus without the lines that are noise to a teacher, for any trainer.

    By the default rule of training a token is noise if the teacher loses more than
    `guidance.window_max_loss` on the rest of its line. A line is omitted if that rule, with the
    teacher's tokens, would drop more than half of its bytes; a line of one token stays. A token
    counts for the line in which it begins. An empty line in which none begins shares the fate of
    the line before it.

    JSON Lines stay JSON Lines, and Parquet stays Parquet, with all fields; text files become
    texts.jsonl. Each record gets `teacher_nats_per_byte` (of the whole text, or the completion) and
    `omitted_share` (of its bytes). A document that is all noise is omitted. `filtered.json`,
    `report.md` and `report.html` say what went, by file, with twenty examples.

    Any number of processes may run the command; a killed one loses the shard that it was writing.
    """
    parser.add_argument("corpus", type=str, help=f"The corpus: {CORPUS}.")
    parser.add_argument("--out", type=Path, required=True, help="The folder to write to.")
    parser.add_argument(
        "--scores",
        type=Path | None,
        help="The store that `vocagno score` made. Default: that of --teacher.model in the cache, "
        "which is made if it is missing.",
    )
    parser.add_argument(
        "--window_max_loss",
        type=float | None,
        help="The limit in nats a byte (guidance.window_max_loss). Default: 2; `vocagno limit` "
        "finds that of your teacher.",
    )
    parser.add_argument(
        "--unit",
        type=Literal["line", "document"],
        default="line",
        help="Judge lines, or whole documents as if they were one line.",
    )
    parser.add_argument(
        "--keep",
        type=Literal["rest", "marks"],
        default="rest",
        help="marks: write the text whole, with `omitted_ranges`, the ranges of noise in "
        "characters (code points, as Python counts; of prompt and completion together). rest: "
        "without them, so that other fields which count characters no longer fit the text.",
    )
    parser.add_argument(
        "--missing",
        type=Literal["error", "keep", "drop"],
        default="error",
        help="What to do with documents without scores.",
    )
    parser.add_argument(
        "--yes", action="store_true", help="Write it even if more than half of the bytes is noise."
    )
    add_scoring_teacher(parser)
    add_cache_and_max_refused(parser)


def filter_(options: Any) -> dict[str, Any] | None:
    """Writes the files that are missing. Returns or prints the report."""
    from vocagno.data.prepare import scan_with_progress
    from vocagno.integrations.filtering import FilterRule, filter_corpus
    from vocagno.views.noise import report_of

    rule = FilterRule(
        window_max_loss=options.window_max_loss,
        unit=options.unit,
        keep=options.keep,
        missing=options.missing,
    )
    if rule.warning:
        print(f"warning: {rule.warning}", file=sys.stderr)
    with terminable():
        corpus = scan_with_progress(
            options.corpus, options.cache, show_progress=True, max_refused=options.max_refused
        )
        fields = filter_corpus(
            corpus,
            _open_scores(options, corpus),
            options.out,
            rule,
            allow_most=options.yes,
            show_progress=True,
        )
    if options.json:
        return {"folder": str(options.out), **fields}
    print(report_of(fields), end="")
    print(options.out, file=sys.stderr)
    return None


def _open_scores(options: Any, corpus: "Corpus") -> "ScoreStore":
    """Opens the store of --scores, or that of the teacher in the cache, which is made first.
    An option of the teacher at its default is compatible with any store; to compare others takes
    torch.
    Raises: ConfigError if there is neither; StoreError if the store was made with other options of
        the teacher than the command line has."""
    from vocagno.config.teacher import TeacherConfig
    from vocagno.teacher.score_store import ScoreStore

    teacher = options.teacher
    if options.scores is not None and teacher == TeacherConfig():
        return ScoreStore(options.scores)
    if options.scores is None and teacher.model is None and teacher.server is None:
        raise ConfigError(
            "--scores: needed, or --teacher.model; `vocagno score "
            f"{options.corpus} --teacher.model TEACHER --out STORE` makes the scores"
        )
    from vocagno.models.loading import local_device
    from vocagno.teacher.configured import ConfiguredTeacher

    configured = ConfiguredTeacher(teacher, options.cache, local_device())
    return configured.scores(lambda: corpus, options.scores, show_progress=True, option="--scores")
