"""What a plan asks to be measured, and what a measured run lacks of it."""

from dataclasses import dataclass, replace
from pathlib import Path

from research.study.measured import Measured, read_measured
from research.study.plan import Plan, Run
from vocagno.errors import InputError
from vocagno.quickstart.problems import read_questions
from vocagno.system.files import digest
from vocagno.training.run_log import read_run


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured of the runs of a study, after training."""

    questions: Path | None = None
    question_digest: str | None = None
    """Hash of the questions and answers; None without questions."""
    questions_every: int | None = None
    confidence: int = 0

    def lacks_answers(self, measured: Measured) -> bool:
        """Whether the final model was not asked, or other questions."""
        return self.questions is not None and (
            measured.exact_answers is None or self._was_asked_others(measured)
        )

    def lacks_answers_at(self, measured: Measured) -> bool:
        """Whether a variant was not asked at these steps of its training, or other questions."""
        if self.questions_every is None or measured.seed is None:
            return False
        if measured.answers_at is None or self._was_asked_others(measured):
            return True
        steps = [step for step, _ in measured.answers_at]
        return steps[:-1] != steps_before(steps[-1], self.questions_every)

    def lacks_confidence(self, measured: Measured) -> bool:
        """Whether a run was not asked how sure it is, or of another number of tokens."""
        known = measured.confidence
        return self.confidence > 0 and (known is None or known.wanted != self.confidence)

    def is_all_in(self, measured: Measured) -> bool:
        """Whether nothing is left to measure."""
        return not (
            self.lacks_answers(measured)
            or self.lacks_answers_at(measured)
            or self.lacks_confidence(measured)
        )

    def comparable(self, measured: Measured) -> Measured:
        """The same without what is of other questions or steps, or another number of tokens."""
        if self._was_asked_others(measured):
            measured = measured.without_answers()
        if self.lacks_answers_at(measured):
            measured = replace(measured, answers_at=None, steps_to_80=None)
        if self.confidence > 0 and self.lacks_confidence(measured):
            measured = replace(measured, confidence=None)
        return measured

    def _was_asked_others(self, measured: Measured) -> bool:
        """Earlier versions did not keep which questions they asked: these are taken for ours."""
        return (
            self.question_digest is not None
            and measured.question_digest is not None
            and measured.question_digest != self.question_digest
        )


def wanted_by(plan: Plan) -> Wanted:
    """What a plan asks for. Raises: InputError if its questions are missing or not such."""
    if plan.questions is None:
        return Wanted(confidence=plan.confidence)
    if not plan.questions.is_file():
        raise InputError(f"questions: {plan.questions}: no such file")
    asked = read_questions(plan.questions)
    found = digest(*(part for one in asked for part in (one["question"], one["answer"])))
    return Wanted(plan.questions, found, plan.questions_every, plan.confidence)


def steps_before(last: int, every: int) -> list[int]:
    """The steps before the last one at which a run is asked."""
    return list(range(every, last, every))


def check_measurable(run: Run, wanted: Wanted) -> None:
    """Raises: InputError for a measured run that cannot be asked at the steps of its training any
    more, since it did not keep the checkpoints."""
    if not wanted.lacks_answers_at(read_measured(run.folder)):
        return
    assert wanted.questions_every is not None
    last = read_run(run.folder).points[-1].step
    for step in steps_before(last, wanted.questions_every):
        weights = checkpoint_weights(run.folder, step)
        # Another process may just have asked, and removed the checkpoint.
        if not weights.is_file() and wanted.lacks_answers_at(read_measured(run.folder)):
            raise InputError(
                f"{run.name}: questions_every: {wanted.questions_every}: {weights} does not exist. "
                "The answers after this step cannot be measured any more: the run was asked other "
                "questions or at other steps, or at none. Give the plan what it had then, leave "
                f"questions_every out, or delete {run.folder} to train the run again"
            )


def checkpoint_weights(folder: Path, step: int) -> Path:
    """The student's weights in the checkpoint of a step."""
    return folder / "checkpoints" / f"step_{step}" / "model.safetensors"
