"""The log of a window, and what a run says of it."""

import json

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import metrics, train_here, write_config
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import RowStore
from vocagno.errors import GuidanceError
from vocagno.guidance.methods import method_of
from vocagno.guidance.tensors import LossSums, TokenCounts
from vocagno.training import loop
from vocagno.training.monitoring import StepRecord, ThresholdWatch, Window, unusual_selection


def window_of(kept, counts):
    """One step, on whose device `kept` tokens are kept."""
    window = Window(torch.device("cpu"), method_of(GuidanceConfig(top_fraction=0.4)))
    one = torch.tensor(1.0)
    sums = LossSums(one, one, one, one, one, torch.tensor(float(kept))).tensor()
    window.records.append(StepRecord(6, TokenCounts(**counts), one, sums, []))
    return window


def entry_of(**counts):
    window = window_of(counts["kept"], counts)
    return window.entry(7, window.sums())


GOOD = {
    "predicted": 1100,
    "kept": 440,
    "with_text": 1000,
    "mapped": 1000,
    "scorable": 1000,
    "scored": 1000,
    "special": 100,
}


def test_a_window_that_drops_most_of_the_text_says_so():
    guidance = GuidanceConfig(window_max_loss=1.0)
    entry = {"step": 10, "kept_fraction": 0.4, "unmapped": {}}
    assert "only 40% of the tokens are kept" in unusual_selection(entry, guidance)
    assert unusual_selection(entry | {"kept_fraction": 0.9}, guidance) is None
    quota = GuidanceConfig(window_max_loss=1.0, top_fraction=0.4)  # drops most by itself
    assert unusual_selection(entry, quota) is None


def test_a_threshold_above_zero_is_said_once():
    watch = ThresholdWatch(GuidanceConfig(top_fraction=0.4), steps=100)
    assert watch.look({"step": 10, "threshold": 2.0}) is None  # at the start it always is
    assert "+1.25 nats" in watch.look({"step": 30, "threshold": 1.25})
    assert watch.look({"step": 40, "threshold": 1.25}) is None
    for guidance, threshold in (
        (GuidanceConfig(top_fraction=0.4), -0.1),
        (GuidanceConfig(top_fraction=0.4), None),
        (GuidanceConfig(max_threshold=1.0, top_fraction=0.4), 1.0),
    ):
        assert ThresholdWatch(guidance, 100).look({"step": 30, "threshold": threshold}) is None


def test_text_that_a_live_teacher_cannot_read_is_said():
    guidance = GuidanceConfig(top_fraction=0.4)
    assert (
        unusual_selection(entry_of(**GOOD | {"predicted": 1110, "missing": 10}), guidance) is None
    )
    words = unusual_selection(entry_of(**GOOD | {"predicted": 1375, "missing": 275}), guidance)
    assert words is not None
    assert "step 7: 20% of the tokens are in text without scores" in words


def test_a_good_window_is_covered():
    entry = entry_of(**GOOD)
    assert entry["coverage"] == entry["scored"] == 1.0


def test_a_device_that_keeps_other_tokens_is_seen():
    window = window_of(439, GOOD)
    with pytest.raises(GuidanceError, match=r"step 7: 439 tokens were kept where .* says 440"):
        window.entry(7, window.sums())


def test_far_more_tokens_than_were_asked_for():
    few = entry_of(**GOOD)
    assert unusual_selection(few, GuidanceConfig(top_fraction=0.4)) is None
    many = entry_of(**GOOD | {"predicted": 2000, "kept": 400 + 1000, "special": 1000})
    words = unusual_selection(many, GuidanceConfig(top_fraction=0.4))
    assert words is not None
    assert "70% of the tokens are kept, not 40%: 50% have no teacher loss" in words
    assert "special), and guidance.unmapped is include" in words
    assert unusual_selection(many, GuidanceConfig(method="cpt")) is None
    assert unusual_selection(many | {"unmapped": {}}, GuidanceConfig(top_fraction=0.4)) is None
    words = unusual_selection(many | {"tokens": 0}, GuidanceConfig(top_fraction=0.4))
    assert "have no teacher loss" in words


BAD = "ß"
"""A character that stands in one document alone."""
WHERE = 5


@pytest.fixture
def config(tmp_path, tokenizer_files, teacher_model):
    texts = [*TEXTS[:WHERE], f"{TEXTS[0]} {BAD}", *TEXTS[WHERE:]]
    corpus = write_corpus(tmp_path / "c.jsonl", texts)

    def build(**sections):
        return write_config(tmp_path, corpus, tokenizer_files, teacher_model, **sections)

    return build


@pytest.fixture
def poisoned(monkeypatch, tokenizers):
    """Makes the student's state after the bad character `value`, whatever stood before it."""

    def poison(value):
        token = tokenizers["llama"].encode(BAD, add_special_tokens=False).ids[-1]
        original = loop.load_student

        def load(*arguments):
            model = original(*arguments)
            with torch.no_grad():
                model.get_input_embeddings().weight[token] = value
            return model

        monkeypatch.setattr(loop, "load_student", load)

    return poison


def bad_rows(folder):
    """The rows that hold the bad document's last token but one, read from the store."""
    (store,) = (RowStore(path) for path in (folder / "cache" / "rows").iterdir())
    size = len(f"{TEXTS[0]} {BAD}".encode())
    found = []
    for index in range(len(store)):
        row = store[index]
        documents = row.documents.repeat(row.num_tokens)
        ends = (documents == WHERE) & (row.spans[:, 1] == size) & (row.spans[:, 0] < size)
        found += [index] if ends[:-1].any() else []
    return found


def test_a_loss_that_is_no_number_is_named(tmp_path, config, poisoned, capsys):
    poisoned(float("nan"))
    path = config(train={"steps": 30, "log_every": 7, "checkpoint_every": 60})
    assert train_here(path) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    rows = bad_rows(tmp_path)
    assert rows
    named = [row for row in rows if f"row {row} (loss nan, documents " in line]
    assert named
    assert f" {WHERE}" in line
    assert line.count("row ") <= len(rows) + 1  # and no other row
    step = int(line.split("step ")[1].split(":")[0])
    assert 1 <= step <= 7
    assert "optimizer.skip_nonfinite: true" in line


@pytest.mark.slow
def test_steps_without_a_finite_gradient_are_left_out_and_counted(tmp_path, config, poisoned):
    poisoned(float("nan"))
    path = config(
        train={"steps": 24, "global_batch": 2, "micro_batch": 1, "log_every": 8},
        optimizer={"skip_nonfinite": True},
    )
    assert train_here(path) == 0
    entries, _ = metrics(tmp_path / "run")
    skipped = sum(entry.get("skipped", 0) for entry in entries)
    assert 0 < skipped < 12
    assert all(entry["loss"] < 10 for entry in entries)
    from runs import final_weights

    weights = final_weights(tmp_path / "run")
    finite = {name: bool(weight.isfinite().all()) for name, weight in weights.items()}
    assert all(ok for name, ok in finite.items() if "embed_tokens" not in name)


def test_a_window_of_one_step_may_be_left_out(tmp_path, config, poisoned):
    poisoned(float("nan"))
    path = config(
        train={"steps": 12, "global_batch": 2, "micro_batch": 1, "log_every": 1},
        optimizer={"skip_nonfinite": True},
    )
    assert train_here(path) == 0
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [entry["step"] for entry in entries] == list(range(1, 13))
    assert {"step", "skipped"} in [entry.keys() for entry in entries]
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_run_that_stopped_may_go_on_leaving_steps_out(tmp_path, config, poisoned, capsys):
    poisoned(float("nan"))
    path = config(train={"steps": 24, "global_batch": 2, "micro_batch": 1, "log_every": 8})
    assert train_here(path) == 2
    capsys.readouterr()
    assert train_here(path, "--optimizer.skip_nonfinite", "true") == 0


@pytest.mark.slow
def test_a_run_without_any_finite_step_stops(config, poisoned, capsys):
    poisoned(float("nan"))
    path = config(
        data={"seq_len": 2048},
        train={"steps": 14, "global_batch": 1, "micro_batch": 1},
        optimizer={"skip_nonfinite": True},
    )
    assert train_here(path) == 2
    assert "step 10: 10 steps in a row were skipped" in capsys.readouterr().err


def test_a_spike_is_logged_with_its_documents(tmp_path, config, monkeypatch, capsys):
    """The head is turned round for one step, so that what was likely becomes unlikely."""
    original = loop.Training._step

    def spiking(self, step, *rest):
        weight = self.student.model.lm_head.weight
        if step == 13:
            weight.data.mul_(-60)
        stopped = original(self, step, *rest)
        if step == 13:
            weight.data.div_(-60)
        return stopped

    monkeypatch.setattr(loop.Training, "_step", spiking)
    path = config(train={"steps": 16, "log_every": 4, "checkpoint_every": 16, "spike_ratio": 1.2})
    assert train_here(path) == 0
    entries, _ = metrics(tmp_path / "run")
    (spiking_entry,) = [entry for entry in entries if "spikes" in entry]
    (spike,) = spiking_entry["spikes"]
    assert (spiking_entry["step"], spike["step"]) == (16, 14)
    assert spike["loss"] > 1.2 * entries[2]["loss"]
    losses = [row["loss"] for row in spike["rows"]]
    assert losses == sorted(losses, reverse=True)
    (store,) = (RowStore(p) for p in (tmp_path / "cache" / "rows").iterdir())
    for row in spike["rows"]:
        assert row["documents"] == store[row["row"]].documents.tolist()
    printed = capsys.readouterr().err
    assert f"step 14: a loss of {spike['loss']:.3f}, over 1.2 times the loss before" in printed
    assert f"the run continues; row {spike['rows'][0]['row']} " in printed
    json.dumps(spike)


def test_a_selection_far_from_the_fraction_is_said_once(tmp_path, config, capsys):
    write_corpus(tmp_path / "c.jsonl", ["a", "b c", "d"] * 40)  # more BOS and EOS than text
    assert train_here(config(train={"steps": 4, "log_every": 1})) == 0
    error = capsys.readouterr().err
    assert error.count("of the tokens are kept, not 40%") == 1
    assert "special), and guidance.unmapped is include" in error
