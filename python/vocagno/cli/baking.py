"""`vocagno bake`: the teacher's losses parallel to a token file of another trainer."""

from pathlib import Path
from typing import Any, Literal

from vocagno.alignment.mapping import Reduction
from vocagno.config.arguments import TOKENIZER, add_max_refused
from vocagno.errors import require

_RULE = (
    *("unit", "top_fraction", "max_threshold", "window", "window_max_loss"),
    *("aggregation", "unmapped"),
)
"""Fields of `GuidanceConfig` that are options of the weights."""


def add_bake(parser: Any) -> None:
    """Write the teacher's loss of each token of a token file, for trainers that read it.

    A float16 for each token of a `.bin`, `.ds` or `.npy`, and on request a weight.
    """
    from vocagno.config.guidance import GuidanceConfig

    parser.add_argument("tokens", type=Path, help=".bin with .idx, .ds with .ds.index, or .npy")
    parser.add_argument("--scores", type=Path, required=True, help="store of teacher scores")
    parser.add_argument("--tokenizer", type=str, required=True, help=f"of the ids: {TOKENIZER}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the streams")
    parser.add_argument(
        "--eos", type=str | None, help=".npy: token after every document; default: the tokenizer's"
    )
    parser.add_argument(
        "--boundaries", type=Path | None, help=".npy: places of the documents, in place of --eos"
    )
    parser.add_argument(
        "--dtype",
        type=Literal["uint16", "uint32"] | None,
        help=".npy without NumPy's header: type of the ids",
    )
    parser.add_argument(
        "--unit", type=Literal["token", "group"], default="token", help="as guidance.unit"
    )
    parser.add_argument(
        "--aggregation", type=Reduction, default="max", help="as guidance.aggregation"
    )
    parser.add_argument(
        "--min_coverage", type=float, default=0.99, help="stop if fewer tokens have a loss"
    )
    add_max_refused(parser)
    parser.add_argument(
        "--weights", action="store_true", help="write weights, too: by the rule of guidance"
    )
    skipped = set(GuidanceConfig.__dataclass_fields__) - set(_RULE)
    parser.add_class_arguments(GuidanceConfig, "guidance", skip=skipped)


def bake(options: Any) -> dict[str, Any]:
    """Writes the streams where they are missing; what they hold."""
    from vocagno.config.guidance import GuidanceConfig

    rule = options.guidance if options.weights else None
    require(
        options.weights or options.guidance == GuidanceConfig(),
        "--guidance: is the rule of the weights; add --weights, or omit it",
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

    from vocagno.data.store.refusals import REFUSED, say_omitted
    from vocagno.integrations.baking import bake_file, check_rule
    from vocagno.system.signals import terminable
    from vocagno.teacher.scores import ScoreStore

    if rule is not None:
        check_rule(rule)
    file, spans = _opened(options)
    store = ScoreStore(options.scores)
    with terminable():
        counts = bake_file(
            file,
            spans,
            store,
            options.out,
            losses,
            rule,
            max_refused=options.max_refused,
            show_progress=True,
        )
    say_omitted(options.out, counts["documents"], counts.get(REFUSED, 0))
    return {"folder": str(options.out), **counts}


def _opened(options: Any) -> tuple[Any, Any]:
    """The token file, and the tokenizer of its ids."""
    from vocagno.integrations.token_files import open_token_file, tokens_path
    from vocagno.tokens.student_tokenizer import student_tokenizer
    from vocagno.tokens.token_spans import TokenSpans

    given = {"boundaries": options.boundaries, "dtype": options.dtype}
    if tokens_path(options.tokens).suffix != ".npy" or options.boundaries is not None:
        require(options.eos is None, "--eos: is for a .npy without --boundaries; omit it")
        file = open_token_file(options.tokens, **given)
        return file, TokenSpans.from_pretrained(options.tokenizer)
    tokenizer = student_tokenizer(options.tokenizer, options.eos)
    require(
        bool(tokenizer.spans.is_special([tokenizer.eos_id])[0]),
        f"--eos: {tokenizer.eos!r} is an ordinary token of {options.tokenizer} and would count as "
        "text; mark it as special in its tokenizer.json",
    )
    return open_token_file(options.tokens, eos_id=tokenizer.eos_id, **given), tokenizer.spans
