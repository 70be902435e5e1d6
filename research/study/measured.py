"""The measurements of a run, and the file in its folder that keeps them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from research.tables import write_table
from vocagno.errors import InputError
from vocagno.system.files import write_json

MEASURED = "measured.json"
ENOUGH = 0.8
"""Share of the questions whose first step is `Measured.steps_to_80`."""
_EXTRAS = (
    "answers_at",
    "steps_to_80",
    "confidence",
    "question_digest",
    "other_losses",
    "other_start_losses",
)
"""Fields of `Measured` that only some plans ask for, or that no reader compares."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """Measures of how sure a model is of held-out text, next to how often it is right.

    A student whose entropy equals its loss is as sure as it is right. The temperature that suits it
    is what its logits are divided by for the smallest loss: below 1 for a student that is less sure
    than it is right.
    """

    wanted: int
    """Tokens that were asked for (`confidence` of the plan)."""
    tokens: int
    """Tokens of the held-out text that were looked at: as many, or all there are."""
    loss: float
    """The mean loss of these tokens, in nats, like all losses here."""
    entropy: float
    """Mean entropy of the predictions, in nats."""
    best_guess_right: float
    """Share of the tokens that were the most probable one."""
    best_guess_probability: float
    """Mean probability of the most probable token."""
    temperature: float
    tempered_loss: float
    """Loss of these tokens with the logits divided by `temperature`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one run."""

    variant: str
    seed: int | None
    held_out_loss: float
    """Nats a token, after the last step; of the first corpus if `data.validation` names several."""
    exact_answers: float | None
    """Share of the questions, where there are any."""
    trained_on: float
    """Share of the predicted tokens that were kept."""
    tokens: int
    cpu_seconds: float | None
    """Seconds of all threads, with validation and with what was not in the cache: the first
    run with a stored teacher has it read the corpus. None if the run was stopped in between."""
    peak_memory_mib: float | None
    """The peak of the main memory of the process. None if the run was stopped in between: the last
    process may only have written the model."""
    answers_at: tuple[tuple[int, float], ...] | None = None
    """Steps and the share of the questions answered exactly after each; None if only the final
    model was asked."""
    steps_to_80: int | None = None
    """The first of these steps with at least 80 % of the answers; None if there is none."""
    confidence: Confidence | None = None
    question_digest: str | None = None
    """Hash of the questions that were asked; None if there were none, or an earlier version asked.
    """
    start_loss: float | None = None
    """`held_out_loss` before the first step; None for new weights."""
    other_losses: dict[str, float] | None = None
    """The loss after the last step on each later corpus of `data.validation`, by its name: text
    that the run should not make worse. None if there is one corpus."""
    other_start_losses: dict[str, float] | None = None
    """`other_losses` before the first step; None for new weights."""

    def without_answers(self) -> "Measured":
        return replace(
            self, exact_answers=None, answers_at=None, steps_to_80=None, question_digest=None
        )


def read_measured(folder: Path) -> Measured:
    """Reads the measurements of a run. An earlier version may have measured less.

    Raises: InputError for a file that is damaged, or of a later version.
    """
    path = folder / MEASURED
    try:
        values: dict[str, Any] = dict(json.loads(path.read_bytes()))
        if (confidence := values.get("confidence")) is not None:
            values["confidence"] = Confidence(**confidence)
        if (answers := values.get("answers_at")) is not None:
            values["answers_at"] = tuple((step, share) for step, share in answers)
        return Measured(**values)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not what a study measures, or cut off ({error}); delete the file, and the "
            "study measures the run again"
        ) from error


def write_measured(folder: Path, measured: Measured) -> None:
    write_json(folder / MEASURED, asdict(measured))


def write_runs(path: Path, measured: Sequence[Measured]) -> None:
    """Writes a line for each run, without columns of extras that no run has."""
    header = [field.name for field in fields(Measured) if field.name not in _EXTRAS]
    if all(run.start_loss is None for run in measured):
        header.remove("start_loss")
    if any(run.answers_at is not None for run in measured):
        header.append("steps_to_80")
    if any(run.confidence is not None for run in measured):
        header += [f"confidence_{field.name}" for field in fields(Confidence)]
    others = list(dict.fromkeys(name for run in measured for name in run.other_losses or {}))
    header += [f"{column}_{name}" for name in others for column in ("other_start", "other")]
    lines = []
    for run in measured:
        values = asdict(run)
        values |= {
            f"confidence_{name}": cell for name, cell in (values["confidence"] or {}).items()
        }
        starts, losses = run.other_start_losses or {}, run.other_losses or {}
        values |= {f"other_start_{name}": loss for name, loss in starts.items()}
        values |= {f"other_{name}": loss for name, loss in losses.items()}
        lines.append([values.get(name) for name in header])
    write_table(path, [header, *lines])
