"""Carries out the runs of a study, each in a process of its own, and measures them.

What is measured of a run is not measured again, and a killed run resumes. Several processes may
carry out one study together, on all machines that see its folder.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from research.study.assets import make_assets
from research.study.measured import ENOUGH, MEASURED, Measured, read_measured, write_measured
from research.study.plan import Plan, Run
from research.study.requirements import (
    Requirements,
    check_measurable,
    requirements_of,
    steps_before,
)
from research.study.training_process import train, wait_until_free
from vocagno.config.options import Config
from vocagno.errors import ConfigError, InputError
from vocagno.system.progress import Progress
from vocagno.system.shared_work import share
from vocagno.training.run_log import METRICS, Entry, read_run


def carry_out(plan: Plan, out: Path, extra: Mapping[str, str], *, show: bool) -> list[Measured]:
    """Returns when all that the plan asks for is measured of all runs, by this process or others.

    Raises: ConfigError for options of any run that make no sense, before the first begins;
        InputError for a run that fails, which names its log, for wrong questions, and for what
        cannot be measured any more of a run that is finished.
    """
    runs = plan.runs(out, extra)
    configs = {run.name: _parse_and_check(run) for run in runs}
    if plan.confidence:
        for config in configs.values():
            config.data.one_held_out  # noqa: B018  # several are refused now, not after hours
    baseline = next(run for run in runs.variants if run.variant == plan.baseline)
    if plan.questions is not None and plan.questions.is_file():
        requirements_of(plan)  # wrong ones are refused before a teacher is trained
    out.mkdir(parents=True, exist_ok=True)
    make_assets(plan, configs[baseline.name].data.one_corpus, out)  # they may be the questions
    requirements = requirements_of(plan)
    for run in runs:
        if _is_trained(run):
            check_measurable(run, requirements)
            _check_corpora(run, configs[run.name])
    with Progress("studying", len(configs), unit="runs", show=show) as progress:
        measured: dict[str, Measured] = {}
        for stage in runs.stages():
            _carry_out(stage, out, requirements, progress, measured)
    return [measured[run.name] for run in runs.variants]


def _carry_out(
    stage: list[Run],
    out: Path,
    requirements: Requirements,
    progress: Progress,
    measured: dict[str, Measured],
) -> None:
    """Carries out runs that do not need one another. The results go to `measured`, by name."""
    runs = {run.name: run for run in stage}

    def done(name: str) -> bool:
        run = runs[name]
        return _is_trained(run) and requirements.is_all_in(read_measured(run.folder))

    def make(name: str) -> None:
        progress.at(len(measured), name)
        _measure(runs[name], requirements)

    def report(name: str) -> None:
        measured[name] = read_measured(runs[name].folder)
        progress.at(len(measured), name)

    share(list(runs), out, done=done, make=make, report=report)


def measured_so_far(plan: Plan, out: Path, extra: Mapping[str, str]) -> list[Measured]:
    """Collects what is measured of a study that may not be complete.

    Answers to other questions than the plan's, or at other steps, are omitted; stderr says so.

    Raises: ConfigError for a run that was carried out by another plan.
    """
    runs = [run for run in plan.runs(out, extra).variants if _is_trained(run)]
    for run in runs:
        _check_corpora(run, _parse_and_check(run))
    has_questions = plan.questions is not None and plan.questions.is_file()
    requirements = (
        requirements_of(plan) if has_questions else Requirements(confidence=plan.confidence)
    )
    comparable = []
    for run in runs:
        measured = read_measured(run.folder)
        comparable.append(requirements.comparable(measured))
        if comparable[-1] != measured:
            print(
                f"{run.name}: was asked other questions, or at other steps, or how sure it is of "
                "another number of tokens than the plan has: that is omitted here",
                file=sys.stderr,
            )
    return comparable


def _is_trained(run: Run) -> bool:
    return (run.folder / MEASURED).is_file()


def _parse_and_check(run: Run) -> Config:
    """Parses the configuration of a run, which has to be that of a run begun before."""
    from vocagno.training.configuration import check_same_run, parse

    try:
        config = parse([*run.arguments, "--output", str(run.folder)])
        check_same_run(config)
    except InputError as error:
        raise type(error)(f"{run.name}: {error}") from error
    if not config.data.held_out:
        raise ConfigError(
            f"{run.name}: data.validation: needed, for clean held-out text to compare runs on"
        )
    return config


def _check_corpora(run: Run, config: Config) -> None:
    """Compares the held-out corpora of a measured run with those of its configuration. An earlier
    version pooled them. Raises: InputError if they differ."""
    measured, names = read_measured(run.folder), list(config.data.held_out)[1:]
    if list(measured.other_losses or {}) != names:
        raise InputError(
            f"{run.folder / MEASURED}: has the losses of {list(measured.other_losses or {})} "
            f"besides the first held-out corpus, expected {names}; delete the file, and the study "
            "reads them from the log of the run"
        )


def _measure(run: Run, requirements: Requirements) -> None:
    """Does what is missing of a run, and keeps each part of it as soon as it is there."""
    measured = read_measured(run.folder) if _is_trained(run) else _train_and_measure(run)
    if requirements.lacks_answers(measured):
        from vocagno.quickstart.problems import accuracy_of_run

        assert requirements.questions is not None
        answers = accuracy_of_run(run.folder, requirements.questions)
        measured = replace(
            measured.without_answers(),
            exact_answers=answers,
            question_digest=requirements.question_digest,
        )
        write_measured(run.folder, measured)
    if requirements.lacks_answers_at(measured):
        measured = _ask_checkpoints(run.folder, requirements, measured)
        write_measured(run.folder, measured)
    if requirements.questions_every is not None and run.seed is not None:
        from research.study.confidence import discard_checkpoints

        discard_checkpoints(run.folder)
    if requirements.lacks_confidence(measured):
        from research.study.confidence import confidence_of_run

        confidence = confidence_of_run(run.folder, requirements.confidence)
        write_measured(run.folder, replace(measured, confidence=confidence))


def _train_and_measure(run: Run) -> Measured:
    """Trains to the end and records the result, which has no answers to questions yet."""
    from vocagno.training.configuration import is_begun

    run.folder.mkdir(parents=True, exist_ok=True)
    wait_until_free(run)
    is_whole = not is_begun(run.folder)
    usage = train(run)
    log = read_run(run.folder)
    validations = [entry for entry in log.entries if entry.validation_loss is not None]
    if not validations:
        raise InputError(
            f"{run.name}: no held-out loss in {run.folder / METRICS}; delete {run.folder}, and "
            "start again"
        )
    by_step = attrgetter("step")
    first, last = min(validations, key=by_step), max(validations, key=by_step)
    start, other_start = _held_out_losses(first) if first.step == 0 else (None, None)
    loss, other_losses = _held_out_losses(last)
    measured = Measured(
        variant=run.variant,
        seed=run.seed,
        held_out_loss=loss,
        exact_answers=None,
        trained_on=round(log.kept_share, 6),
        tokens=log.points[-1].tokens,
        cpu_seconds=usage["cpu_seconds"] if is_whole else None,
        peak_memory_mib=usage["peak_memory_mib"] if is_whole else None,
        start_loss=start,
        other_losses=other_losses,
        other_start_losses=other_start,
    )
    write_measured(run.folder, measured)
    return measured


def _held_out_losses(entry: Entry) -> tuple[float, dict[str, float] | None]:
    """Splits a validation into the loss on the first corpus and those on the others, if any."""
    assert entry.validation_loss is not None
    if not entry.validation_losses:
        return round(entry.validation_loss, 6), None
    first, *later = (round(loss, 6) for loss in entry.validation_losses.values())
    names = list(entry.validation_losses)[1:]
    return first, dict(zip(names, later, strict=True))


def _ask_checkpoints(folder: Path, requirements: Requirements, measured: Measured) -> Measured:
    """Adds the answers at the checkpoints of the training."""
    from research.study.confidence import answers_at_checkpoints

    assert requirements.questions is not None
    assert requirements.questions_every is not None
    assert measured.exact_answers is not None
    last = read_run(folder).points[-1].step
    steps = steps_before(last, requirements.questions_every)
    answers = answers_at_checkpoints(folder, requirements.questions, steps)
    answers_at = (*answers.items(), (last, measured.exact_answers))
    enough = [step for step, share in answers_at if share >= ENOUGH]
    return replace(measured, answers_at=answers_at, steps_to_80=min(enough, default=None))
