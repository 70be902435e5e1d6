"""The commands `vocagno guidance` and `vocagno limit`.

The first one shows what a student learns of one text. The second one finds the
`guidance.window_max_loss` that keeps a text which is known to be clean.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.cli.alignment import add_text, read_text
from vocagno.config.arguments import (
    CORPUS,
    TOKENIZER,
    add_cache_and_max_refused,
    add_scoring_teacher,
)
from vocagno.errors import require
from vocagno.system.progress import draw_in_terminal, in_table
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vocagno.teacher.configured import ConfiguredTeacher
    from vocagno.tokens.student_tokenizer import StudentTokenizer

_RULE = "unit top_fraction max_threshold window window_max_loss aggregation unmapped".split()
"""The fields of `GuidanceConfig` that are options of `vocagno guidance` and `vocagno bake`. `scope`
and `normalize` are not: neither changes the weights of one text, nor those that are baked."""
_TEACHER_FIELDS = "gguf_file tokenizer bos dtype context min_context".split()
_SHARES = (0.95, 0.98, 0.99, 0.995, 0.999)
"""The shares of a clean text for which `vocagno limit` shows a limit, besides --keep."""


def add_rule(parser: Any) -> None:
    """Adds the options of the rule that weights the tokens of a text."""
    from vocagno.config.guidance import GuidanceConfig

    _add_fields(parser, "guidance", GuidanceConfig, _RULE)


def _add_fields(parser: Any, group: str, config: Any, names: Sequence[str]) -> None:
    """Adds some fields of a configuration as the options `--group.name`."""
    skipped = {field.name for field in fields(config)} - {*names}
    parser.add_class_arguments(config, group, skip=skipped)


def add_guidance(parser: Any) -> None:
    """Show which tokens of a text the student learns from the teacher, and why.

    The answer is a table, a page, a figure or numbers. The tokens compete within the text, which is
    a row by itself.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import StudentConfig
    from vocagno.config.teacher import TeacherConfig

    for role in ("student", "teacher"):
        words = f"The {role}: a folder or hub name of a causal language model."
        parser.add_argument(f"{role}.model", type=str, metavar=role, help=words)
    add_text(parser, "show")
    parser.add_argument("--html", type=Path, help="Write the guidance as a page into this file.")
    parser.add_argument(
        "--figure", type=Path, help="Draw a short text into this .svg or .png file."
    )
    _add_fields(parser, "guidance", GuidanceConfig, ["method", *_RULE])
    _add_fields(parser, "student", StudentConfig, ["tokenizer", "eos"])
    _add_fields(parser, "teacher", TeacherConfig, _TEACHER_FIELDS)


def guidance(options: Any) -> dict[str, Any] | None:
    """Writes the page and the figure, and returns the guidance as data or prints it as a table."""
    text = read_text(options, "`guidance` shows one text; give a part of it")
    if options.figure is not None:
        from vocagno.views.figure import check_format, check_text

        check_format(options.figure, "--figure")
        check_text(text)
    if options.guidance.warning:
        print(f"warning: {options.guidance.warning}", file=sys.stderr)

    from vocagno.system.files import atomic_file
    from vocagno.training.sample_pages import guide_text

    guided = guide_text(options.student, options.teacher, text, options.guidance)
    files = []
    if options.html is not None:
        with atomic_file(options.html) as file:
            file.write(guided.html().encode())
        files.append(options.html)
    if options.figure is not None:
        from vocagno.views.figure import draw_guidance, save

        save(draw_guidance(guided.passage), options.figure)
        files.append(options.figure)
    if options.json:
        return guided.as_dict()
    if files:
        print(guided.summary(), *files, sep="\n", file=sys.stderr)
    else:
        draw_in_terminal(guided)
    return None


def add_limit(parser: Any) -> None:
    """Find the limit for lines of noise that keeps a share of a clean text.

    The teacher scores the text if it is not in the cache. With --corpus, also shows what the limits
    keep of a training text.
    """
    parser.add_argument("text", type=str, help=f"Clean text of the domain: {CORPUS}.")
    parser.add_argument("--tokenizer", required=True, help=f"The student's tokenizer: {TOKENIZER}.")
    parser.add_argument(
        "--keep", type=float, default=0.99, help="Keep this share of the clean text's tokens."
    )
    parser.add_argument(
        "--scores", type=Path | None, help="The store of the teacher's scores of the clean text."
    )
    parser.add_argument(
        "--corpus", type=str | None, help="A training text to compare the clean text with."
    )
    parser.add_argument(
        "--corpus_scores", type=Path | None, help="The store of the teacher's scores of --corpus."
    )
    parser.add_argument("--eos", type=str | None, help="The token that ends every document.")
    parser.add_argument(
        "--seq_len", type=int, default=2048, help="The number of predicted tokens of a row."
    )
    add_cache_and_max_refused(parser)
    add_scoring_teacher(parser)


def limit(options: Any) -> dict[str, Any] | None:
    """Finds the limit. Returns or prints it with those of other shares, and what each keeps."""
    from vocagno.guidance.line_rule import kept_share, limit_that_keeps
    from vocagno.models.loading import local_device
    from vocagno.teacher.configured import ConfiguredTeacher
    from vocagno.tokens.student_tokenizer import student_tokenizer

    require(0 < options.keep <= 1, f"--keep must be in (0, 1], got {options.keep}")
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    teacher = ConfiguredTeacher(options.teacher, options.cache, local_device())
    require(
        options.corpus is not None or options.corpus_scores is None,
        "--corpus_scores: these are scores of --corpus; give --corpus, too, or omit them",
    )
    require(
        options.corpus != options.text,
        "--corpus: is the clean text itself; name the training text, or omit it",
    )
    stores = {options.text: options.scores}
    if options.corpus is not None:
        stores[options.corpus] = options.corpus_scores
    names = list(stores)
    with terminable():
        text_limits = [
            _limits_needed(name, store, options, tokenizer, teacher)
            for name, store in stores.items()
        ]
    # A token that has its line to itself has -inf: every limit keeps it. No smaller share exists.
    always = kept_share(-math.inf, text_limits[0])
    shares = sorted({*(share for share in _SHARES if share > always), options.keep})
    limits = {share: limit_that_keeps(share, text_limits[0]) for share in shares}
    kept = {
        share: [kept_share(max_loss, limits_of_text) for limits_of_text in text_limits]
        for share, max_loss in limits.items()
    }
    chosen = limits[options.keep]
    if options.json:
        tokens = dict(zip(names, map(len, text_limits), strict=True))
        rows = [
            {"window_max_loss": limits[share], "kept": dict(zip(names, kept[share], strict=True))}
            for share in shares
        ]
        return {"window_max_loss": chosen, "tokens": tokens, "limits": rows}
    heading = ["nats a byte", *(f"kept of {name}" for name in names)]
    lines = [[f"{limits[share]:.2f}", *(f"{part:.1%}" for part in kept[share])] for share in shares]
    print(in_table([heading, *lines]))
    share = kept[options.keep][0]
    print(f"\nguidance.window_max_loss: {chosen}  # keeps {share:.1%} of {options.text}")
    return None


def _limits_needed(
    name: str,
    store: Path | None,
    options: Any,
    tokenizer: "StudentTokenizer",
    teacher: "ConfiguredTeacher",
) -> "NDArray[Any]":
    """Measures the smallest limit that keeps each token of a text, in nats a byte.

    Args: store: the folder with the scores; None stands for that in the cache, which is made if it
        is missing.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import DataConfig
    from vocagno.data.prepare import prepare_rows, scan_with_progress
    from vocagno.guidance.collator import Collator, limits_needed
    from vocagno.teacher.score_store import MatchedScores

    data = DataConfig(train=name, seq_len=options.seq_len, cache=options.cache)
    corpus = scan_with_progress(
        name, data.cache, show_progress=True, max_refused=options.max_refused
    )
    rows, _ = prepare_rows(corpus, tokenizer, data.seq_len, data.cache, show_progress=True)
    scores = MatchedScores(teacher.scores(lambda: corpus, store, show_progress=True), rows)
    if scores.warning:
        print(f"warning: {scores.warning}", file=sys.stderr)
    require(
        not scores.missing_documents,
        f"{scores.store.folder}: the store has no scores of {scores.missing_documents:,} documents "
        f"of {name}; run `vocagno score` on it",
    )
    collator = Collator(scores, GuidanceConfig(), data, tokenizer.spans.line_ends())
    return limits_needed((rows[number] for number in range(len(rows))), collator)
