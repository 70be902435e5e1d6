"""What scoring and a run will take, compared with what they took."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from evaluation_data import write_benchmarks
from families import TEXTS
from runs import metrics
from vocagno.cli.app import main
from vocagno.data.rows import RowStore
from vocagno.errors import ConfigError
from vocagno.teacher.configured import ConfiguredTeacher
from vocagno.teacher.windows import Window
from vocagno.training import estimate as module
from vocagno.training.configuration import parse

pytestmark = pytest.mark.slow

MANY = [f"{i}: {TEXTS[i % len(TEXTS)]} {TEXTS[(i * i) % len(TEXTS)]}" for i in range(240)]


@pytest.fixture
def estimated(monkeypatch, capsys):
    """`vocagno train CONFIG --dry_run`: what it prints."""
    monkeypatch.setattr(module, "_SECONDS", 1.0)

    def estimate(path):
        assert main(["train", "--config", str(path), "--dry_run", "--json"]) == 0
        printed = capsys.readouterr()
        assert ("; not counted: the benchmarks" in printed.err) == ("  every: " in path.read_text())
        return json.loads(printed.out)

    return estimate


def test_an_estimate_is_near_what_a_run_takes(tmp_path, config, estimated):
    """Each figure of `--dry_run` is compared with what the run then makes; the estimate itself
    leaves no run, rows or scores."""
    held_out = str(write_corpus(tmp_path / "held_out.jsonl", TEXTS))
    many = str(write_corpus(tmp_path / "many.jsonl", MANY))
    path = config(data={"train": many, "validation": held_out})
    guess = estimated(path)
    assert not (tmp_path / "run").exists()
    assert {folder.name for folder in (tmp_path / "cache").iterdir()} <= {"corpora", "weights"}
    assert main(["train", "--config", str(path)]) == 0
    stores = map(RowStore, (tmp_path / "cache" / "rows").iterdir())
    rows = max(stores, key=lambda store: store.num_tokens)
    assert guess["documents"] == 240
    # BOS and EOS of each document; two shards.
    assert guess["tokens"] + 2 * 240 == pytest.approx(rows.num_tokens, abs=2)
    assert guess["rows_bytes"] == pytest.approx(rows.num_bytes, rel=0.15)
    (folder,) = (tmp_path / "cache" / "scores").iterdir()
    scores = sum(path.stat().st_size for path in folder.glob("*.arrow"))
    assert guess["scores_bytes"] == pytest.approx(scores, rel=0.15)
    entries, _ = metrics(tmp_path / "run")
    kept = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    kept += (tmp_path / "run" / "final").glob("*.safetensors")
    saved = sum(path.stat().st_size for path in kept)
    assert guess["checkpoints_bytes"] == pytest.approx(saved, rel=0.05)
    aside = [guess[f"{name}_seconds"] for name in ("loading", "checkpoints", "validation")]
    assert min(aside) > 0
    parts = guess["training_hours_on_1"] + guess["scoring_hours_on_1"] + sum(aside) / 3600
    parts += guess["report_seconds"] / 3600
    assert guess["run_hours_on_1"] == pytest.approx(parts, rel=0.02)
    assert sum(entry["tokens"] for entry in entries) <= guess["trained_tokens"]
    kept = sum(entry["kept_fraction"] for entry in entries) / len(entries)
    assert guess["kept_fraction"] == pytest.approx(kept, abs=0.1)
    assert guess["peak_memory_mb"] > 100
    for phase, tokens in (("training", "trained_tokens"), ("scoring", "teacher_tokens")):
        speed = guess[f"{phase}_tokens_per_second"]
        assert speed > 100
        for devices in module.DEVICES:
            hours = guess[tokens] / speed / devices / 3600
            assert guess[f"{phase}_hours_on_{devices}"] == pytest.approx(hours, rel=0.01)
    assert "teacher_tokens" not in estimated(path)  # there is nothing left to score


@pytest.mark.parametrize(
    "sections",
    [
        {"teacher": {"mode": "live"}},
        {"guidance": {"method": "cpt"}, "eval": {"every": 1, "data": "questions"}},
        {"train": {"sample_every": 1, "log_with": ["tensorboard"], "steps": 1}},
    ],
)
def test_other_runs_are_estimated_without_scoring_or_traces(
    tmp_path, config, estimated, sections, monkeypatch
):
    write_benchmarks(tmp_path / "questions")
    monkeypatch.chdir(tmp_path)
    guess = estimated(config(**sections))
    assert guess["training_tokens_per_second"] > 10
    assert ("teacher_tokens" in guess) == ("train" in sections)
    assert not (tmp_path / "run").exists()


def test_the_memory_of_training_is_not_that_of_the_teacher(config, estimated, monkeypatch):
    events = []

    class Watched(module.Training):
        def burst(self, seconds):
            events.append("burst")
            return super().burst(seconds)

    def peak(device):
        events.append("peak")
        return len(events)

    monkeypatch.setattr(module, "Training", Watched)
    monkeypatch.setattr(module, "reset_peak_memory", lambda device: events.append("reset"))
    monkeypatch.setattr(module, "peak_memory_mb", peak)
    assert estimated(config())["peak_memory_mb"] == 4
    assert events == ["peak", "reset", "burst", "peak"]


def test_the_padding_of_a_sample_is_not_that_of_a_run(tmp_path, config, estimated, monkeypatch):
    """Few of the places of a short text are filled, as of a slow teacher's sample."""
    corpus, shares = write_corpus(tmp_path / "short.jsonl", ["3 + 4 = 7"]), []

    class Watched(module.Training):
        def burst(self, seconds):
            (rows,) = self.inputs.rows.stores.values()
            sizes = [len(rows[index].ids) - 1 for index in range(len(rows))]
            shares.append(sum(sizes) / (32 * len(sizes)))
            return super().burst(seconds) | {"tokens_per_s": 100.0}

    monkeypatch.setattr(module, "Training", Watched)
    path = config(data={"train": str(corpus)}, guidance={"method": "cpt", "top_fraction": None})
    speed = estimated(path)["training_tokens_per_second"]
    assert 0 < shares[0] < 0.6
    assert speed == pytest.approx(100 / shares[0], abs=0.1)


def test_the_peak_of_a_device_is_forgotten(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    for device in map(torch.device, ("cpu", "cuda:1")):
        module.reset_peak_memory(device)
    assert asked == [torch.device("cuda", 1)]


def test_a_mixture_is_the_sum_of_its_corpora(tmp_path, config, estimated):
    other = write_corpus(tmp_path / "other.jsonl", TEXTS[:5])
    paths = {str(tmp_path / "c.jsonl"): 1, str(other): 3}
    guess, *parts = (estimated(config(data={"train": train})) for train in (paths, *paths))
    for name in ("documents", "text_bytes", "tokens", "teacher_tokens"):
        assert guess[name] == sum(part[name] for part in parts)


def test_an_estimate_is_of_one_process(config, commands, capsys):
    with pytest.raises(ConfigError, match="--dry_run: start one process"):
        module.estimate_run(parse(["--config", str(config())]), SimpleNamespace(num_processes=2))
    assert main([*commands, "--dry_run", "--teacher.tensor_parallel", "true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --dry_run: measures one process, and teacher.tensor_parallel")


def test_a_pair_that_shares_too_little_is_refused_before_a_token_is_scored(
    tmp_path, config, commands, tokenizers, teacher_model, capsys, monkeypatch
):
    """In the dry run and the run, and by `vocagno score` for a student that is named."""
    monkeypatch.setattr(ConfiguredTeacher, "load", lambda *_: pytest.fail("scores"))
    lossy = tmp_path / "wp.json"
    tokenizers["word-piece"].save(str(lossy))
    student = {"tokenizer": str(lossy), "eos": "[UNK]"}
    run = config(student=student, guidance={"method": "distill"}, teacher={"candidates": 4})
    run.write_text(run.read_text().replace("  top_fraction: 0.4\n", ""))
    train, score = ["train", "--config", str(run)], [*commands, "--student", str(lossy)]
    out = ["--candidates", "4", "--out", str(tmp_path / "store")]
    for words in (train, [*train, "--dry_run"], [*score, *out], [*score, *out, "--dry_run"]):
        assert main(words) == 2
        assert "error: of the ids with text " in capsys.readouterr().err
    assert main([*score, *out[2:]]) == 2
    assert "error: --student: checks the candidates of the scores" in capsys.readouterr().err
    assert not any((tmp_path / name).exists() for name in ("store", "cache/scores", "cache/rows"))


@pytest.fixture
def commands(tmp_path, teacher_model):
    """`vocagno score` of a corpus of 60 shards, with the options to come."""
    corpus = write_corpus(tmp_path / "c.jsonl", MANY)
    options = ["--cache", str(tmp_path / "cache"), "--shard_bytes", "300", "--json"]
    return ["score", str(corpus), "--teacher.model", str(teacher_model), *options]


def test_an_estimate_of_scoring_is_near_what_comes_out(tmp_path, commands, capsys, monkeypatch):
    out = ["--out", str(tmp_path / "store")]
    assert main([*commands, *out, "--dry_run"]) == 0
    printed = capsys.readouterr()
    guess = json.loads(printed.out)
    assert "assumed: the speed grows in proportion to the devices" in printed.err
    assert not (tmp_path / "store").exists()
    assert main([*commands, *out]) == 0
    made = json.loads(capsys.readouterr().out)
    assert guess["documents"] == made["documents"] == 240
    assert 0 < guess["tokens_standard_error"] < made["tokens"] / 10
    assert abs(guess["tokens"] - made["tokens"]) < 4 * guess["tokens_standard_error"]
    assert guess["tokens_per_second"] > 100
    assert guess["hours_on_1"] == pytest.approx(
        guess["tokens"] / guess["tokens_per_second"] / 3600, rel=0.01
    )
    assert guess["hours_on_8"] == pytest.approx(guess["hours_on_1"] / 8, rel=0.01)
    assert guess["store_bytes"] > 2 * guess["tokens"]
    monkeypatch.setattr(module, "SHARDS", 1000)  # a sample of everything
    assert main([*commands, "--dry_run"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert (exact["tokens"], exact["tokens_standard_error"]) == (made["tokens"], 0)


def test_documents_of_a_token_without_a_loss_take_no_time(tmp_path, teacher_model, capsys):
    corpus = write_corpus(tmp_path / "c.jsonl", ["a", "b"])
    flags = ["--teacher.model", str(teacher_model), "--cache", str(tmp_path / "cache"), "--json"]
    assert main(["score", str(corpus), *flags, "--dry_run"]) == 0
    guess = json.loads(capsys.readouterr().out)
    assert (guess["tokens"], guess["tokens_per_second"], guess["hours_on_1"]) == (2, 0, 0)


def test_the_time_of_every_batch_counts(monkeypatch):
    """Windows of one batch come at once, after the time that all of them took: 10 ms for each, of
    10 tokens. The burst once ended after the first window of a batch, with the time of all."""
    monkeypatch.setattr(module, "_SECONDS", 0.1)

    def score(windows):
        for first in range(0, len(windows), 32):
            numbers = range(first, min(first + 32, len(windows)))
            time.sleep(0.01 * len(numbers))
            yield from ((number, None) for number in numbers)

    windows = [Window(np.zeros(11, np.int64), 1)] * 80
    reader = SimpleNamespace(read=lambda texts: SimpleNamespace(windows=windows))
    teacher = SimpleNamespace(reader=reader, scorer=SimpleNamespace(score=score))
    speed, tokens = module._scoring_burst(teacher, ["x"] * 8)
    assert 10 <= tokens < 800
    assert 500 < speed < 1000  # 1,000 but for the time that a busy machine takes
