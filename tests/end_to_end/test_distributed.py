"""Two processes and accumulation: the same training as one process at once."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import TRAIN, metrics, run, write_config
from tiny_models import tiny_llama

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[1] / "support" / "processes"
LAYOUTS = {"1 x 8": (1, 8), "8 single rows": (1, 1), "2 processes x 4": (2, 4)}


@pytest.fixture
def config(tmp_path, tokenizer_files, teacher_model):
    # Rows are short of text in places, so that micro-batches differ in what they count.
    corpus = write_corpus(tmp_path / "c.jsonl", [*TEXTS, "", "a", "", "b"] * 2)

    def build(name, **sections):
        sections = {"output": str(tmp_path / name), **sections}
        return write_config(tmp_path, corpus, tokenizer_files, teacher_model, **sections)

    return build


def record(tmp_path, config, layout, **extra):
    processes, rows = LAYOUTS[layout]
    name = layout.replace(" ", "") + "".join(extra)
    path = config(
        name,
        train={"steps": 3, "micro_batch": rows},
        guidance={"normalize": "selected"},
        optimizer={"max_grad_norm": None},
    )
    target = tmp_path / f"{name}.pt"
    run(processes, SCRIPTS / "record_gradients.py", "--config", path, RECORD=str(target), **extra)
    result = torch.load(target)
    assert result["processes"] == processes
    return result


def relative_difference(a, b):
    flat = [
        torch.cat([tensors[name].double().flatten() for name in sorted(a)]) for tensors in (a, b)
    ]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


def moved(result):
    return {name: result["end"][name] - result["start"][name] for name in result["end"]}


def check_same(whole, other):
    assert relative_difference(whole["gradients"], other["gradients"]) <= 1e-5
    assert relative_difference(moved(whole), moved(other)) <= 0.01


def test_every_layout_gives_the_same_step(tmp_path, config):
    whole = record(tmp_path, config, "1 x 8")
    assert all(change.abs().max() > 1e-4 for change in moved(whole).values())
    for layout in ("8 single rows", "2 processes x 4"):
        check_same(whole, record(tmp_path, config, layout))
        averaged = record(tmp_path, config, layout, AVERAGE="1")  # micro-batch by micro-batch
        with pytest.raises(AssertionError):
            check_same(whole, averaged)


def test_waiting_for_a_slow_teacher_outlasts_the_process_group(tmp_path, config):
    """12 s of scoring under a timeout of 5 s: nobody waits inside a collective."""
    path = config("slow", train={"steps": 2, "micro_batch": 4, "collective_timeout": 5.0})
    given = {"SECONDS": "12", "SHARD_BYTES": "2000000"}
    run(2, SCRIPTS / "slow_command.py", "train", "--config", path, **given)
    (entry,) = metrics(tmp_path / "slow")[0]
    assert entry["coverage"] == 1.0


def test_two_processes_are_one_run(tmp_path, config):
    """Started as a user starts them; that they train as one process is in `test_layouts.py`."""
    data = {"validation": str(write_corpus(tmp_path / "v.jsonl", TEXTS[:7]))}
    path = config("two", train={"micro_batch": 4, "eval_every": 3, "steps": 4}, data=data)
    result = run(2, TRAIN, "--config", path)
    assert result.stderr.count("complete: ") == 1
    training, validation = metrics(tmp_path / "two")
    assert [entry["step"] for entry in training] == [2, 4]
    assert [entry["step"] for entry in validation] == [3, 4]


def test_two_processes_of_a_guided_trainer_log_what_one_does(tmp_path):
    one, two = (
        json.loads(run(number, SCRIPTS / "guided_trainer.py", tmp_path).stdout.partition("log ")[2])
        for number in (1, 2)
    )
    assert len(one) == len(two) == 2
    names = "kept_loss", "kept_fraction", "threshold", "coverage", "scored"
    for ours, expected in zip(two, one, strict=True):
        assert [ours[name] for name in names] == pytest.approx([expected[name] for name in names])
    assert two[0]["loss"] == pytest.approx(one[0]["loss"])
    assert two[0]["coverage"] == pytest.approx(38 / 44)


def test_processes_hold_one_teacher_between_them(tmp_path, tokenizers):
    """Tensor parallelism as transformers does it: the scores of one process that holds it whole."""
    from vocagno.teacher.scores import ScoreStore

    teacher = tmp_path / "teacher"
    size = tokenizers["byte-level"].get_vocab_size()
    tiny_llama(size, num_key_value_heads=2).save_pretrained(teacher)
    tokenizers["byte-level"].save(str(teacher / "tokenizer.json"))
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    stores = []
    for processes, options in ((1, ()), (2, ("--teacher.tensor_parallel", "true"))):
        store = tmp_path / f"store{processes}"
        arguments = ("score", corpus, "--out", store, "--cache", tmp_path / "cache", "--json")
        command = (SCRIPTS / "command.py", *arguments, "--teacher.model", teacher, *options)
        for _ in range(2):  # the second time all is there
            result = run(processes, *command)
            assert result.stdout.count("{") == 1
        stores.append(ScoreStore(store))
    whole, split = stores
    assert split.manifest.made_from == whole.manifest.made_from
    for index in range(len(TEXTS)):
        ours, expected = split.document(index), whole.document(index)
        np.testing.assert_allclose(ours.nll, expected.nll, atol=4e-3)
