"""Runs the quickstart: makes texts, tokenizers and a teacher on this machine, trains a student in
three ways, prints a table and writes a page."""

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from vocagno.errors import InputError, require
from vocagno.system.progress import in_table
from vocagno.system.signals import DONE, INTERRUPTED, UNFINISHED, Terminated, run_with_signals

CONFIGS = Path(__file__).parent
"""Folder with the configuration of each student (`guided.yaml`) and of the teacher."""
FOLDER = Path("runs/quickstart")
"""Output folder of the quickstart; the files in `CONFIGS` name it, too."""

TRAIN_DOCUMENTS = 2200
TEACHER_DOCUMENTS = 5000
VALID_DOCUMENTS = 150
QUESTIONS = 200
NOISE_FRACTION = 0.2
"""Share of unpredictable lines in the student's corpus."""

# Variables of a launcher: the teacher's process must not take itself for one of several.
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def make_assets() -> None:
    """Makes the missing inputs; several processes may call this at the same time."""
    from vocagno.system.shared_work import share

    tokenizers, teacher = FOLDER / "tokenizers", FOLDER / "teacher" / "final"
    share(["texts"], FOLDER, done=lambda _: tokenizers.is_dir(), make=lambda _: _make_texts())
    share(["teacher"], FOLDER, done=lambda _: teacher.is_dir(), make=lambda _: _train_teacher())


def _make_texts() -> None:
    """Writes the corpora and trains both tokenizers on them."""
    from vocagno.quickstart.problems import write_corpus
    from vocagno.quickstart.tokenizers import train_tokenizers

    print("writing the corpus, training two tokenizers", file=sys.stderr)
    paths = write_corpus(
        FOLDER / "corpus",
        train_documents=TRAIN_DOCUMENTS,
        valid_documents=VALID_DOCUMENTS,
        questions=QUESTIONS,
        noise_fraction=NOISE_FRACTION,
        teacher_documents=TEACHER_DOCUMENTS,
    )
    with paths["train"].open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    unfinished = FOLDER / "tokenizers.tmp"
    shutil.rmtree(unfinished, ignore_errors=True)
    train_tokenizers(texts, unfinished)
    unfinished.rename(FOLDER / "tokenizers")


def _train_teacher() -> None:
    """Trains the teacher by the naive method, in one process without the caller's launcher."""
    print("training the teacher", file=sys.stderr)
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHER}
    command = [sys.executable, "-m", "vocagno", "train", "--config", str(CONFIGS / "teacher.yaml")]
    status = run_with_signals(command, environment)
    if status == UNFINISHED:
        raise Terminated
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status != 0:
        raise InputError(f"training the quickstart's teacher failed with status {status}")


STUDENTS = ("naive", "paper", "guided")
"""The students: trained on all tokens, by the paper's rule, and on the lines that are not noise."""
COLUMNS = ("", "held-out loss", "nats a byte", "exact answers", "tokens/s", "trained on")


def add_quickstart(parser: Any) -> None:
    """Train one student in three ways, print a table, and draw a page.

    It makes corpus, tokenizers and teacher itself, in `runs/quickstart`, and takes about four
    minutes on two cores.
    """
    words = "number of seeds (initial weights and row orders)"
    parser.add_argument("--seeds", type=int, default=1, help=words)


def quickstart(options: Any) -> None:
    """Trains what is missing; prints the table and writes the page."""
    started = time.monotonic()
    require(options.seeds >= 1, f"--seeds: expected at least 1, got {options.seeds}")
    try:
        make_assets()
        students = [_train(name, seed) for seed in range(options.seeds) for name in STUDENTS]
    except InputError as error:
        raise InputError(f"{error}\nDelete {FOLDER} to start from nothing.") from error
    rows = [_row("teacher", FOLDER / "teacher")]
    rows += [_row(run.name.replace("-", " "), run) for run in students]
    page = FOLDER / "quickstart.html"
    _draw(page, rows)
    print(in_table([COLUMNS, *(tuple(row.values()) for row in rows)]))
    print(
        "\nheld-out loss: nats per token of clean text. The students share a tokenizer and their\n"
        "initial weights; the teacher has another tokenizer, so compare it by nats a byte. paper:\n"
        "top 40 % of the tokens; guided: lines that are not noise. Warnings of losses above\n"
        "are of the junk in the corpus.\n"
        f"{time.monotonic() - started:.0f} s in total; "
        f"tokens that the teacher chose: {page}"
    )


def _train(name: str, seed: int) -> Path:
    """Trains one student in this process; returns the folder of the run."""
    from vocagno.training.configuration import parse
    from vocagno.training.main import train

    run = FOLDER / (f"{name}-seed-{seed}" if seed else name)
    print(f"training the {name} student", file=sys.stderr)
    options = ["--train.seed", str(seed), "--output", str(run)]
    if train(parse(["--config", str(CONFIGS / f"{name}.yaml"), *options])) != DONE:
        raise Terminated
    return run


def _row(name: str, run: Path) -> dict[str, str]:
    """Makes a line of the table from the run's log and its answers to the held-out problems."""
    from vocagno.quickstart.problems import accuracy_of_run
    from vocagno.training.run_log import read_run
    from vocagno.views.passage import number

    log = read_run(run)
    values = (
        name,
        f"{log.curve('validation_loss')[1][-1]:.4f}",
        number(log.as_dict()["last_nats_per_byte"], ".4f"),
        f"{accuracy_of_run(run, FOLDER / 'corpus' / 'problems.jsonl'):.1%}",
        f"{log.tokens_per_s:,.0f}",
        f"{log.kept_share:.1%}",
    )
    return dict(zip(COLUMNS, values, strict=True))


def _draw(page: Path, rows: list[dict[str, str]]) -> None:
    """Writes the page with the table and the passages of two students."""
    from vocagno.training.report import kept_passages
    from vocagno.views.html import render_page

    introduction = (
        "The same student, trained three times from the same weights on the same text, next to a "
        "teacher with another tokenizer: on every token; by the paper's rule, on the 40 % of "
        "tokens on which it is furthest behind the teacher; and on all lines except those that "
        "are noise to the teacher."
    )
    rules = {
        "guided": "kept and dropped by the rule of lines; losses of guided/final",
        "paper": "kept and dropped by the rule of the paper; losses of paper/final",
    }
    passages = [
        replace(passage, title=f"{passage.title}, {rule}")
        for name, rule in rules.items()
        for passage in kept_passages(FOLDER / name)
    ]
    html = render_page(
        title="A student, a teacher, two vocabularies",
        introduction=introduction,
        summary_rows=rows,
        passages=passages,
    )
    page.write_text(html, encoding="utf-8")
