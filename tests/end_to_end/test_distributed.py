"""Two processes: one teacher, one log, and waiting. That they train as one: `test_layouts.py`."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import metrics, run
from tiny_models import save_llama
from vocagno.cli.app import main
from vocagno.teacher.score_store import ScoreStore

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[1] / "support" / "processes"


def test_waiting_for_a_slow_teacher_outlasts_the_process_group(tmp_path, config):
    """8 s of scoring under a timeout of 5 s: nobody waits inside a collective."""
    path = config(train={"steps": 2, "micro_batch": 4, "collective_timeout": 5.0})
    environment = {"SECONDS": "8", "SHARD_BYTES": "2000000"}
    run(2, SCRIPTS / "slow_command.py", "train", "--config", path, **environment)
    (entry,) = metrics(tmp_path / "run")[0]
    assert entry["coverage"] == 1.0


def test_two_processes_of_a_guided_trainer_log_what_one_does(tmp_path):
    log_of_one, log_of_two = (
        json.loads(run(number, SCRIPTS / "guided_trainer.py", tmp_path).stdout.partition("log ")[2])
        for number in (1, 2)
    )
    assert len(log_of_one) == len(log_of_two) == 2
    names = "kept_loss", "kept_fraction", "threshold", "coverage", "scored"
    for entry, expected in zip(log_of_two, log_of_one, strict=True):
        assert [entry[name] for name in names] == pytest.approx([expected[name] for name in names])
    assert log_of_two[0]["loss"] == pytest.approx(log_of_one[0]["loss"])
    assert log_of_two[0]["coverage"] == pytest.approx(38 / 44)


def test_processes_hold_one_teacher_between_them(tmp_path, tokenizers):
    """Tensor parallelism as transformers does it: the scores of one process that holds it whole."""
    teacher = save_llama(tmp_path / "teacher", tokenizers["byte-level"], num_key_value_heads=2)
    corpus = write_corpus(tmp_path / "c.jsonl", TEXTS)
    command = ["score", corpus, "--cache", tmp_path / "cache", "--teacher.model", teacher]
    assert main(list(map(str, [*command, "--out", tmp_path / "whole"]))) == 0
    options = "--json", "--teacher.tensor_parallel", "true", "--out", tmp_path / "split"
    for _ in range(2):  # the second time all is there
        result = run(2, SCRIPTS / "command.py", *command, *options)
        assert result.stdout.count("{") == 1
    whole, split = (ScoreStore(tmp_path / name) for name in ("whole", "split"))
    assert split.manifest.made_from == whole.manifest.made_from
    for index in range(len(TEXTS)):
        scores, expected = split.document(index), whole.document(index)
        np.testing.assert_allclose(scores.nll, expected.nll, atol=4e-3)
