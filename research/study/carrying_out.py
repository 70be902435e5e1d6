"""Carries out the runs of a study, each in a process of its own, and measures them.

What is measured of a run is not measured again, and a killed run resumes. Several processes may
carry out one study together, on all machines that see its folder.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from research.study.assets import make_assets
from research.study.measured import ENOUGH, MEASURED, Measured, read_measured, write_measured
from research.study.plan import Plan, Run
from research.study.training_process import train, wait_until_free
from research.study.wanted import Wanted, check_measurable, steps_before, wanted_by
from vocagno.config.options import Config
from vocagno.errors import ConfigError, InputError
from vocagno.system.progress import Progress
from vocagno.system.shared_work import share
from vocagno.training.run_log import METRICS, read_run


def carry_out(plan: Plan, out: Path, extra: Mapping[str, str], *, show: bool) -> list[Measured]:
    """Returns when all that the plan asks for is measured of all runs, by this process or others.

    Raises: ConfigError for options of any run that make no sense, before the first begins;
        InputError for a run that fails, which names its log, for wrong questions, and for what
        cannot be measured any more of a run that is finished.
    """
    runs = plan.runs(out, extra)
    configs = {run.name: _checked(run) for run in runs}
    baseline = next(run for run in runs.variants if run.variant == plan.baseline)
    if plan.questions is not None and plan.questions.is_file():
        wanted_by(plan)  # wrong ones are refused before a teacher is trained
    out.mkdir(parents=True, exist_ok=True)
    make_assets(plan, configs[baseline.name].data.one_corpus, out)  # they may be the questions
    wanted = wanted_by(plan)
    for run in runs:
        if _is_trained(run):
            check_measurable(run, wanted)
    with Progress("studying", len(configs), unit="runs", show=show) as progress:
        found: dict[str, Measured] = {}
        for stage in runs.stages():
            _carry_out(stage, out, wanted, progress, found)
    return [found[run.name] for run in runs.variants]


def _carry_out(
    stage: list[Run], out: Path, wanted: Wanted, progress: Progress, found: dict[str, Measured]
) -> None:
    """Runs that do not need one another; what is measured goes to `found`."""
    named = {run.name: run for run in stage}

    def done(name: str) -> bool:
        run = named[name]
        return _is_trained(run) and wanted.is_all_in(read_measured(run.folder))

    def make(name: str) -> None:
        progress.at(len(found), name)
        _measure(named[name], wanted)

    def report(name: str) -> None:
        found[name] = read_measured(named[name].folder)
        progress.at(len(found), name)

    share(list(named), out, done=done, make=make, report=report)


def measured_so_far(plan: Plan, out: Path, extra: Mapping[str, str]) -> list[Measured]:
    """What is measured of a study that may not be complete. Answers to other questions than the
    plan's, or at other steps, are omitted, and stderr says so.

    Raises: ConfigError for a run that was carried out by another plan.
    """
    runs = [run for run in plan.runs(out, extra).variants if _is_trained(run)]
    for run in runs:
        _checked(run)
    has_questions = plan.questions is not None and plan.questions.is_file()
    wanted = wanted_by(plan) if has_questions else Wanted(confidence=plan.confidence)
    found = []
    for run in runs:
        measured = read_measured(run.folder)
        found.append(wanted.comparable(measured))
        if found[-1] != measured:
            print(
                f"{run.name}: was asked other questions, or at other steps, or how sure it is of "
                "another number of tokens than the plan has: that is omitted here",
                file=sys.stderr,
            )
    return found


def _is_trained(run: Run) -> bool:
    return (run.folder / MEASURED).is_file()


def _checked(run: Run) -> Config:
    """The configuration of a run; if it was begun before, that of then."""
    from vocagno.training.configuration import check_same_run, parse

    try:
        config = parse([*run.arguments, "--output", str(run.folder)])
        check_same_run(config)
    except InputError as error:
        raise type(error)(f"{run.name}: {error}") from error
    if not config.data.held_out:
        raise ConfigError(f"{run.name}: data.validation: needed, clean held-out text to compare by")
    return config


def _measure(run: Run, wanted: Wanted) -> None:
    """Does what is missing of a run, and keeps each part of it as soon as it is there."""
    measured = read_measured(run.folder) if _is_trained(run) else _trained(run)
    if wanted.lacks_answers(measured):
        from vocagno.quickstart.problems import accuracy_of_run

        assert wanted.questions is not None
        answers = accuracy_of_run(run.folder, wanted.questions)
        measured = replace(
            measured.without_answers(),
            exact_answers=answers,
            question_digest=wanted.question_digest,
        )
        write_measured(run.folder, measured)
    if wanted.lacks_answers_at(measured):
        measured = _with_answers_at(run.folder, wanted, measured)
        write_measured(run.folder, measured)
    if wanted.questions_every is not None and run.seed is not None:
        from research.study.confidence import discard_checkpoints

        discard_checkpoints(run.folder)
    if wanted.lacks_confidence(measured):
        from research.study.confidence import confidence_of_run

        confidence = confidence_of_run(run.folder, wanted.confidence)
        write_measured(run.folder, replace(measured, confidence=confidence))


def _trained(run: Run) -> Measured:
    """Trains to the end; what came out, before any question."""
    from vocagno.training.configuration import is_begun

    run.folder.mkdir(parents=True, exist_ok=True)
    wait_until_free(run)
    is_whole = not is_begun(run.folder)
    usage = train(run)
    found = read_run(run.folder)
    steps, held_out = found.curve("validation_loss")
    if not held_out:
        raise InputError(
            f"{run.name}: no held-out loss in {run.folder / METRICS}; delete {run.folder}, and "
            "start again"
        )
    measured = Measured(
        variant=run.variant,
        seed=run.seed,
        held_out_loss=round(held_out[-1], 6),
        exact_answers=None,
        trained_on=round(found.kept_share, 6),
        tokens=found.points[-1].tokens,
        cpu_seconds=usage["cpu_seconds"] if is_whole else None,
        peak_memory_mib=usage["peak_memory_mib"],
        start_loss=round(held_out[0], 6) if steps[0] == 0 else None,
    )
    write_measured(run.folder, measured)
    return measured


def _with_answers_at(folder: Path, wanted: Wanted, measured: Measured) -> Measured:
    """The same with the answers during training."""
    from research.study.confidence import answers_at_checkpoints

    assert wanted.questions is not None
    assert wanted.questions_every is not None
    assert measured.exact_answers is not None
    last = read_run(folder).points[-1].step
    steps = steps_before(last, wanted.questions_every)
    found = answers_at_checkpoints(folder, wanted.questions, steps)
    answers_at = (*found.items(), (last, measured.exact_answers))
    enough = [step for step, share in answers_at if share >= ENOUGH]
    return replace(measured, answers_at=answers_at, steps_to_80=min(enough, default=None))
