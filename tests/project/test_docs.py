"""What the documentation shows is what comes out."""

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import get_type_hints

import numpy as np
import pytest
import yaml

from runs import environment
from shared_data import shared, shared_texts
from vocagno import TokenSpans, credit
from vocagno.views.statistics import AlignmentRates
from warm_python import executable

pytest.importorskip("rich")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hard-strings.md"
COMMANDS = re.findall(r"^    \$ (.*)\n((?:    .*\n)+)", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_page_of_hard_strings_has_ten_commands():
    """Sees a pattern that no longer finds the commands, so that none of them would be tested."""
    assert len(COMMANDS) == 10


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="the commands are for bash")
@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[c[8:20] for c, _ in COMMANDS])
def test_the_hard_strings_come_out_as_shown(command, shown):
    run = command.replace("vocagno ", f"{executable()} -m vocagno ")
    stdout = subprocess.run(
        ["bash", "-c", run],
        cwd=shared("tokenizers"),
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment() | {"LC_ALL": "C.UTF-8", "COLUMNS": "80"},
    ).stdout
    lines = [line for line in stdout.splitlines() if line.strip() and "└┬┘ N:1" not in line]
    assert [line.rstrip() for line in lines] == [line[4:] for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("command", "results", "page"),
    [
        (["scores_page.py"], "2026-11-21-scores.jsonl", "scores.md"),
        (["training_page.py"], "2026-11-25-training.jsonl", "training.md"),
        (["distillation.py", "page"], "2026-11-22-distillation.jsonl", "methods.md"),
        (["bridges/page.py"], "bridges.jsonl", "bridges.md"),
    ],
)
def test_figures_of_pages_are_those_of_the_results(tmp_path, monkeypatch, command, results, page):
    pytest.importorskip("torch")
    benches = ROOT / "benches"
    written = shutil.copy(ROOT / "docs" / page, tmp_path)
    monkeypatch.setattr(sys, "argv", [*command, str(benches / "results" / results), str(written)])
    runpy.run_path(str(benches / command[0]), run_name="__main__")
    assert Path(written).read_text() == (ROOT / "docs" / page).read_text()


def test_the_table_of_benchmarks_is_that_of_the_results_page():
    table = table_of("benchmarks", "benchmarks")
    (page,) = re.findall(r"\(\.\./(benches/results/.*-benchmarks\.md)\)", table)
    rows = [line for line in table.splitlines() if line.startswith("| align")]
    assert len(rows) > 5
    measured = (ROOT / page).read_text(encoding="utf-8")
    for row in rows:
        _, _, engine, median, ratio, _ = (cell.strip() for cell in row.split("|"))
        same = re.findall(
            rf"^\| {re.escape(engine)} \| {re.escape(median)} \|.* ([\d.]+) \|$", measured, re.M
        )
        assert any(abs(float(recorded) - float(ratio)) <= 0.051 for recorded in same), row


def test_the_picture_of_the_method_is_what_its_script_draws(capsys):
    pictures = ROOT / "docs" / "pictures"
    runpy.run_path(str(pictures / "flow.py"), run_name="__main__")
    assert capsys.readouterr().out == (pictures / "flow.svg").read_text(encoding="utf-8")


def test_options_and_files_that_the_training_page_names_exist():
    pytest.importorskip("jsonargparse")
    from vocagno.config.options import Config

    sections = {name: kind for name, kind in get_type_hints(Config).items() if is_dataclass(kind)}
    text = (PAGE.parent / "training.md").read_text(encoding="utf-8")
    options = set(re.findall(rf"(?:--|`)({'|'.join(sections)})\.(\w+)", text))
    assert len(options) > 15
    for section, name in options:
        assert name in sections[section].__dataclass_fields__, f"{section}.{name}"
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert (PAGE.parent / name.partition("#")[0]).exists(), name
    files = re.findall(r"(?:configs|tests|benches|examples)/[\w/-]+\.(?:py|yaml)", text)
    assert len(files) > 8
    for name in files:
        assert (ROOT / name).is_file(), name


def test_the_tests_of_the_table_of_what_is_trusted_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("\n## What is read and then trusted\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")][2:]
    assert 20 <= len(rows) == len({cells[0] for cells in rows})
    for *words, tests in rows:
        named = re.findall(r"`(tests/\w+/test_\w+\.py)::(test_\w+)`", tests)
        assert named, words
        for file, name in named:
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)


def test_the_crate_is_published_with_the_license_of_the_repository():
    """A package of Cargo holds what lies in its own folder alone."""
    assert (ROOT / "rust" / "core" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def runs_of(study):
    """By variant and seed, the runs of a study that the docs show."""
    with (ROOT / "docs" / "study" / study / "runs.csv").open() as file:
        return {(run["variant"], run["seed"]): run for run in csv.DictReader(file)}


def differences_of_rules(text, study="guidance", naive="naive"):
    """By variant, on a text of a study: the mean and the standard deviation of the differences from
    naive training, and the percentage of tokens kept."""
    runs = runs_of(f"{study}/{text}")
    cells = {}
    for variant in dict.fromkeys(variant for variant, _ in runs):
        seeds = [seed for name, seed in runs if name == variant]
        losses = [
            float(runs[variant, seed]["held_out_loss"]) - float(runs[naive, seed]["held_out_loss"])
            for seed in seeds
        ]
        kept = 100 * fmean(float(runs[variant, seed]["trained_on"]) for seed in seeds)
        spread = f" ± {stdev(losses):.4f}" if len(losses) > 1 else ""
        cells[variant] = f"{fmean(losses):+.4f}{spread} ({kept:.1f} %)"
    return cells


def table_of(page, name):
    """A marked table of a page of the docs."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return text.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0].strip()


def cells_of_table(page, name):
    """The cells of the lines of a marked table, without the first cell."""
    lines = table_of(page, name).splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[2:-1]] for line in lines]


def test_the_table_of_rules_follows_from_its_runs():
    expected: dict[str, list[str]] = {}
    for number, text in enumerate(("clean", "junk", "pages", "swap")):
        for variant, cell in differences_of_rules(text).items():
            expected.setdefault(variant, [""] * 4)[number] = cell
    del expected["naive"]
    assert sorted(cells_of_table("small-students", "rules")) == sorted(expected.values())


HEALING = [
    ("healing-own", "naive"),
    ("healing-own", "distill, old self"),
    ("healing-tinyllama", "naive"),
    ("healing-tinyllama", "distill, old self"),
    ("healing-tinyllama", "alm, old self"),
    ("healing-qwen", "naive"),
    ("healing-qwen", "distill, old self"),
    ("healing-old", "naive"),
]
"""The studies and variants of the table of transferred models, by row."""
REAL_ROWS = {
    "all tokens of 1.8 times the text, in the time of `distill` and its scores": "naive, 88 steps",
    "all tokens, again, in that time": "naive, 88 steps, same text",
    "all tokens, other micro-batches: only rounding differs": "naive, micro-batches of 4",
    "the paper's rule (top 40 %)": "paper",
    "**the default: lines ≤ 2 nats a byte**": "default",
    "the default, from the adapted Gemma": "default, adapted",
    "`distill`, everywhere, from Gemma as it is": "distill",
    "**the same, `score --rows`: it reads what the student reads**": "distill, pieces",
    "the same Gemma, live": "distill, live",
    "**`distill`, everywhere, from the adapted Gemma**": "distill, adapted",
    "the same, from a store of windows of 256 tokens": "distill, adapted, short",
    "**the same, live**": "distill, adapted, live",
    "`distill`, where surer, from the adapted Gemma": "distill, adapted, surer",
    "`alm`, from the adapted Gemma": "alm, adapted",
    "`distill`, everywhere, from SmolLM2 after the same text": "distill, adapted self",
    "the same SmolLM2, from a store of windows of 256 tokens": "distill, adapted self, short",
    "the same SmolLM2, live": "distill, adapted self, live",
    "`kld`, from that SmolLM2, live": "kld, adapted self",
    "lines ≤ 1.8 nats a byte": "lines 99 %",
    "**the same, and excess ≥ -1**": "lines 99 %, groups -1",
    "lines ≤ 1.8 nats a byte, and `distill` from the adapted Gemma": "lines, distill",
    "all but the known noise": "oracle",
}
"""The rows of the table of real models, with the variants of their runs; only those that ran are
shown."""
ROWS_OF_README = {
    "1.8 times the text, without a teacher": ("naive, 88 steps", None),
    "the paper's rule: 40 % of the tokens": ("paper", None),
    "**the default: no lines that are noise**": ("default", "default"),
    "**lines that are not noise, and no tokens that the student knows far better**": (
        "lines 99 %, groups -1",
        "lines 99 %, groups -1",
    ),
    "`distill`, from Gemma as it is": ("distill", None),
    "**`distill`, from a Gemma of the domain**; on text with junk only on good lines": (
        "distill, adapted",
        "lines, distill",
    ),
    "the same, live": ("distill, adapted, live", None),
    "no junk at all, as a person would choose": (None, "oracle"),
}
"""The rows of the README's table, with the variants on clean text and on text with junk."""


def long_table():
    """The lines of the table of three times as much text, from its runs."""
    runs = runs_of("real/long")
    rows = {"`distill` from its store": "distill, adapted", "live": "distill, adapted, live"}
    lines = []
    for label, variant in rows.items():
        (seed,) = {seed for name, seed in runs if name == variant}
        run, naive = runs[variant, seed], runs["naive", seed]
        changes = [
            f"{float(run[name]) - float(naive[name]):+.4f}"
            for name in ("held_out_loss", "other_other")
        ]
        lines.append(f"| {label} | {' | '.join(changes)} |")
    return lines


def real_table():
    """The lines of the table of real models, from its runs."""
    folders = [text for text in ("clean", "junk") if (ROOT / f"docs/study/real/{text}").is_dir()]
    runs = {text: runs_of(f"real/{text}") for text in folders}
    clean, junk = (differences_of_rules(t, "real") if t in runs else {} for t in ("clean", "junk"))
    lines = []
    for label, variant in REAL_ROWS.items():
        changes = [
            float(run["other_other"]) - float(runs["clean"]["naive", seed]["other_other"])
            for (name, seed), run in runs["clean"].items()
            if name == variant
        ]
        spread = f" ± {stdev(changes):.4f}" if len(changes) > 1 else ""
        other = f"{fmean(changes):+.4f}{spread}" if changes else ""
        cells = [label, clean.get(variant, ""), other, junk.get(variant, "")]
        if any(cells[1:]):
            lines.append(f"| {' | '.join(cells if junk else cells[:-1])} |")
    return lines


def readme_table():
    """The lines of the README's table of real models."""
    clean, junk = (differences_of_rules(text, "real") for text in ("clean", "junk"))
    return [
        f"| {label} | {clean[on_clean] if on_clean else ''} | {junk[on_junk] if on_junk else ''} |"
        for label, (on_clean, on_junk) in ROWS_OF_README.items()
    ]


def test_the_tables_of_real_models_follow_from_their_runs():
    for page, table in (("docs/guidance.md", real_table()), ("README.md", readme_table())):
        text = (ROOT / page).read_text(encoding="utf-8")
        shown = text.split("<!-- real models -->")[1].split("<!-- end of real models -->")[0]
        assert shown.strip().splitlines()[2:] == table
    assert table_of("guidance", "more text").splitlines()[2:] == long_table()


def test_the_table_of_limits_follows_from_the_list_of_all():
    """A limit in nats a byte; what is dropped of clean text and of junk, by Gemma and adapted."""
    tables = (ROOT / "docs/study/real/limits.md").read_text(encoding="utf-8").split("## ")[1:]
    shares = {}
    for table in tables:
        text, teacher = table.splitlines()[0].split(", ")
        for row in table.splitlines()[4:]:
            if row:
                limit, noise, rest = (cell.strip() for cell in row.split("|")[1:-1])
                shares[text, teacher, limit] = rest if text == "clean" else noise
    cells = [("clean", "gemma"), ("junk", "gemma"), ("clean", "adapted"), ("junk", "adapted")]
    lines = table_of("guidance", "limits").splitlines()[2:]
    assert len(lines) == 4
    for line in lines:
        limit, *shown = [cell.strip().replace(" %", "%") for cell in line.split("|")[1:-1]]
        assert shown == [shares[text, teacher, limit.strip("*")] for text, teacher in cells]


def test_what_gold_answers_cost_follows_from_their_table():
    table = (ROOT / "docs/study/real/questions.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")]
    nats = {cells[0].strip(): float(cells[1].split()[0]) for cells in rows[1:]}
    costs = [nats[model] - nats["smollm2"] for model in ("naive", "distill-adapted")]
    text = (ROOT / "docs/guidance.md").read_text(encoding="utf-8")
    assert f"cost {costs[0]:.3f} nats a byte more than before, {costs[1]:.3f} after" in text


def test_the_table_of_healing_follows_from_its_runs():
    """Losses in nats a byte, which are nats a token times the tokens a byte of the text."""
    lines = table_of("models", "healing").splitlines()[2:]
    assert len(lines) == len(HEALING)
    for line, (study, variant) in zip(lines, HEALING, strict=True):
        tokenizer, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        rates = json.loads((ROOT / f"docs/study/real/{study}/tokens_per_byte.json").read_text())
        assert f"({rates['mathematics']:.3f} and {rates['other']:.3f})" in tokenizer
        run, of_text = runs_of(f"real/{study}")[variant, "10"], [*rates.values()]
        columns = "start_loss", "held_out_loss", "other_start_other", "other_other"
        nats = [float(run[column]) * of_text[index // 2] for index, column in enumerate(columns)]
        assert cells[1:] == [f"{before:.3f}, {after:.3f}" for before, after in (nats[:2], nats[2:])]


def test_the_table_of_filtered_corpora_follows_from_its_runs():
    clean, junk = (differences_of_rules(text, "filter") for text in ("clean", "junk"))
    variants = ("default", "filtered", "filtered, 28 steps")
    expected = [[clean.get(variant, ""), junk[variant]] for variant in variants]
    assert cells_of_table("guidance", "filtered corpora") == expected


def test_the_table_of_teachers_to_learn_from_follows_from_its_runs():
    rows = [
        ("real/clean", "distill, adapted"),
        ("real/clean", "distill"),
        ("distributions/longer", "distill, strong, sampled"),
        ("distributions/large", "distill, sampled"),
        ("distributions/clean-teachers", "distill, sampled"),
        ("distributions/clean", "distill, adapted"),
        ("distributions/dev-teachers", "distill, all, weak"),
        ("distributions/nothing", "distill, sampled"),
    ]
    expected = [differences_of_rules(study, ".")[variant].split(" (")[0] for study, variant in rows]
    assert cells_of_table("distributions", "teachers to learn from") == [[it] for it in expected]


def test_the_table_of_teachers_follows_from_its_runs():
    """The limits are those of the plan."""
    plan = yaml.safe_load((ROOT / "configs/study/guidance.yaml").read_text())["variants"]
    of_text = {
        text: differences_of_rules(text) | differences_of_rules(f"{text}-teachers")
        for text in ("clean", "junk")
    }
    pairs = [("lines", "lines 99 %"), ("lines, like", "lines 2.5, like")]
    pairs += [(f"lines, {name}", f"lines 99 %, {name}") for name in ("own", "weak", "read junk")]
    expected = [
        [
            of_text["clean"].get(usual, ""),
            f"{plan[variant]['guidance.window_max_loss']:.2f}",
            of_text["clean"].get(variant, ""),
            of_text["junk"][variant],
        ]
        for usual, variant in pairs
    ]
    assert cells_of_table("small-students", "teachers") == expected


def test_the_tables_of_distributions_follow_from_their_runs():
    """A number that was typed, or kept when its runs were made again, differs from the recorded
    runs."""
    tables = {
        "distributions": ("clean", "second", "junk", "nothing"),
        "other texts and students": ("longer", "large", "pages", "swap"),
        "candidates and teachers": [f"{t}-teachers" for t in ("dev", "clean", "second", "junk")],
        "where a teacher counts, test text": ("clean-gate", "nothing-gate", "longer-gate"),
    }
    for table, texts in tables.items():
        of_text = [differences_of_rules(text, "distributions") for text in texts]
        shown = [name for name in dict.fromkeys(chain(*of_text)) if name != "naive"]
        expected = [[column.get(name, "") for column in of_text] for name in shown]
        assert sorted(cells_of_table("small-students", table)) == sorted(expected)

    with (ROOT / "docs" / "study" / "distributions" / "gate.csv").open() as file:
        naive, *gates = csv.DictReader(file)
    expected = {}
    for run in gates:
        difference = float(run["held_out_loss"]) - float(naive["held_out_loss"])
        cell = f"{difference:+.4f} ({100 * float(run['paired']):.1f} %)"
        expected.setdefault(run["teacher"], []).append(cell)
    assert cells_of_table("small-students", "where a teacher counts") == [*expected.values()]

    cells = differences_of_rules("quickstart", "distributions", "naive 0")
    longer = [[cells[name]] for name in ("distill 0", "kld 0", "naive 0, 3900 steps")]
    assert cells_of_table("small-students", "longer runs") == longer

    runs = {name: run for (name, _), run in runs_of("distributions/dev").items()}
    losses = {name: f"{float(run['held_out_loss']):.4f}" for name, run in runs.items()}
    rates = ("5e-5", "1e-4", "2e-4", "5e-4")
    of_method = {
        name: [losses.get(f"{name}, {rate}" if rate != "1e-4" else name, "") for rate in rates]
        for name in losses
        if not name.endswith(rates)
    }
    assert sorted(cells_of_table("small-students", "learning rates")) == sorted(of_method.values())
    (start,) = {run["start_loss"] for run in runs.values()}
    page = (ROOT / "docs" / "small-students.md").read_text(encoding="utf-8")
    assert f"{float(start):.4f}" in page


@pytest.mark.parametrize(
    ("table", "cell"), [("from nothing", "nothing"), ("larger students", "large")]
)
def test_the_tables_of_other_students_follow_from_their_runs(table, cell):
    clean, junk = (differences_of_rules(f"{text}-{cell}") for text in ("clean", "junk"))
    shown = "lines", "lines 2.5, like", "oracle"
    expected = [[clean.get(name, ""), junk.get(name, "")] for name in shown]
    assert cells_of_table("small-students", table) == expected
    assert {"naive", *shown} == clean.keys() | junk.keys()


def test_the_tables_of_junk_follow_from_their_runs():
    """On the quickstart's corpus: the differences from naive training on the same text with the
    percentage of tokens kept, and the percentage of exact answers."""
    rules, shares = ("naive", "paper", "lines", "both", "oracle", "kld"), (0, 20, 50, 75)
    runs = runs_of("noise")
    differences, answers = {}, {}
    for name in dict.fromkeys(name for name, _ in runs):
        naive = f"naive {name.split()[-1]}"
        pairs = [(run, runs[naive, seed]) for (of, seed), run in runs.items() if of == name]
        losses = [float(run["held_out_loss"]) - float(its["held_out_loss"]) for run, its in pairs]
        kept = 100 * fmean(float(run["trained_on"]) for run, _ in pairs)
        difference = f"{fmean(losses):+.4f} ± {stdev(losses):.4f}" if any(losses) else "0"
        differences[name] = f"{difference} ({kept:.1f} %)"
        exact = [100 * float(run["exact_answers"]) for run, _ in pairs]
        answers[name] = f"{fmean(exact):.1f} ± {stdev(exact):.1f} %"
    for table, cells, named in (
        ("noise", differences, rules[1:]),
        ("noise answers", answers, rules),
    ):
        expected = [[cells.get(f"{rule} {share}", "") for share in shares] for rule in named]
        assert cells_of_table("study", table) == expected
    assert {name for name, _ in runs} <= {f"{rule} {n}" for rule in rules for n in shares}


@pytest.mark.slow
def test_the_shares_of_credits_are_those_of_the_tokenizers():
    """Which `vocagno overlap` counts as 1:1. A lone dummy prefix has no text, and belongs to the
    first token's group."""
    texts = shared_texts("math-valid")
    named = cache(lambda name: TokenSpans(shared("tokenizers", f"{name}.json.gz")))
    read = cache(lambda name: named(name).encode(texts))
    for line in table_of("loop", "same ends").splitlines()[2:]:
        *names, shown = (cell.strip() for cell in line.split("|")[1:-1])
        (student, teacher), (student_tokens, teacher_tokens) = map(named, names), map(read, names)
        rates = AlignmentRates()
        rates.add(texts, student_tokens, teacher_tokens)
        assert f"{rates.share(rates.one_to_one):.1%}" == shown.replace(" ", "")
        credits = credit(
            student,
            student_tokens.ids,
            teacher,
            teacher_tokens.ids,
            np.zeros(len(teacher_tokens.ids)),
            student_cu_seqlens=student_tokens.cu_seqlens,
            teacher_cu_seqlens=teacher_tokens.cu_seqlens,
            only="same_ends",
        )
        missing = rates.one_to_one - np.isfinite(credits).sum()
        assert 0 <= missing <= len(texts), names


def test_the_picture_of_rules_shows_the_table():
    """Each figure in the picture is one of the table, rounded; the file was drawn from it."""
    pytest.importorskip("matplotlib")
    drawing = runpy.run_path(str(ROOT / "docs" / "pictures" / "rules.py"))
    picture = drawing["draw"](drawing["PICTURES"]["rules"])
    shown = [text.get_text() for panel in picture.axes for text in panel.texts]
    figures = [text for text in shown if text[:1] in "+-"]
    values = re.findall(r"([+-]\d\.\d{4}) ±", table_of("small-students", "rules"))
    rounded = {f"{float(value):+.3f}" for value in values}
    assert len(figures) == 17
    assert set(figures) <= rounded
    drawn = (ROOT / "docs" / "pictures" / "rules.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {text} -->" in drawn for text in shown)


def test_the_picture_of_buckets_shows_its_results():
    pytest.importorskip("matplotlib")
    pictures = ROOT / "docs" / "pictures"
    draw = runpy.run_path(str(pictures / "buckets.py"))["draw"]
    picture = draw(json.loads((pictures / "buckets.json").read_text(encoding="utf-8")))
    shown = [text.get_text() for panel in picture.axes for text in panel.texts]
    drawn = (pictures / "buckets.svg").read_text(encoding="utf-8")
    assert len(shown) > 20
    assert all(f"<!-- {text} -->" in drawn for text in shown)


def test_the_table_of_many_shards_is_that_of_the_results():
    table = table_of("scale", "many shards")
    results = (ROOT / "benches" / "results" / "2026-11-23-many-shards.jsonl").read_text()
    shown = [re.findall(r"[\d.,]+", line) for line in table.splitlines()[2:]]
    names = "shards", "ms_a_shard", "ms_a_list_of_a_flat_folder", "seconds_of_the_first_look"
    names += "seconds_of_finishing", "seconds_of_finishing_by_reading"
    expected = [
        [f"{run[name]:,}" for name in names] for run in map(json.loads, results.splitlines())
    ]
    assert shown == expected


def test_the_table_of_buckets_is_that_of_the_results():
    table = table_of("loop", "buckets")
    results = ROOT / "benches" / "results" / "2026-11-25-buckets.md"
    assert len(table.splitlines()) == 11
    assert f"\n{table}\n" in results.read_text(encoding="utf-8")


def test_what_is_read_and_then_trusted_has_a_test_with_a_wrong_partner():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("## What is read and then trusted\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 25
    for row in rows:
        tests = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", row)
        assert tests, row
        for file, name in tests:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (file, name)
