"""The program of docs/scale.md for Ray Data."""

import re
from pathlib import Path

import pytest

pytest.importorskip(
    "ray", reason="needs Ray (pip install 'ray[data]'), 240 MB that no extra brings"
)
torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from folders import contents
from vocagno.cli.app import main

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.fixture
def two_cpus(monkeypatch, tmp_path_factory):
    """A Ray of this machine alone."""
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in an actor: the number changes the last bits of a loss
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=100_000_000,
        _node_ip_address="127.0.0.1",
    )
    yield
    ray.shutdown()
    torch.set_num_threads(before)


@pytest.mark.slow
def test_the_program_makes_the_store_of_the_command(
    tmp_path, teacher_model, two_cpus, monkeypatch, capsys
):
    (block,) = re.findall(r"## Ray\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEACHER").symlink_to(teacher_model)
    (tmp_path / "corpus").mkdir()
    for number in range(4):  # each file begins a shard
        texts = [f"{number} {i}: {text}" for i, text in enumerate(TEXTS[number:])]
        write_corpus(tmp_path / "corpus" / f"{number}.jsonl", texts)
    command = ["score", "corpus", "--teacher.model", "TEACHER", "--cache", "other"]
    assert main([*command, "--out", "expected"]) == 0
    scope = {"__name__": "scale"}
    exec(compile(block, PAGE.name, "exec"), scope)
    expected = contents(tmp_path / "expected")
    assert len(expected) == 5
    assert contents(tmp_path / "scores-by-ray") == expected
    tokens = re.search(r"^([\d,]+) tokens$", capsys.readouterr().out, re.M)
    assert int(tokens[1].replace(",", "")) > 1000
    (tmp_path / "scores-by-ray" / "manifest.json").unlink()  # it resumes
    (tmp_path / "scores-by-ray" / "shard-00002.arrow").unlink()
    exec(compile(block, PAGE.name, "exec"), scope)
    assert contents(tmp_path / "scores-by-ray") == expected
