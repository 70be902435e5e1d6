"""The report of training runs, from what they left in their folders: as text and as a page."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vocagno.config.options import Config
from vocagno.guidance.tensors import REASONS
from vocagno.system.files import appearing, write_json
from vocagno.training.configuration import kept_config
from vocagno.training.monitoring import ThresholdWatch, described, unusual_selection
from vocagno.training.run_log import Entry, Run, RunError, read_runs
from vocagno.views.charts import Line, chart, key
from vocagno.views.html import escaped
from vocagno.views.page import legend, page_of, plain_table, section_of, table_of
from vocagno.views.passage import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A value of a run at some time."""

    tokens: float
    """Predicted tokens from the start of the run."""
    hours: float
    """Spent on steps, from the start of the run."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """What the page shows of one run."""

    name: str
    facts: Mapping[str, str]
    """Cells of the table of runs, by their headings."""
    curves: Mapping[str, Sequence[Measured]]
    """`loss`, `validation_loss`, `kept_fraction`, `tokens_per_s`, and any `held out: NAME`."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Cells on the tokens without a teacher loss, by their headings; empty without a teacher."""
    warnings: Sequence[str] = ()
    configuration: str = ""
    """In YAML."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options by their full names, of which the differing ones are shown."""
    passages: Sequence[Passage] = ()
    """Documents with what the teacher chose of them."""


def report_page(runs: Sequence[ReportedRun], *, title: str, introduction: str) -> str:
    """A self-contained page of one run or several; the first is the one they are compared with."""
    names = [run.name for run in runs]
    sections = [
        table_of("Runs", [{"run": run.name, **run.facts} for run in runs]),
        _warnings_section(runs),
        _curves_section(runs, names),
    ]
    guided = [run for run in runs if run.reasons]
    if guided:
        rows = [{"run": run.name, **run.reasons} for run in guided]
        about = (
            "Tokens without a teacher loss, by reason, as shares of the predicted tokens. Coverage "
            "is the share of the tokens with text that share text with a token of the teacher."
        )
        sections.append(_section("The teacher's coverage", about, table_of("Coverage", rows)))
    sections.append(_differences(runs))
    sections += _examples(runs)
    files = "".join(
        f"<details><summary>{escaped(run.name)}</summary><pre>{escaped(run.configuration)}</pre>"
        "</details>"
        for run in runs
    )
    sections.append(_section("Configuration", "", files))
    return page_of(title, introduction, sections)


def _section(heading: str, about: str, body: str) -> str:
    if not body:
        return ""
    lead = f"<p class=lead>{escaped(about)}</p>" if about else ""
    return f"<section><h2>{escaped(heading)}</h2>{lead}{body}</section>"


def _warnings_section(runs: Sequence[ReportedRun]) -> str:
    items = [
        f"<li><b>{escaped(run.name)}</b>: {escaped(text)}</li>"
        for run in runs
        for text in run.warnings
    ]
    return _section("Warnings", "", f"<ul class=warnings>{''.join(items)}</ul>" if items else "")


def _curves_section(runs: Sequence[ReportedRun], names: Sequence[str]) -> str:
    extra = [name for run in runs for name in run.curves if name.startswith("held out: ")]
    quantities = (
        ("validation_loss", "held-out loss", "nats a token"),
        *((name, name, "nats a token") for name in dict.fromkeys(extra)),
        ("loss", "loss of the training text", "nats a token"),
        ("kept_fraction", "share of the tokens trained on", ""),
        ("tokens_per_s", "tokens a second", ""),
    )
    charts = []
    for quantity, heading, unit in quantities:
        is_share = quantity == "kept_fraction"
        for axis in ("tokens", "hours") if unit else ("tokens",):
            drawn = chart(
                [_line(run, number, quantity, axis) for number, run in enumerate(runs)],
                heading=heading,
                x_label="predicted tokens" if axis == "tokens" else "hours of training steps",
                y_label=unit,
                y_range=(0.0, 1.05) if is_share else None,
                is_percent=is_share,
            )
            charts += [drawn] if drawn else []
    about = "The first tenth of a curve may lie above its panel."
    drawn = f"{key(names)}<div class=charts>{''.join(charts)}</div>"
    return _section("Curves", about, drawn if charts else "")


def _line(run: ReportedRun, number: int, quantity: str, axis: str) -> Line:
    points = [(getattr(one, axis), one.value) for one in run.curves.get(quantity, ())]
    is_thin = quantity in ("loss", "tokens_per_s", "kept_fraction")
    return Line(run.name, points, number, is_thin and len(points) > 1)


def _differences(runs: Sequence[ReportedRun]) -> str:
    """A table of the options in which the runs differ."""
    names = dict.fromkeys(name for run in runs for name in run.options)
    rows = [[name, *(run.options.get(name, "-") for run in runs)] for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    headings = ["option", *(run.name for run in runs)]
    return _section("Options that differ", "", plain_table("Options", headings, differing))


def _examples(runs: Sequence[ReportedRun]) -> list[str]:
    """What the teacher chose of some documents at the end of each run."""
    shown = [(run.name, passage) for run in runs for passage in run.passages]
    if not shown:
        return []
    about = "The first documents, each ranked by itself, with the student as it was at the end."
    how = legend([passage for _, passage in shown])
    pictures = [section_of(passage, f", {name}") for name, passage in shown]
    return [_section("What the teacher chose", about, how), *pictures]


REPORT = "report.html"
"""In the folder of a run."""
_PASSAGES = "passages.json"
_MOST_SPIKES = 5
_WORDS = {"None": "null", "True": "true", "False": "false"}
_INTRODUCTION = (
    "Losses are in nats a token. A difference is from the first run. Hours are those of training "
    "steps, without validation and checkpoints."
)


def keep_passages(output: Path, passages: Sequence[Passage]) -> None:
    """Keeps what the teacher chose of some documents, for the report."""
    write_json(output / _PASSAGES, [passage.as_dict() for passage in passages])


def write_report(folders: Sequence[Path], path: Path) -> None:
    """Writes one page for runs, finished or not; the first is the one they are compared with.

    Raises: RunError as `read_runs`, and for another damaged file in a folder; ConfigError for a
        configuration of wrong options.
    """
    runs = [_reported(run) for run in read_runs(folders)]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    losses = [_last(run, "validation_loss") for run in runs]
    if len(runs) > 1 and losses[0] is not None:
        runs = [
            replace(run, facts=_with_difference(run.facts, loss, losses[0]))
            for run, loss in zip(runs, losses, strict=True)
        ]
    page = report_page(runs, title=title, introduction=_INTRODUCTION)
    with appearing(path) as file:
        file.write(page.encode())


def _last(run: ReportedRun, quantity: str) -> float | None:
    points = run.curves.get(quantity)
    return points[-1].value if points else None


def _with_difference(facts: Mapping[str, str], loss: float | None, first: float) -> dict[str, str]:
    """The facts with the difference of the held-out loss behind it."""
    found = {}
    for name, cell in facts.items():
        found[name] = cell
        if name == "held-out loss":
            found["difference"] = f"{loss - first:+.4f}" if loss not in (None, first) else ""
    return found


def _reported(run: Run) -> ReportedRun:
    config, configuration = _configuration(run.folder)
    return ReportedRun(
        name=run.name,
        facts=_facts(run),
        curves=_curves(run),
        reasons=_reasons(run.entries),
        warnings=_warnings(run.entries, config),
        configuration=configuration,
        options={
            name: _WORDS.get(str(value), str(value))
            for name, value in config.as_options().items()
            if name != "output"
        },
        passages=_passages(run.folder / _PASSAGES),
    )


def _configuration(folder: Path) -> tuple[Config, str]:
    """The configuration of a run, and its text."""
    return kept_config(folder), (folder / "config.yaml").read_text(encoding="utf-8")


def _passages(path: Path) -> list[Passage]:
    """The passages that `keep_passages` wrote; none without a file."""
    if not path.is_file():
        return []
    try:
        return [Passage.from_dict(one) for one in json.loads(path.read_bytes())]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RunError(
            f"{path}: damaged ({type(error).__name__}: {error}); remove it to write the page "
            "without examples"
        ) from error


def _facts(run: Run) -> dict[str, str]:
    found = run.as_dict()
    windows = [entry for entry in run.entries if "loss" in entry]
    hours = sum(_seconds(entry) for entry in windows) / 3600
    shares: dict[str, Literal["mfu", "data_share", "teacher_share"]] = {
        "MFU": "mfu",
        "waiting for data": "data_share",
        "the teacher's time": "teacher_share",
    }
    return {
        "steps": f"{found['steps']:,}",
        "tokens": f"{found['tokens']:,}",
        "held-out loss": _number(found["last_validation_loss"], ".4f"),
        "best": _number(found["best_validation_loss"], ".4f"),
        "trained on": f"{run.kept_share:.1%}",
        "tokens/s": _number(found["mean_tokens_per_s"], ",.0f"),
        "hours": f"{hours:.3g}",
        **{
            name: f"{_mean(entry[key] for entry in windows if key in entry):.1%}"
            for name, key in shares.items()
            if any(key in entry for entry in windows)
        },
    }


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _seconds(entry: Entry) -> float:
    """Of the steps of a window; 0 if its speed, which is in tenths, is 0."""
    return entry["tokens"] / entry["tokens_per_s"] if entry["tokens_per_s"] >= 0.1 else 0.0


def _curves(run: Run) -> dict[str, list[Measured]]:
    """Values over tokens and hours; a validation is at the steps before it."""
    hours_at, hours = {0: 0.0}, 0.0
    for entry in run.entries:
        if "loss" in entry:
            hours += _seconds(entry) / 3600
        hours_at[entry["step"]] = hours
    found: dict[str, list[Measured]] = {}

    def add(name: str, tokens: int, step: int, value: float) -> None:
        one = Measured(tokens=tokens, hours=hours_at.get(step, 0.0), value=value)
        found.setdefault(name, []).append(one)

    tokens_at = {point.step: point.tokens for point in run.points}
    for point in run.points:
        for name in ("loss", "validation_loss", "kept_fraction"):
            if (value := getattr(point, name)) is not None:
                add(name, point.tokens, point.step, value)
    for entry in run.entries:
        step = entry["step"]
        if "loss" in entry:
            add("tokens_per_s", tokens_at[step], step, entry["tokens_per_s"])
        for name, loss in entry.get("validation_losses", {}).items():
            add(f"held out: {name}", tokens_at[step], step, loss)
    return found


def _reasons(entries: Sequence[Entry]) -> dict[str, str]:
    """Coverage, and the share of the tokens without a teacher loss by reason."""
    windows = [entry for entry in entries if "unmapped" in entry]
    if not windows:
        return {}
    total, counts = sum(entry["tokens"] for entry in windows), Counter[str]()
    for entry in windows:
        counts.update(entry["unmapped"])
    scored = [entry["scored"] for entry in windows if "scored" in entry]
    return {
        "coverage": f"{_mean(entry['coverage'] for entry in windows):.2%}",
        "scored": f"{_mean(scored):.2%}" if scored else "",
        **{reason: f"{counts[reason] / max(1, total):.2%}" for reason in REASONS},
    }


def _warnings(entries: Sequence[Entry], config: Config) -> list[str]:
    """What the run said of itself while it trained."""
    found, spikes, skipped = [], [], 0
    watch = ThresholdWatch(config.guidance, config.train.steps)
    unusual: str | None = None
    for entry in entries:
        skipped += entry.get("skipped", 0)
        spikes += entry.get("spikes", [])
        if "loss" not in entry:
            continue
        unusual = unusual or unusual_selection(dict(entry), config.guidance)
        if flattening := watch.look(dict(entry)):
            found.append(flattening)
    found += [unusual] if unusual else []
    if skipped:
        found.append(f"{skipped:,} steps were skipped: their gradient was NaN or infinite")
    found += [
        f"step {spike['step']}: a loss of {spike['loss']:.3f}; {described(spike['rows'])}"
        for spike in spikes[:_MOST_SPIKES]
    ]
    if len(spikes) > _MOST_SPIKES:
        found.append(f"{len(spikes) - _MOST_SPIKES:,} more spikes of the loss (metrics.jsonl)")
    return found
