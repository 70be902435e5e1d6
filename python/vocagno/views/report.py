"""The page of training runs: curves, a table, the teacher's coverage, examples, configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
        _warnings(runs),
        _curves(runs, names),
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


def _warnings(runs: Sequence[ReportedRun]) -> str:
    items = [
        f"<li><b>{escaped(run.name)}</b>: {escaped(text)}</li>"
        for run in runs
        for text in run.warnings
    ]
    return _section("Warnings", "", f"<ul class=warnings>{''.join(items)}</ul>" if items else "")


def _curves(runs: Sequence[ReportedRun], names: Sequence[str]) -> str:
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
