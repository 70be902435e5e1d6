"""`vocagno limit`: the `guidance.window_max_loss` that keeps a text known to be clean."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocagno.config.arguments import CORPUS, TOKENIZER, add_cache, add_max_refused
from vocagno.errors import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vocagno.teacher.scoring import ConfiguredTeacher
    from vocagno.tokens.student_tokenizer import StudentTokenizer

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
    add_cache(parser)
    add_max_refused(parser)
    parser.add_class_arguments(TeacherConfig, "teacher", skip={"scores", "mode", "shard"})


def limit(options: Any) -> dict[str, Any] | None:
    """The limit, and what it and those for other shares keep."""
    from vocagno.guidance.limits import kept_share, limit_that_keeps
    from vocagno.models.loading import local_device
    from vocagno.system.signals import terminable
    from vocagno.system.terminal import in_table
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
    names = list(stores)
    with terminable():
        losses = [
            _losses(name, store, options, tokenizer, teacher) for name, store in stores.items()
        ]
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
    from vocagno.data.prepare import prepared_rows, scanned
    from vocagno.guidance.batches import Collator
    from vocagno.guidance.limits import losses_of_neighbours
    from vocagno.teacher.scores import MatchedScores

    data = DataConfig(train=name, seq_len=options.seq_len, cache=options.cache)
    corpus = scanned(name, data.cache, show_progress=True, max_refused=options.max_refused)
    require(corpus.text_bytes > 0, f"{name}: every document is empty")
    rows, _ = prepared_rows(corpus, tokenizer, data.seq_len, data.cache, show_progress=True)
    scores = MatchedScores(teacher.scores(lambda: corpus, store, show_progress=True), rows)
    require(
        not scores.missing_documents,
        f"{scores.store.folder}: has no scores of {scores.missing_documents:,} documents of "
        f"{name}; run `vocagno score` on it",
    )
    collator = Collator(scores, GuidanceConfig(), data, tokenizer.spans.line_ends())
    return losses_of_neighbours((rows[number] for number in range(len(rows))), collator)
