"""The measurements that a plan requires of its runs, and what a measured run lacks of them."""

from dataclasses import dataclass, replace
from pathlib import Path

from research.study.measured import Measured, read_measured
from research.study.plan import Plan, Run
from vocagno.errors import InputError
from vocagno.quickstart.problems import read_questions
from vocagno.system.files import digest
from vocagno.training.run_log import read_run


@dataclass(frozen=True, slots=True)
class Requirements:
    """The measurements of each run that follow its training."""

    questions: Path | None = None
    question_digest: str | None = None
    """The hash of the questions and answers; None if there are no questions."""
    questions_every: int | None = None
    confidence: int = 0

    def lacks_answers(self, measured: Measured) -> bool:
        """Tells whether the final model has no answers to these questions."""
        return self.questions is not None and (
            measured.exact_answers is None or self._has_other_answers(measured)
        )

    def lacks_answers_at(self, measured: Measured) -> bool:
        """Tells whether a variant has no answers to these questions at these steps."""
        if self.questions_every is None or measured.seed is None:
            return False
        if measured.answers_at is None or self._has_other_answers(measured):
            return True
        steps = [step for step, _ in measured.answers_at]
        return steps[:-1] != steps_before(steps[-1], self.questions_every)

    def lacks_confidence(self, measured: Measured) -> bool:
        """Tells whether the confidence of a run is not measured on this number of tokens."""
        confidence = measured.confidence
        return self.confidence > 0 and (confidence is None or confidence.wanted != self.confidence)

    def is_all_in(self, measured: Measured) -> bool:
        """Tells whether all that is required is measured."""
        return not (
            self.lacks_answers(measured)
            or self.lacks_answers_at(measured)
            or self.lacks_confidence(measured)
        )

    def comparable(self, measured: Measured) -> Measured:
        """Removes what was measured with other questions or steps, or another number of tokens."""
        if self._has_other_answers(measured):
            measured = measured.without_answers()
        if self.lacks_answers_at(measured):
            measured = replace(measured, answers_at=None, steps_to_80=None)
        if self.confidence > 0 and self.lacks_confidence(measured):
            measured = replace(measured, confidence=None)
        return measured

    def _has_other_answers(self, measured: Measured) -> bool:
        """Tells whether the answers are to other questions.

        Earlier versions did not record the questions; theirs count as the same.
        """
        return (
            self.question_digest is not None
            and measured.question_digest is not None
            and measured.question_digest != self.question_digest
        )


def requirements_of(plan: Plan) -> Requirements:
    """Reads what a plan requires. Raises: InputError for missing or malformed questions."""
    if plan.questions is None:
        return Requirements(confidence=plan.confidence)
    if not plan.questions.is_file():
        raise InputError(f"questions: {plan.questions}: no such file; correct the path in the plan")
    problems = read_questions(plan.questions)
    question_digest = digest(
        *(part for problem in problems for part in (problem["question"], problem["answer"]))
    )
    return Requirements(plan.questions, question_digest, plan.questions_every, plan.confidence)


def steps_before(last: int, every: int) -> list[int]:
    """Lists the steps before the last one after which a run answers the questions."""
    return list(range(every, last, every))


def check_measurable(run: Run, requirements: Requirements) -> None:
    """Checks that the checkpoints of a measured run suffice for the answers that it lacks.

    Raises: InputError naming the first checkpoint that is gone.
    """
    if not requirements.lacks_answers_at(read_measured(run.folder)):
        return
    assert requirements.questions_every is not None
    last = read_run(run.folder).points[-1].step
    for step in steps_before(last, requirements.questions_every):
        weights = checkpoint_weights(run.folder, step)
        # Another process may just have asked, and removed the checkpoint.
        if not weights.is_file() and requirements.lacks_answers_at(read_measured(run.folder)):
            raise InputError(
                f"{run.name}: questions_every: {requirements.questions_every}: {weights} does not "
                "exist. The answers after this step cannot be measured any more: the run was asked "
                "other questions or at other steps, or at none. Give the plan what it had then, "
                f"omit questions_every, or delete {run.folder} to train the run again"
            )


def checkpoint_weights(folder: Path, step: int) -> Path:
    """Returns the file with the student's weights in the checkpoint of a step."""
    return folder / "checkpoints" / f"step_{step}" / "model.safetensors"
