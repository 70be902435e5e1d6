"""Benchmarks asked while a student is trained leave no trace in its training."""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, LlamaForCausalLM

from corpora import write_corpus
from evaluation_data import write_benchmarks
from families import TEXTS
from runs import ARCHITECTURE, run, same_weights, train_here, write_config
from tiny_models import tiny_llama
from vocagno.errors import ConfigError
from vocagno.evaluation.benchmarks import BENCHMARKS
from vocagno.evaluation.running import generate_answers, prepare_tasks
from vocagno.training import validation
from vocagno.training.configuration import parse
from vocagno.training.validation import Evaluation, check_benchmarks

pytestmark = pytest.mark.slow

MATRIX = Path(__file__).parents[1] / "support" / "processes" / "matrix.py"
TASKS = ["gsm8k", "sat_math"]
ITEMS = {"gsm8k": 2, "sat_math": 2}


@pytest.fixture
def config(tmp_path, config):
    """Writes the configuration of a run with dropout, so that a number drawn would be seen."""
    data = write_benchmarks(tmp_path / "benchmarks")
    architecture = {**ARCHITECTURE, "attention_dropout": 0.2, "max_position_embeddings": 512}

    def write(name, **options):
        return config(
            output=str(tmp_path / name),
            train={"log_every": 1, "micro_batch": 4},
            student={"architecture": architecture},
            eval={"data": str(data), "tasks": TASKS, "new_tokens": 5, **options},
        )

    return write


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def evaluations(folder):
    return [line for line in lines(folder) if "eval_seconds" in line]


def training(folder):
    """What was measured in training, without times."""
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in lines(folder)
        if "eval_seconds" not in line
    ]


TIMES = ("tokens_per_s", "data_share", "teacher_share", "validation_seconds")


def test_the_run_is_bit_by_bit_the_same(tmp_path, config, monkeypatch):
    """Also if the answers are drawn."""
    generate_answers = validation.generate_answers

    def drawn(*arguments):
        torch.rand(1)
        return generate_answers(*arguments)

    monkeypatch.setattr(validation, "generate_answers", drawn)
    assert train_here(config("without")) == 0
    assert train_here(config("with", every=2)) == 0
    assert same_weights(tmp_path / "without", tmp_path / "with")
    assert training(tmp_path / "without") == training(tmp_path / "with")
    entries = evaluations(tmp_path / "with")
    assert [line["step"] for line in entries] == [2, 4, 6]
    for line in entries:
        for name, count in ITEMS.items():
            assert 0 <= line[f"eval/{name}/harness_match"] <= 1
            file = tmp_path / "with" / "evaluations" / f"step_{line['step']}" / f"{name}.jsonl"
            kept = [json.loads(text) for text in file.read_text().splitlines()]
            assert [answer["idx"] for answer in kept] == list(range(count))
            assert all(isinstance(answer["completion"], str) for answer in kept)


def test_an_evaluation_that_was_not_reached_is_made_up(tmp_path, config):
    """A step is saved before its student is asked."""
    path, folder = config("with", every=3), tmp_path / "with"
    assert train_here(path) == 0
    (folder / "final").rename(folder / "before")
    log = lines(folder)
    kept = [line for line in log if (line["step"], "eval_seconds" in line) != (6, True)]
    assert len(kept) == len(log) - 1
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert train_here(path) == 0
    again = [{**line, "eval_seconds": 0} for line in evaluations(folder)]
    assert again == [{**line, "eval_seconds": 0} for line in log if "eval_seconds" in line]
    assert (folder / "final").is_dir()
    (tmp_path / "benchmarks").rename(tmp_path / "moved")
    assert train_here(path) == 0  # a complete run asks no more questions


def test_a_copy_ends_its_answers_at_the_same_ids():
    model = tiny_llama(50)
    model.generation_config.eos_token_id = [2, 7]
    asked = SimpleNamespace(model=model, accelerator=SimpleNamespace(device="cpu"))
    copied = Evaluation._copy(asked, {f"model.{k}": v for k, v in model.state_dict().items()})
    assert copied.generation_config.eos_token_id == [2, 7]


def test_weights_in_pieces_are_refused(config):
    plugin = SimpleNamespace(zero_stage=3)
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    options = parse(["--config", str(config("with", every=3))]).eval
    with pytest.raises(ConfigError, match=r"eval\.every: not under DeepSpeed's ZeRO 3"):
        check_benchmarks(options, accelerator)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory, tokenizer_files, teacher_model):
    """Runs of two processes: DDP and FSDP2, with evaluations and without. The first process grades
    for longer than the collectives of the others wait."""
    folder = tmp_path_factory.mktemp("layouts")
    data = write_benchmarks(folder / "benchmarks")
    cells = []
    for wrapper, every in product(("ddp", "fsdp2"), (None, 2)):
        name = f"{wrapper}-{every}"
        path = write_config(
            folder,
            write_corpus(folder / "c.jsonl", TEXTS),
            tokenizer_files,
            teacher_model,
            output=str(folder / name),
            train={"micro_batch": 4, "collective_timeout": 4.0},
            student={"architecture": {**ARCHITECTURE, "max_position_embeddings": 512}},
            eval={"data": str(data), "tasks": TASKS, "new_tokens": 5, "every": every},
        )
        cells.append([name, wrapper == "fsdp2", ["--config", str(path)]])
    (folder / "cells.json").write_text(json.dumps(cells))
    run(2, MATRIX, CELLS=str(folder / "cells.json"), RECORD=str(folder), SECONDS="5")
    return folder


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_two_processes_ask_every_item_once(layouts, wrapper):
    """The same weights with and without; every item is asked once, of the weights as they are."""
    assert same_weights(layouts / f"{wrapper}-None", layouts / f"{wrapper}-2")
    assert [line["step"] for line in evaluations(layouts / f"{wrapper}-2")] == [2, 4, 6]
    model = LlamaForCausalLM.from_pretrained(layouts / f"{wrapper}-2" / "final").eval()
    tokenizer = AutoTokenizer.from_pretrained(layouts / f"{wrapper}-2" / "final")
    lm = HFLM(pretrained=model, tokenizer=tokenizer)
    for name, count in ITEMS.items():
        file = layouts / f"{wrapper}-2" / "evaluations" / "step_6" / f"{name}.jsonl"
        answers = [json.loads(line) for line in file.read_text().splitlines()]
        assert [answer["idx"] for answer in answers] == list(range(count))
        data, benchmark = layouts / "benchmarks", BENCHMARKS[name]
        (task,) = prepare_tasks(lm, [benchmark], data, limit=None, new_tokens=5)
        expected = {
            prompted.item.index: completion
            for batch in generate_answers(lm, task.asked, 1)
            for prompted, completion in batch
        }
        assert {answer["idx"]: answer["completion"] for answer in answers} == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 2, "data": None}, "eval.data: the folder of the benchmarks is needed"),
        ({"every": 0}, "eval.every must be at least 1, got 0"),
        ({"every": 2, "tasks": ["gsm9k"]}, "task 'gsm9k': no such benchmark; did you mean gsm8k"),
        ({"every": 2, "data": "nowhere"}, "no such"),
    ],
)
def test_wrong_evaluations_are_refused(tmp_path, config, capsys, options, message):
    assert train_here(config("bad", **options)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()  # before anything is scored


def test_prompts_that_do_not_fit_are_named_before_a_text_is_scored(config, capsys):
    path = config("short", every=3)
    for options in ([], ["--dry_run"]):
        assert train_here(path, "--student.architecture.max_position_embeddings=40", *options) == 2
        error = capsys.readouterr().err
        assert "do not fit the model's context of 40 tokens" in error
        assert "scoring" not in error
