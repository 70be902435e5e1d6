"""The report of training runs, a page made from the files in their folders."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vocagno.config.options import Config
from vocagno.data.corpus import text_hash
from vocagno.guidance.batch import REASONS
from vocagno.system.files import atomic_file, write_json
from vocagno.training.configuration import kept_config, kept_inputs
from vocagno.training.monitoring import Warnings, describe_rows
from vocagno.training.run_log import Entry, Run, RunError, read_runs
from vocagno.views.charts import Line, chart, key
from vocagno.views.html import legend, page_of, plain_table, section_of, table_of, to_html
from vocagno.views.passage import Passage

REPORT = "report.html"
"""The file of the report in the folder of a run."""
_PASSAGES = "passages.json"
"""The file, next to it, of what the teacher chose in some documents."""
_MOST_SPIKES = 5
"""The number of spikes that the warnings of a run describe; of others only the number is given."""
_WORDS = {"None": "null", "True": "true", "False": "false"}
"""The words of YAML for values that Python prints otherwise."""
_INTRODUCTION = (
    "Losses are in nats a token; of other tokenizers only nats a byte compare. A difference is "
    "from the first run. Hours are those of training steps, without validation and checkpoints."
)
_SHARES = {"MFU": "mfu", "waiting for data": "data_share", "the teacher's time": "teacher_share"}
"""The columns of the table of runs for shares of the time of steps, and their fields of `Entry`."""


class _Measured(NamedTuple):
    """A value of a run, and the tokens and hours after which it was measured."""

    tokens: float
    """Predicted tokens since the start of the run."""
    hours: float
    """Hours of training steps since the start of the run."""
    value: float


def keep_passages(output: Path, passages: Sequence[Passage]) -> None:
    """Writes what the teacher chose in some documents, from which a report can be made later."""
    write_json(output / _PASSAGES, [passage.as_dict() for passage in passages])


def write_report(folders: Sequence[Path], path: Path) -> None:
    """Writes one page about runs, finished or not. The others are compared with the first.

    Raises: RunError for a folder without a run, or a damaged file in it; InputError for damaged
        notes on its inputs; ConfigError for a configuration with wrong options.
    """
    runs = read_runs(folders)
    configs = {run.name: kept_config(run.folder) for run in runs}
    inputs = [kept_inputs(run.folder) for run in runs]
    held_out = [
        [facts for name, facts in of_run.items() if name.startswith("held-out")]
        for of_run in inputs
    ]
    why_not_compared = [_why_not_compared(rows, held_out[0], runs[0].name) for rows in held_out]
    warnings = "".join(
        f"<li><b>{to_html(run.name)}</b>: {to_html(text)}</li>"
        for run, why_not in zip(runs, why_not_compared, strict=True)
        for text in [*([why_not] if why_not else []), *_warnings(run.entries, configs[run.name])]
    )
    files = "".join(
        f"<details><summary>{to_html(run.name)}</summary>"
        f"<pre>{to_html((run.folder / 'config.yaml').read_text(encoding='utf-8'))}</pre></details>"
        for run in runs
    )
    sections = [
        table_of("Runs", _facts_of_all(runs, why_not_compared)),
        _section("Warnings", "", warnings and f"<ul class=warnings>{warnings}</ul>"),
        _curves_section(runs),
        _coverage(runs),
        _differences(configs, inputs),
        *_examples(runs),
        _section("Configuration", "", files),
    ]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    with atomic_file(path) as file:
        file.write(page_of(title, _INTRODUCTION, sections).encode())


def _section(heading: str, about: str, body: str) -> str:
    """A section of the page; empty if its body is."""
    if not body:
        return ""
    lead = f"<p class=lead>{to_html(about)}</p>" if about else ""
    return f"<section><h2>{to_html(heading)}</h2>{lead}{body}</section>"


def _why_not_compared(
    rows: Sequence[Mapping[str, Any]], first_rows: Sequence[Mapping[str, Any]], first: str
) -> str | None:
    """Says why the held-out loss of a run does not compare with that of the first one; None if it
    does, or if one of them has noted nothing.

    Args:
        rows, first_rows: what both have noted of their held-out rows, corpus by corpus. The names
            of several corpora do not count, because the loss is of all of them.
        first: the name of the first run.
    """
    if not rows or not first_rows or _in_order(rows) == _in_order(first_rows):
        return None
    texts, first_texts = (
        [{name: facts.get(name) for name in ("text", "prompts")} for facts in of_run]
        for of_run in (rows, first_rows)
    )
    if _in_order(texts) == _in_order(first_texts):
        return (
            f"it cuts the held-out text of {first} into other tokens or rows, so that only "
            "nats a byte compare"
        )
    return (
        f"its held-out text is not that of {first}, or is divided into other files or "
        "prompts, so that their losses do not compare"
    )


def _in_order(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The facts about several corpora as text, in an order that their names do not decide."""
    return sorted(json.dumps(of_corpus, sort_keys=True) for of_corpus in facts)


def _facts_of_all(
    runs: Sequence[Run], why_not_compared: Sequence[str | None]
) -> list[dict[str, str]]:
    """The rows of the table of runs: cells by their headings.

    Several runs also have the difference of the held-out loss from the first run, unless the two
    do not compare.

    Args: why_not_compared: the result of `_why_not_compared` for each run.
    """
    first, rows = runs[0].as_dict()["last_validation_loss"], []
    for run, why_not in zip(runs, why_not_compared, strict=True):
        summary = run.as_dict()
        windows = [entry for entry in run.entries if entry.loss is not None]
        loss = summary["last_validation_loss"]
        row = {
            "run": run.name,
            "steps": f"{summary['steps']:,}",
            "tokens": f"{summary['tokens']:,}",
            "held-out loss": _number(loss, ".4f"),
            "nats a byte": _number(summary["last_nats_per_byte"], ".4f"),
        }
        if len(runs) > 1 and first is not None:
            is_compared = loss is not None and run is not runs[0] and why_not is None
            row["difference"] = f"{loss - first:+.4f}" if is_compared else ""
        row |= {
            "best": _number(summary["best_validation_loss"], ".4f"),
            "trained on": f"{run.kept_share:.1%}",
            "tokens/s": _number(summary["mean_tokens_per_s"], ",.0f"),
            "hours": f"{sum(entry.seconds for entry in windows) / 3600:.3g}",
        }
        for heading, name in _SHARES.items():
            values = [getattr(entry, name) for entry in windows]
            if measured := [value for value in values if value is not None]:
                row[heading] = f"{_mean(measured):.1%}"
        rows.append(row)
    return rows


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)  # a damaged log may hold what overflows in `fmean`


def _curves_section(runs: Sequence[Run]) -> str:
    """A section with a chart for each quantity, over tokens and over hours."""
    curves = [_curves(run) for run in runs]
    extra = [name for of_run in curves for name in of_run if name.startswith("held out: ")]
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
            lines = []
            for number, (run, of_run) in enumerate(zip(runs, curves, strict=True)):
                points = [(getattr(at, axis), at.value) for at in of_run.get(quantity, ())]
                is_thin = quantity in ("loss", "tokens_per_s", "kept_fraction")
                lines.append(Line(run.name, points, number, is_thin and len(points) > 1))
            picture = chart(
                lines,
                heading=heading,
                x_label="predicted tokens" if axis == "tokens" else "hours of training steps",
                y_label=unit,
                y_range=(0.0, 1.05) if is_share else None,
                is_percent=is_share,
            )
            charts += [picture] if picture else []  # empty without points
    about = "The first tenth of a curve may lie above its panel."
    body = f"{key([run.name for run in runs])}<div class=charts>{''.join(charts)}</div>"
    return _section("Curves", about, body if charts else "")


def _curves(run: Run) -> dict[str, list[_Measured]]:
    """The curves of a run by quantity.

    Quantities: `loss`, `validation_loss`, `kept_fraction`, `tokens_per_s`, and `held out: NAME` for
    each of several held-out texts. A validation lies where the steps before it end.
    """
    hours_at, hours = {0: 0.0}, 0.0
    for entry in run.entries:
        hours += entry.seconds / 3600
        hours_at[entry.step] = hours
    tokens_at = {point.step: point.tokens for point in run.points}
    curves: dict[str, list[_Measured]] = {}

    def add(name: str, step: int, value: float) -> None:
        point = _Measured(tokens_at[step], hours_at.get(step, 0.0), value)
        curves.setdefault(name, []).append(point)

    for point in run.points:
        for name in ("loss", "validation_loss", "kept_fraction"):
            if (value := getattr(point, name)) is not None:
                add(name, point.step, value)
    for entry in run.entries:
        if entry.loss is not None:
            add("tokens_per_s", entry.step, entry.tokens_per_s)
        for name, loss in entry.validation_losses.items():
            add(f"held out: {name}", entry.step, loss)
    return curves


def _coverage(runs: Sequence[Run]) -> str:
    """A section on the coverage of guided runs, and why tokens have no teacher loss."""
    rows = []
    for run in runs:
        windows = [entry for entry in run.entries if entry.unmapped is not None]
        if not windows:
            continue
        total, counts = sum(entry.tokens for entry in windows), Counter[str]()
        for entry in windows:
            counts.update(entry.unmapped)
        scored = [entry.scored for entry in windows if entry.scored is not None]
        row = {
            "run": run.name,
            "coverage": f"{_mean([entry.coverage or 0.0 for entry in windows]):.2%}",
            "scored": f"{_mean(scored):.2%}" if scored else "",
        }
        shares = {reason: f"{counts[reason] / max(1, total):.2%}" for reason in REASONS}
        rows.append(row | shares)
    about = (
        "Tokens without a teacher loss, by reason, as shares of the predicted tokens. Coverage is "
        "the share of the tokens with text that share text with a token of the teacher."
    )
    return _section("The teacher's coverage", about, table_of("Coverage", rows))


def _differences(
    configs: dict[str, Config], inputs: Sequence[Mapping[str, Mapping[str, Any]]]
) -> str:
    """A section with the options in which the runs differ, and their inputs (texts, tokenizers,
    teachers), by a hash of the content: a file may have changed under its name."""
    options = [config.as_options() for config in configs.values()]
    rows = []
    for name in dict.fromkeys(name for of_run in options for name in of_run):
        cells = [str(of_run.get(name, "-")) for of_run in options]
        if name != "output" and len(set(cells)) > 1:
            rows.append([name, *(_WORDS.get(cell, cell) for cell in cells)])
    for name in dict.fromkeys(name for of_run in inputs for name in of_run):
        hashes = [
            text_hash(json.dumps(of_run[name], sort_keys=True)).hex()[:8] if name in of_run else "-"
            for of_run in inputs
        ]
        if len(set(hashes) - {"-"}) > 1:
            rows.append([f"content of {name}", *hashes])
    table = plain_table("Options", ["option", *configs], rows)
    return _section("Options that differ", "", table)


def _examples(runs: Sequence[Run]) -> list[str]:
    """Sections with the documents in which the runs kept what the teacher chose."""
    passages = [(run.name, passage) for run in runs for passage in kept_passages(run.folder)]
    if not passages:
        return []
    about = "The first documents, each ranked by itself, with the student as it was at the end."
    explanation = legend([passage for _, passage in passages])
    pictures = [section_of(passage, f", {name}") for name, passage in passages]
    return [_section("What the teacher chose", about, explanation), *pictures]


def kept_passages(output: Path) -> list[Passage]:
    """The passages that `keep_passages` wrote; empty if there is no file.

    Raises: RunError for a damaged file.
    """
    path = output / _PASSAGES
    if not path.is_file():
        return []
    try:
        return [Passage.from_dict(fields) for fields in json.loads(path.read_bytes())]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RunError(
            f"{path}: damaged ({type(error).__name__}: {error}); remove it to write the page "
            "without examples"
        ) from error


def _warnings(entries: Sequence[Entry], config: Config) -> list[str]:
    """The warnings that the run gave while it trained, made again from its log."""
    warnings = Warnings(config.guidance, config.train.steps)
    texts = [warning for entry in entries for warning in warnings.look(entry)]
    spikes = [spike for entry in entries for spike in entry.spikes]
    texts += [
        f"step {spike['step']}: a loss of {spike['loss']:.3f}; {describe_rows(spike['rows'])}"
        for spike in spikes[:_MOST_SPIKES]
    ]
    if len(spikes) > _MOST_SPIKES:
        texts.append(f"{len(spikes) - _MOST_SPIKES:,} more spikes of the loss (metrics.jsonl)")
    return texts
