"""`vocagno guidance` and `vocagno limit`: what a student learns of one text, and the
`guidance.window_max_loss` that keeps a text known to be clean."""

import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.cli.alignment import add_text, given_text
from vocagno.config.arguments import CORPUS, TOKENIZER, add_cache_and_max_refused
from vocagno.errors import require
from vocagno.system.progress import draw_in_terminal, in_table
from vocagno.system.signals import terminable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vocagno.teacher.scoring import ConfiguredTeacher
    from vocagno.tokens.student_tokenizer import StudentTokenizer

_RULE = "unit top_fraction max_threshold window window_max_loss aggregation unmapped".split()
"""Fields of `GuidanceConfig` that are options here. A text is a row of its own, so `scope` and
`normalize` say nothing about it; nor about the weights of `vocagno bake`."""
_OF_TEACHER = "gguf_file tokenizer bos dtype context min_context".split()
_MODEL = "folder or hub name of a causal language model"


def add_rule(parser: Any) -> None:
    """Adds the options of the rule that weights the tokens of a text."""
    from vocagno.config.guidance import GuidanceConfig

    _add_fields(parser, "guidance", GuidanceConfig, _RULE)


def _add_fields(parser: Any, group: str, config: Any, names: Sequence[str]) -> None:
    skipped = {field.name for field in fields(config)} - {*names}
    parser.add_class_arguments(config, group, skip=skipped)


def add_guidance(parser: Any) -> None:
    """Show which tokens of a text the student learns from the teacher, and why.

    As a table, a page, a figure or numbers. The text is ranked as a row of its own.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import StudentConfig
    from vocagno.config.teacher import TeacherConfig

    parser.add_argument("student.model", type=str, metavar="student", help=_MODEL)
    parser.add_argument("teacher.model", type=str, metavar="teacher", help=_MODEL)
    add_text(parser, "show")
    parser.add_argument("--html", type=Path, help="draw it as a page, into this file")
    parser.add_argument("--figure", type=Path, help="draw a short text into this .svg or .png file")
    _add_fields(parser, "guidance", GuidanceConfig, ["method", *_RULE])
    _add_fields(parser, "student", StudentConfig, ["tokenizer", "eos"])
    _add_fields(parser, "teacher", TeacherConfig, _OF_TEACHER)


def guidance(options: Any) -> dict[str, Any] | None:
    """Writes page and figure; the guidance as data, or as a table."""
    text = given_text(options, "`guidance` shows one text; give a part of it")
    if options.figure is not None:
        from vocagno.views.figure import check_format, check_text

        check_format(options.figure, "--figure")
        check_text(text)

    from vocagno.system.files import appearing
    from vocagno.training.sample_pages import guide_text

    guided = guide_text(options.student, options.teacher, text, options.guidance)
    files = []
    if options.html is not None:
        with appearing(options.html) as file:
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


_SHARES = (0.95, 0.98, 0.99, 0.995, 0.999)


def add_limit(parser: Any) -> None:
    """Find the limit for lines of noise that keeps a share of a clean text.

    The teacher scores the text if it is not in the cache. With --corpus, also shows what the limits
    keep of a training text.
    """
    from vocagno.config.teacher import TeacherConfig

    parser.add_argument("text", type=str, help=f"clean text of the domain: {CORPUS}")
    parser.add_argument("--tokenizer", required=True, help=f"of the student: {TOKENIZER}")
    parser.add_argument("--keep", type=float, default=0.99, help="share of the tokens to keep")
    parser.add_argument("--scores", type=Path | None, help="store of teacher scores of the text")
    parser.add_argument("--corpus", type=str | None, help="training text to compare with")
    parser.add_argument("--corpus_scores", type=Path | None, help="store of its teacher scores")
    parser.add_argument("--eos", type=str | None, help="token after every document")
    parser.add_argument("--seq_len", type=int, default=2048, help="predicted tokens of a row")
    add_cache_and_max_refused(parser)
    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores", "mode", "shard", "also"})


def limit(options: Any) -> dict[str, Any] | None:
    """The limit, and what it and those for other shares keep."""
    from vocagno.guidance.rules import kept_share, limit_that_keeps
    from vocagno.models.loading import local_device
    from vocagno.teacher.scoring import ConfiguredTeacher
    from vocagno.tokens.student_tokenizer import student_tokenizer

    require(0 < options.keep <= 1, f"--keep must be in (0, 1], got {options.keep}")
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    teacher = ConfiguredTeacher(options.teacher, options.cache, local_device())
    require(
        options.corpus is not None or options.corpus_scores is None,
        "--corpus_scores: are of --corpus; give that, too",
    )
    require(
        options.corpus != options.text,
        "--corpus: is the clean text itself; name the training text, or omit it",
    )
    stores = {options.text: options.scores}
    if options.corpus is not None:
        stores[options.corpus] = options.corpus_scores
    names, given = list(stores), (options, tokenizer, teacher)
    with terminable():
        losses = [_losses(name, store, *given) for name, store in stores.items()]
    always = kept_share(-math.inf, losses[0])
    shares = sorted({*(share for share in _SHARES if share > always), options.keep})
    limits = {share: limit_that_keeps(share, losses[0]) for share in shares}
    kept = {
        share: [kept_share(most, of_text) for of_text in losses] for share, most in limits.items()
    }
    chosen = limits[options.keep]
    if options.json:
        tokens = dict(zip(names, map(len, losses), strict=True))
        rows = [
            {"window_max_loss": limits[share], "kept": dict(zip(names, kept[share], strict=True))}
            for share in shares
        ]
        return {"window_max_loss": chosen, "tokens": tokens, "limits": rows}
    heading = ["nats a byte", *(f"kept of {name}" for name in names)]
    lines = [[f"{limits[share]:.2f}", *(f"{one:.1%}" for one in kept[share])] for share in shares]
    print(in_table([heading, *lines]))
    share = kept[options.keep][0]
    print(f"\nguidance.window_max_loss: {chosen}  # keeps {share:.1%} of {options.text}")
    return None


def _losses(
    name: str,
    store: Path | None,
    options: Any,
    tokenizer: "StudentTokenizer",
    teacher: "ConfiguredTeacher",
) -> "NDArray[Any]":
    """What the teacher loses on the neighbours of each token of a text, in nats a byte.

    Args: store: of its scores; None: that in the cache, made if it is not there.
    """
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.config.options import DataConfig
    from vocagno.data.prepare import prepare_rows, scan_with_progress
    from vocagno.guidance.batches import Collator, losses_of_neighbours
    from vocagno.teacher.scores import MatchedScores

    data = DataConfig(train=name, seq_len=options.seq_len, cache=options.cache)
    corpus = scan_with_progress(
        name, data.cache, show_progress=True, max_refused=options.max_refused
    )
    rows, _ = prepare_rows(corpus, tokenizer, data.seq_len, data.cache, show_progress=True)
    scores = MatchedScores(teacher.scores(lambda: corpus, store, show_progress=True), rows)
    require(
        not scores.missing_documents,
        f"{scores.store.folder}: has no scores of {scores.missing_documents:,} documents of "
        f"{name}; run `vocagno score` on it",
    )
    collator = Collator(scores, GuidanceConfig(), data, tokenizer.spans.line_ends())
    return losses_of_neighbours((rows[number] for number in range(len(rows))), collator)
