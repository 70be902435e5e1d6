"""The paper's runs: every file follows from the facts, covers a row, and trains."""

import csv
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml

from chaos import repeats
from corpora import write_corpus
from families import TEXTS
from runs import metrics, train_here
from shared_data import shared
from tiny_models import save_llama

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "configs" / "paper"
FACTS = yaml.safe_load((FOLDER / "facts.yaml").read_text(encoding="utf-8"))
NAMES = sorted(FACTS["files"])
ROWS = {row: name for name, file in FACTS["files"].items() for row in file["rows"]}
TEACHERS = (
    "Mistral-ProXMath DeepSeekMath DeepSeekMath-RL Qwen2.5-Math Qwen2.5-Math-Instruct".split()
)
TOKENS = {"2B": 2_000_000_000, "5B": 5_000_000_000, "15B": 15_000_000_000}


def make(folder, *options):
    """Exit status and errors of the script in a folder."""
    command = [sys.executable, str(folder / "make.py"), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


def test_the_files_are_what_the_facts_say(tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "paper")
    assert make(folder, "--check") == (0, "")
    (folder / "rho-1.yaml").unlink()
    (folder / "more.yaml").touch()
    changed = folder / "lambda-0.5.yaml"
    changed.write_text(changed.read_text(encoding="utf-8").replace("0.95", "0.99"), "utf-8")
    status, stderr = make(folder, "--check")
    assert status == 1
    assert stderr.splitlines() == [
        "more.yaml: follows from no fact",
        "rho-1.yaml: missing",
        "lambda-0.5.yaml: differs from the facts",
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("source: hub", "", "common, data.train: needs `silent` and `source` together"),
        ("words: TinyLlama 1.1B", "", "common, student.model: needs `where` and `words` together"),
        ("value: 2048", "valeu: 2048", "common, data.seq_len: .*unexpected keyword.*'valeu'"),
        ("of: [naive, 15B]", "of: [naïve, 15B]", "files, tinyllama-cpt: no layer 'naïve'"),
    ],
)
def test_facts_that_are_not_whole_are_refused(tmp_path, before, after, words):
    shutil.copy(FOLDER / "make.py", tmp_path)
    text = (FOLDER / "facts.yaml").read_text(encoding="utf-8")
    assert before in text
    (tmp_path / "facts.yaml").write_text(text.replace(before, after, 1), encoding="utf-8")
    status, stderr = make(tmp_path)
    assert status == 1
    assert re.search(rf"facts\.yaml, .*{words}", stderr)
    assert not list(tmp_path.glob("*-*.yaml"))


def test_every_row_and_point_has_a_file():
    assert {row for row in ROWS if row.startswith("Fig. 7a")} == {
        f"Fig. 7a | {teacher} | {percent} %"
        for teacher in TEACHERS
        for percent in range(40, 90, 10)
    }
    assert {row for row in ROWS if row.startswith("Fig. 7b")} == {
        f"Fig. 7b | λ = {weight}" for weight in (0.3, 0.5, 1.0, 1.5)
    }
    counts = [sum(row.startswith(f"Table {n} |") for row in ROWS) for n in (1, 2, 3)]
    assert counts == [16, 9, 7]
    assert len(ROWS) == sum(len(file["rows"]) for file in FACTS["files"].values())
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.yaml)" in index for name in NAMES)


@pytest.mark.parametrize(
    ("table", "labels"),
    [(1, ("model", "method")), (2, ("guidance", "chunks")), (3, ("function", "train_tokens"))],
)
def test_the_rows_are_those_of_the_tables(table, labels):
    with shared("paper", f"table{table}.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            f"Table {table} | {' | '.join(row[n] for n in labels)}" for row in csv.DictReader(file)
        ]
    untrained = "Table 1 | TinyLlama (S) | -"
    assert [row for row in rows if row not in ROWS] == [untrained] * (table == 1)
    assert {row for row in ROWS if row.startswith(f"Table {table} ")} <= set(rows)


def test_the_papers_words_are_its_words():
    text = _plain(shared("paper", "vocagnolm.txt").read_text(encoding="utf-8"))
    facts = [fact for layer in FACTS["layers"].values() for fact in layer.values()]
    words = {fact["words"] for fact in facts if "words" in fact and fact["where"][:2] != "Eq"}
    assert len(words) > 25
    assert [quote for quote in words if _plain(quote) not in text] == []


def _plain(text):
    """Without citations, links, emphasis and doubled formulas."""
    text = re.sub(r"\([^()]*\(\[\d{4}\w?\]\([^)]*\)\)|\([^()]*\[\d{4}\w?\]\([^)]*\)\)", "", text)
    text = re.sub(r"\([A-Z][\w-]+[^()]*, \[\d{4}\w?\]\([^)]*\)\)", "", text)
    return re.sub(r"[\s_*]+", " ", unicodedata.normalize("NFKC", text)).casefold()


@pytest.fixture(scope="module")
def parse():
    pytest.importorskip("accelerate", reason="training needs vocagno[train]")
    from vocagno.training.configuration import parse

    return lambda name, *arguments: parse(["--config", str(FOLDER / f"{name}.yaml"), *arguments])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_a_run_of_the_paper(parse, name):
    config = parse(name)
    layers = FACTS["files"][name]["of"]
    (size,) = {layer.split()[0] for layer in layers} & TOKENS.keys()
    per_step = config.train.global_batch * config.data.seq_len
    assert 0 <= config.train.steps * per_step - TOKENS[size] < per_step
    # Distributions need the teacher in the student's place: half as many rows at a time fit.
    micro_batches = 8 if config.guidance.needs_distributions else 4
    assert config.train.accumulation(num_processes=32) == micro_batches
    rates = (config.optimizer.lr, config.optimizer.min_lr, config.data.seq_len)
    assert rates == (8e-5, 8e-6, 2048)
    assert str(config.output) == f"runs/paper/{name}"
    assert config.guidance.needs_teacher == (config.teacher.model is not None)
    if config.guidance.selects and "Fig. 7a" not in str(FACTS["files"][name]["rows"]):
        assert config.guidance.top_fraction == 0.4


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("Table 1 | TinyLlama-CPT | -", {"method": "cpt"}),
        ("Table 1 | Rho-1 | -", {"method": "rho1", "criterion": "excess_and_entropy"}),
        ("Table 1 | S + Llemma | KLD", {"method": "kld", "distillation_weight": 1.0}),
        ("Table 1 | S + DeepSeekMath | ULD", {"method": "uld", "distillation_weight": 0.5}),
        ("Table 1 | S + Qwen2.5-Math-Inst | Ours", {"method": "vocagno", "aggregation": "max"}),
        ("Table 2 | Random | 8", {"method": "chunk", "chunks": 8, "selection": "random"}),
        ("Table 2 | Teacher | 64", {"method": "chunk", "chunks": 64, "selection": "teacher"}),
        ("Table 3 | Mean | 2B", {"unmapped": "mean", "aggregation": "mean"}),
        ("Table 3 | Exclude | 2B", {"unmapped": "exclude", "aggregation": "mean"}),
        ("Table 3 | Include | 2B", {"unmapped": "include", "aggregation": "mean"}),
        ("Table 3 | Include+Max | 2B", {"unmapped": "include", "aggregation": "max"}),
        ("Fig. 7a | DeepSeekMath-RL | 70 %", {"method": "vocagno", "top_fraction": 0.7}),
        ("Fig. 7b | λ = 1.5", {"method": "uld", "distillation_weight": 1.5}),
    ],
)
def test_a_row_of_the_paper_has_its_options(parse, row, options):
    guidance = parse(ROWS[row]).guidance
    assert {name: getattr(guidance, name) for name in options} == options


def test_the_naive_run_is_the_reference_model(parse):
    assert str(parse("rho-1").teacher.model) == f"{parse('tinyllama-cpt').output}/final"


def test_rows_of_one_run_share_a_file():
    assert ROWS["Table 3 | Include | 2B"] == ROWS["Table 3 | Include+Mean | 2B"]
    assert ROWS["Table 3 | Include+Max | 15B"] == ROWS["Table 1 | S + Mistral-ProXMath | Ours"]
    assert ROWS["Table 3 | Include+Max | 2B"] == ROWS["Fig. 7a | Mistral-ProXMath | 40 %"]


@pytest.fixture(scope="session")
def small(tokenizers, teacher_model, tmp_path_factory):
    """Options that put tiny models and a small corpus in the place of the named ones."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("small")
    for name, seed in (("student", 0), ("same-vocabulary", 1)):
        save_llama(folder / name, tokenizers["llama"], seed)
    corpus = write_corpus(folder / "corpus.jsonl", TEXTS)

    def options(config, output):
        chosen = {"student.model": folder / "student", "data.train": corpus, "output": output}
        chosen |= {"data.seq_len": 32, "data.cache": folder / "cache", "train.precision": "fp32"}
        chosen |= {"train.steps": 5, "train.log_every": 1, "train.checkpoint_every": 5}
        chosen |= {"train.global_batch": 8, "train.micro_batch": 4}
        if config.teacher.model is not None:
            is_run = "runs/" in str(config.teacher.model)
            shares_vocabulary = config.guidance.needs_same_vocabulary or is_run
            teacher = folder / "same-vocabulary" if shares_vocabulary else teacher_model
            chosen["teacher.model"] = teacher
        return [f"--{name}={value}" for name, value in chosen.items()]

    return options


def covering():
    """Files that have every layer between them, taken from the one that adds most."""
    left = {layer for file in FACTS["files"].values() for layer in file["of"]}
    while left:
        name = max(NAMES, key=lambda stem: len(left.intersection(FACTS["files"][stem]["of"])))
        left.difference_update(FACTS["files"][name]["of"])
        yield name


@pytest.mark.parametrize("name", repeats(NAMES, list(covering())))
def test_a_configuration_of_the_paper_trains(parse, small, tmp_path, name):
    options = small(parse(name), tmp_path / "run")
    assert train_here(FOLDER / f"{name}.yaml", *options) == 0
    steps = metrics(tmp_path / "run")[0]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert all(0 < step["loss"] < 10 for step in steps)
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()
