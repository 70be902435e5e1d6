"""The page of a run and of several: what it shows, that it stands alone, and what is refused."""

import json
import random
import re
import shutil
import subprocess
from functools import cache

import pytest
import yaml

pytest.importorskip("torch")

from corpora import write_corpus
from mutations import mutations
from pages import Balanced
from run_folders import CONFIG, training, validation, write_run
from runs import metrics, train_here
from vocagno.cli.app import main
from vocagno.errors import InputError
from vocagno.training import report
from vocagno.training.report import REPORT
from vocagno.training.run_log import RunError

LOG = [
    training(100, 9.0, tokens=1000, speed=500.0),
    training(200, 2.0, tokens=1000, speed=250.0, kept=0.5),
    validation(200, 1.5),
    training(300, 1.0, tokens=1000, speed=500.0, kept=0.5),
    validation(300, 1.25),
]
SPIKE = {
    "step": 250,
    "loss": 7.0,
    "rows": [{"row": 3, "loss": 9.0, "documents": [1, 2], "corpus": "web.jsonl"}],
}


def folder_of(path, *entries, **options):
    write_run(path, *entries)
    config = CONFIG | options
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


def page_of(tmp_path, *folders):
    assert main(["report", *map(str, folders), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    Balanced().feed(re.sub(r"<svg.*?</svg>(?=</figure>| )", "", page))
    assert "<script" not in page
    assert not re.search(r"(src|href)=|@import|url\(", page)
    return page


def rows(page, label):
    """The cells of a table, by its label."""
    table = re.search(f"aria-label='{label}'.*?</table>", page, re.DOTALL).group()
    lines = re.findall(r"<tr.*?</tr>", table)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines]


def test_runs_are_compared_with_the_first(tmp_path):
    first = folder_of(tmp_path / "first", *LOG)
    log = [entry | {"mfu": 0.25, "data_share": 0.5} if "loss" in entry else entry for entry in LOG]
    log[-1] = validation(300, 1.5)
    second = folder_of(tmp_path / "second", *log, optimizer={"lr": 2e-3})
    page = page_of(tmp_path, first, second)
    head, *cells = rows(page, "Runs")
    row, other = (dict(zip(head, line, strict=True)) for line in cells)
    assert (row["held-out loss"], row["difference"], row["nats a byte"]) == ("1.2500", "", "0.3125")
    assert (other["held-out loss"], other["difference"]) == ("1.5000", "+0.2500")
    assert row["trained on"] == "66.7%"
    assert [line[-2:] for line in cells] == [["", ""], ["25.0%", "50.0%"]]  # columns of either
    assert head[-2:] == ["MFU", "waiting for data"]
    assert row["hours"] == "0.00222"  # 8 seconds
    equal = folder_of(tmp_path / "equal", *LOG)
    head, _, cells = rows(page_of(tmp_path, first, equal), "Runs")
    assert dict(zip(head, cells, strict=True))["difference"] == "+0.0000"  # it has been compared
    assert rows(page, "Options")[1:] == [["optimizer.lr", "0.001", "0.002"]]
    assert page.count("<figure") == 6  # two losses over tokens and hours, share, speed
    assert "teacher&#x27;s coverage" not in page  # nothing was aligned


def test_losses_on_other_text_are_not_subtracted(tmp_path):
    """A held-out file may change under its name, and a tokenizer makes other tokens of it. A run of
    an earlier release noted neither."""

    def run(name, **facts):
        folder = folder_of(tmp_path / name, *LOG)
        if facts:
            inputs = {"rows": {"text": ["t"]}, "held-out rows": {"eos": 0, **facts}}
            (folder / "materials.json").write_text(json.dumps(inputs))
        return folder

    first = run("first", text=["a", "b"], tokenizer="x")
    changed = [
        run("text", text=["a", "c"], tokenizer="x"),
        run("cut", text=["a", "b"], tokenizer="y"),
    ]
    changed += [run("prompts", text=["a", "b"], tokenizer="x", prompts="p")]
    same = [run("same", text=["a", "b"], tokenizer="x"), run("older")]
    page = page_of(tmp_path, first, *changed, *same)
    head, *cells = rows(page, "Runs")
    differences = [dict(zip(head, line, strict=True))["difference"] for line in cells]
    assert differences == ["", "", "", "", "+0.0000", "+0.0000"]
    for name in ("text", "prompts"):
        assert f"<b>{name}</b>: its held-out text is not that of first" in page
    assert "<b>cut</b>: it cuts the held-out text of first into other tokens or rows" in page
    assert not re.search("<b>(same|older)</b>", page)
    names = [line[0] for line in rows(page, "Options")[1:]]
    assert names == ["content of held-out rows"]
    (first / "materials.json").write_text("{")
    with pytest.raises(InputError, match=r"materials\.json: damaged"):
        report.write_report([first], tmp_path / "page.html")


@pytest.mark.parametrize("name", ["option", "run", "steps"])
def test_a_run_may_be_named_as_a_column(tmp_path, name):
    named = folder_of(tmp_path / name, *LOG, optimizer={"lr": 2e-3})
    page = page_of(tmp_path, folder_of(tmp_path / "first", *LOG), named)
    head, *cells = rows(page, "Options")
    assert head == ["option", "first", name]
    assert cells == [["optimizer.lr", "0.001", "0.002"]]
    assert rows(page, "Runs")[2][0] == name


def test_coverage_reasons_and_warnings(tmp_path):
    aligned = {"coverage": 0.995, "scored": 1.0}
    reasons = dict.fromkeys(("special", "truncated", "unscored", "missing", "partial"), 0)
    unmapped = {"unmapped": reasons | {"special": 20, "hole": 5}}
    entries = [entry | aligned | unmapped if "tokens" in entry else entry for entry in LOG]
    entries[3] |= {"spikes": [SPIKE], "threshold": 0.7}
    page = page_of(tmp_path, folder_of(tmp_path / "run", *entries))
    head, line = rows(page, "Coverage")
    cells = dict(zip(head, line, strict=True))
    assert cells["coverage"] == "99.50%"
    assert (cells["special"], cells["hole"]) == ("2.00%", "0.50%")
    assert "step 250: a loss of 7.000; row 3 of web.jsonl (loss 9, documents 1, 2)" in page
    assert "the threshold of guidance.top_fraction 0.4 is +0.70 nats" in page


@pytest.mark.slow
def test_every_run_leaves_its_page(tmp_path, config, corpus):
    held_out = {"a": str(corpus), "b": str(write_corpus(tmp_path / "v.jsonl", ["Some text."]))}
    path = config(data={"validation": held_out}, guidance={"top_fraction": None})
    assert train_here(path) == 0
    page = (tmp_path / "run" / REPORT).read_text()
    assert "held out: a" in page
    assert "held out: b" in page
    assert page.count("<h2>What the teacher chose</h2>") == 1
    assert page.count("class='picture chosen'") == 3
    assert "data-teacher=" in page
    last = metrics(tmp_path / "run")[1][-1]
    assert f"{last['validation_loss']:.4f}" in page
    assert page_of(tmp_path, tmp_path / "run") == page  # the command writes the same
    assert "model_type: llama" in page  # the configuration


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("passages.json", b'[{"title": "a", "te', r"JSONDecodeError.*line 1.*remove it to write"),
        ("passages.json", b"\xff", "UnicodeDecodeError.*remove it to write"),
        ("passages.json", b'[{"title": "a"}]', "KeyError: 'student'.*remove it to write"),
        ("passages.json", b"[5]", "TypeError.*remove it to write"),
        ("passages.json", b"5", "TypeError.*remove it to write"),
        ("config.yaml", b"output: caf\xe9\n", "can't decode byte 0xe9 in position 11"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, capsys, file, content, message):
    run = folder_of(tmp_path / "run", *LOG)
    (run / file).write_bytes(content)
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {re.escape(str(run / file))}: .*{message}", error)
    assert not (tmp_path / "page.html").exists()


GUIDED = {
    "kept_fraction": 0.9,
    "coverage": 0.9,
    "scored": 1.0,
    "unmapped": {"special": 5, "hole": 2},
    "threshold": 0.3,
    "data_share": 0.1,
    "spikes": [SPIKE],
}


def test_a_damaged_log_gives_a_page_or_names_the_line(tmp_path, monkeypatch):
    """Each part of each line removed, of another type, or a number that float64 cannot hold."""
    monkeypatch.setattr(report, "kept_config", cache(report.kept_config))
    log = [*LOG, {"step": 301}]
    log[3] = log[3] | GUIDED
    log[4] = log[4] | {"validation_losses": {"a": 1.0, "b": 2.0}}
    run, page = folder_of(tmp_path / "run", *log), tmp_path / "page.html"
    damaged = [
        (number, [*log[:number], line, *log[number + 1 :]])
        for number in range(len(log))
        for line in mutations(log[number])
    ]
    pages, refusals = 0, []
    for number, lines in random.Random(0).sample(damaged, 200):
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        try:
            report.write_report([run], page)
            pages += 1
        except RunError as error:
            refusals.append((number, str(error)))
    assert pages > 40
    assert len(refusals) > 40
    for number, words in refusals:
        # A step that does not ascend may be seen in the next line of its kind.
        places = "|".join(str(number + later) for later in (1, 2, 3))
        assert re.fullmatch(f"{run}/metrics.jsonl, line ({places}): .*", words)


@pytest.mark.slow
def test_a_browser_draws_it_without_script_or_network(tmp_path):
    """Headless Chromium: nothing overflows a narrow window, and the curves have a size."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium or google-chrome on PATH")
    page_of(tmp_path, *(folder_of(tmp_path / name, *LOG) for name in ("one", "two")))
    probe = """<script>document.title = JSON.stringify({
      overflow: document.documentElement.scrollWidth - innerWidth,
      charts: [...document.querySelectorAll('.chart>svg')].map(s => s.clientWidth),
      lines: [...document.querySelectorAll('polyline')].map(l => l.getBBox().width)})</script>"""
    copy = tmp_path / "probed.html"
    copy.write_text((tmp_path / "page.html").read_text() + probe)
    for width in (420, 1300):
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        words = [
            browser,
            *options,
            f"--window-size={width},900",
            f"--user-data-dir={tmp_path / 'profile'}",
            copy.as_uri(),
        ]
        dom = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
        layout = json.loads(re.search("<title>(.*?)</title>", dom).group(1))
        assert layout["overflow"] <= 0
        assert len(layout["charts"]) == 6
        assert all(size > 250 for size in layout["charts"])
        assert all(size > 0 for size in layout["lines"])
