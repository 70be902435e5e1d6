"""What a training loop compares: the guidance of its parts, and how much of the text the teacher
covers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vocagno.config.guidance import GuidanceConfig
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.tensors import TokenCounts


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the host knows of a batch. It is passed on as it is, and to no device."""

    guidance: GuidanceConfig
    """What the batch was made for."""
    counts: TokenCounts
    student: str | None = None
    """`TokenSpans.fingerprint` of the tokenizer of its ids, if it is known."""


def check_guidance(made: GuidanceConfig, used: GuidanceConfig, where: str) -> None:
    """Compares the guidance that a batch was made for with that of the loss.

    Raises: ConfigError that names the options that differ.
    """
    if made != used:
        raise ConfigError(
            f"{where}: made for {_differences(asdict(made), asdict(used))}; give both the same "
            "guidance"
        )


def made_for(guidance: GuidanceConfig, student: str) -> str:
    """The options that the columns of a data set depend on, and the fingerprint of the student's
    tokenizer, as JSON."""
    return json.dumps(_of_columns(guidance) | {"student": student})


def check_columns(made: str, guidance: GuidanceConfig) -> str:
    """Compares `made_for` of some columns with the guidance that they are to be used with.

    Returns: the fingerprint of the student's tokenizer.
    Raises: ConfigError that names the options that differ.
    """
    given = json.loads(made)
    student: str = given.pop("student")
    if given != (needed := _of_columns(guidance)):
        raise ConfigError(
            f"columns of another guidance: made for {_differences(given, needed)}; make them by "
            "add_teacher_loss with this guidance"
        )
    return student


def check_coverage(counts: TokenCounts, guidance: GuidanceConfig, where: str = "") -> None:
    """Stops a loop whose teacher covers too little of the text. The host does not wait for a
    device.

    Args:
        counts: of some batches, added up over all processes: `GuidedBatch.counts`, or
            `batch["facts"].counts` of the collators. Tokens of documents without scores count only
            if there are no others.
        where: for the message.
    Raises: GuidanceError below `guidance.min_coverage`, saying which reason dominates.
    """
    if not guidance.needs_teacher:
        return
    where = f"{where}: " if where else ""
    if counts.missing and not counts.with_text:
        raise GuidanceError(
            f"{where}no text of these {counts.missing:,} tokens has scores: the scores are of "
            "another corpus (run `vocagno score` on this one), or the teacher's tokenizer cannot "
            "read this one"
        )
    for name, verb, possible in (
        ("coverage", "map to the teacher", ("truncated", "hole")),
        ("scored", "have a teacher loss", ("truncated", "hole", "unscored")),
    ):
        share = counts.shares.get(name, 1.0)
        if share < guidance.min_coverage:
            worst = max(possible, key=lambda reason: getattr(counts, reason))
            raise GuidanceError(
                f"{where}only {share:.2%} of the tokens {verb} (guidance.min_coverage: "
                f"{guidance.min_coverage:.2%}). Main cause: {worst} ({getattr(counts, worst)} "
                "tokens). Without a teacher loss these tokens train as in naive pretraining: check "
                "the spans of both tokenizers, or lower the limit."
            )


def _of_columns(guidance: GuidanceConfig) -> dict[str, Any]:
    names = "method", "unit", "aggregation", "chunks", "window_max_loss"
    unmapped = guidance.unmapped if guidance.window else None  # of the weights
    return {name: getattr(guidance, name) for name in names} | {"unmapped": unmapped}


def _differences(made: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    return ", ".join(
        f"guidance.{name} {value}, not {used[name]}"
        for name, value in made.items()
        if value != used[name]
    )
