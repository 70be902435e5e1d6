"""Carries out the runs of a study, each in a process of its own, and measures them.

A run that is measured is skipped, and a killed one resumes. Several processes may carry out one
study together, on all machines that see its folder.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vocagno.config.run import Config
from vocagno.errors import ConfigError, InputError
from vocagno.paper.study.assets import make_assets
from vocagno.paper.study.measured import MEASURED, Measured, read_measured, write_measured
from vocagno.paper.study.plan import Plan, Run
from vocagno.system.files import write_json
from vocagno.system.progress import Progress
from vocagno.system.shared_work import share
from vocagno.training.run_log import read_run

RESULTS = "results.json"
"""Scores in the form of `vocagno.evaluation.results`, for the command `sweep`."""
ENOUGH = 0.8
"""Share of the questions whose first step is `Measured.steps_to_80`."""
_ATTEMPTS = "attempts"
_LOG = "log.txt"


def carry_out(plan: Plan, out: Path, extra: Mapping[str, str], *, show: bool) -> list[Measured]:
    """Returns when all runs are measured, by this process or others.

    Raises: ConfigError for options of any run that make no sense, before the first begins;
        InputError for a run that fails, which names its log.
    """
    runs = plan.runs(out, extra)
    configs = {run.name: _checked(run) for run in runs}
    baseline = next(run for run in runs.variants if run.variant == plan.baseline)
    out.mkdir(parents=True, exist_ok=True)
    make_assets(plan, configs[baseline.name].data.one_corpus, out)
    if plan.questions is not None and not plan.questions.is_file():
        raise InputError(f"questions: {plan.questions}: no such file")
    with Progress("studying", len(configs), unit="runs", show=show) as progress:
        found: dict[str, Measured] = {}
        for stage in runs.stages():
            _carry_out(stage, out, plan, progress, found)
    return [found[run.name] for run in runs.variants]


def _carry_out(
    stage: list[Run], out: Path, plan: Plan, progress: Progress, found: dict[str, Measured]
) -> None:
    """Runs that do not need one another; what is measured goes to `found`."""
    named = {run.name: run for run in stage}

    def done(name: str) -> bool:
        return _is_trained(named[name]) and not _lacks_confidence(named[name], plan)

    def make(name: str) -> None:
        progress.at(len(found), name)
        _measure(named[name], plan)

    def report(name: str) -> None:
        found[name] = read_measured(named[name].folder)
        progress.at(len(found), name)

    share(list(named), out, done=done, make=make, report=report)


def measured_so_far(plan: Plan, out: Path, extra: Mapping[str, str]) -> list[Measured]:
    """What is measured of a study that may not be complete.

    Args:
        extra: as the study was given.
    Raises: ConfigError for a run that was carried out by another plan.
    """
    runs = [run for run in plan.runs(out, extra).variants if _is_trained(run)]
    for run in runs:
        _checked(run)
    return [read_measured(run.folder) for run in runs]


def _is_trained(run: Run) -> bool:
    return (run.folder / MEASURED).is_file()


def _lacks_confidence(run: Run, plan: Plan) -> bool:
    """Whether a measured run was not asked how sure it is, or of another number of tokens."""
    known = read_measured(run.folder).confidence
    return plan.confidence > 0 and (known is None or known.wanted != plan.confidence)


def _checked(run: Run) -> Config:
    """The configuration of a run; if it was begun before, that of then."""
    from vocagno.training.configuration import check_same_run, parse

    try:
        config = parse([*run.arguments, "--output", str(run.folder)])
        check_same_run(config)
    except InputError as error:
        raise type(error)(f"{run.name}: {error}") from error
    if config.data.validation is None:
        raise ConfigError(f"{run.name}: data.validation: needed, clean held-out text to compare by")
    return config


def _measure(run: Run, plan: Plan) -> None:
    """Does what is missing of a run, and writes what came out."""
    if not _is_trained(run):
        write_measured(run.folder, _trained(run, plan))
    if plan.questions_every is not None and run.seed is not None:
        from vocagno.paper.study.answers import discard_checkpoints

        discard_checkpoints(run.folder)
    if _lacks_confidence(run, plan):
        from vocagno.paper.study.confidence import confidence_of_run

        confidence = confidence_of_run(run.folder, plan.confidence)
        write_measured(run.folder, replace(read_measured(run.folder), confidence=confidence))


def _trained(run: Run, plan: Plan) -> Measured:
    """Trains to the end and asks the questions."""
    attempts = run.folder / _ATTEMPTS
    is_first = not attempts.is_file()
    run.folder.mkdir(parents=True, exist_ok=True)
    attempts.touch()
    usage = _train(run)
    found = read_run(run.folder)
    held_out = found.curve("validation_loss")[1]
    answers = _answers(run.folder, plan.questions)
    measured = Measured(
        variant=run.variant,
        seed=run.seed,
        held_out_loss=round(held_out[-1], 6),
        exact_answers=answers,
        trained_on=round(found.kept_share, 6),
        tokens=found.points[-1].tokens,
        cpu_seconds=usage["cpu_seconds"] if is_first else None,
        peak_memory_mib=usage["peak_memory_mib"],
    )
    if answers is None:
        return measured
    scores = {"exact answers": 100 * answers}
    write_json(
        run.folder / RESULTS, {"model": run.variant, "seed": str(run.seed), "scores": scores}
    )
    if plan.questions_every is None or run.seed is None:
        return measured
    answers_at = _answers_at(run.folder, plan, last=(found.points[-1].step, answers))
    steps = [step for step, share in answers_at if share >= ENOUGH]
    return replace(measured, answers_at=answers_at, steps_to_80=min(steps, default=None))


def _train(run: Run) -> dict[str, float | None]:
    """One process; what it used.

    Raises: InputError if it fails.
    """
    log = run.folder / _LOG
    command = [sys.executable, "-m", "vocagno", "train", *run.arguments]
    command += ["--output", str(run.folder)]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            usage = _waited(process)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise InputError(
            f"{run.name}: training ended with status {process.returncode}: {''.join(last)} ({log})"
        )
    return usage


def _waited(process: subprocess.Popen[bytes]) -> dict[str, float | None]:
    """Waits for a process; its processor time and its largest memory, where the system says."""
    if not hasattr(os, "wait4"):
        process.wait()
        return {"cpu_seconds": None, "peak_memory_mib": None}
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_memory_mib": round(usage.ru_maxrss * unit / 2**20, 1),
    }


def _answers(folder: Path, questions: Path | None) -> float | None:
    if questions is None:
        return None
    from vocagno.quickstart.accuracy import accuracy_of_run

    return accuracy_of_run(folder, questions)


def _answers_at(folder: Path, plan: Plan, last: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    """Steps and the share of the questions answered after each.

    Args:
        last: of the final model.
    """
    from vocagno.paper.study.answers import answers_at_checkpoints

    assert plan.questions is not None
    assert plan.questions_every is not None
    steps = range(plan.questions_every, last[0], plan.questions_every)
    return (*answers_at_checkpoints(folder, plan.questions, steps).items(), last)
