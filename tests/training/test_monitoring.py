"""The log of a window, and what a run says of it."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from corpora import write_corpus
from families import TEXTS
from runs import TRAIN, metrics, run, train_here
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import RowStore
from vocagno.errors import GuidanceError
from vocagno.guidance.batch import TokenCounts
from vocagno.guidance.loss import LossSums
from vocagno.guidance.methods import method_of
from vocagno.training import loop
from vocagno.training.monitoring import StepRecord, Warnings, Window, _numbers, unusual_selection
from vocagno.training.run_log import Entry


def window_of(kept, counts):
    """One step, on whose device `kept` tokens are kept."""
    window = Window(torch.device("cpu"), method_of(GuidanceConfig(top_fraction=0.4)))
    scalar = torch.tensor(1.0)
    sums = LossSums(scalar, scalar, scalar, scalar, scalar, torch.tensor(float(kept))).tensor()
    window.records.append(StepRecord(6, TokenCounts(**counts), scalar, sums, []))
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


@pytest.mark.parametrize(
    ("options", "counts", "words"),
    [
        ({"window_max_loss": 1.0}, {"kept": 440}, "only 40% of the tokens are kept"),
        ({"window_max_loss": 1.0}, {"kept": 1000}, None),
        ({"window_max_loss": 1.0, "top_fraction": 0.4}, {}, None),  # drops most by itself
        ({"top_fraction": 0.4}, {}, None),
        ({"top_fraction": 0.4}, {"predicted": 1110, "missing": 10}, None),
        (
            {"top_fraction": 0.4},
            {"predicted": 1375, "missing": 275},
            "20% of the tokens are in text without scores",
        ),
        (
            {"top_fraction": 0.4},
            {"predicted": 2000, "kept": 1400, "special": 1000},
            "70% of the tokens are kept, not 40%: 50% have no teacher loss (most of them: special)",
        ),
        ({"method": "cpt"}, {"predicted": 2000, "kept": 1400, "special": 1000}, None),
    ],
)
def test_a_selection_far_from_what_was_asked_for_is_said(options, counts, words):
    warning = unusual_selection(Entry.of(entry_of(**GOOD | counts)), GuidanceConfig(**options))
    assert warning is None if words is None else warning.startswith("step 7: ") and words in warning


def test_a_window_without_tokens_or_reasons_is_no_fault():
    guidance, entry = GuidanceConfig(top_fraction=0.4), Entry(step=7, loss=1.0, kept_fraction=0.7)
    assert unusual_selection(entry, guidance) is None
    assert "no teacher loss" in unusual_selection(replace(entry, unmapped={"hole": 1}), guidance)
    assert unusual_selection(Entry(step=7), guidance) is None
    for paired, words in ((0.049, "only 4.9% of the tokens have a distribution"), (0.06, None)):
        few = Entry(step=7, loss=1.0, kept_fraction=1.0, paired=paired)
        warning = unusual_selection(few, GuidanceConfig(method="distill"))
        assert warning is None if words is None else words in warning


def test_a_threshold_above_zero_is_said_once():
    def look(warnings, step, threshold):
        return warnings.look(Entry(step=step, threshold=threshold))

    warnings = Warnings(GuidanceConfig(top_fraction=0.4), steps=100)
    assert look(warnings, 10, 2.0) == []  # at the start it always is
    (warning,) = look(warnings, 30, 1.25)
    assert "+1.25 nats" in warning
    assert look(warnings, 40, 1.25) == []
    for options, threshold in (({}, -0.1), ({}, None), ({"max_threshold": 1.0}, 1.0)):
        guidance = GuidanceConfig(top_fraction=0.4, **options)
        assert look(Warnings(guidance, 100), 30, threshold) == []


@pytest.mark.parametrize(
    ("method", "excess", "is_said"),
    [
        ("distill", -0.6, True),
        ("alm", -0.6, True),
        ("distill", -0.1, False),
        ("distill", 0.5, False),
        ("vocagno", -0.6, False),
    ],
)
def test_a_teacher_behind_the_student_is_said_once(method, excess, is_said):
    """A level one is not, nor is one whose losses only choose tokens."""
    warnings = Warnings(GuidanceConfig(method=method), steps=100)
    line = {"step": 20, "loss": 3.0, "kept_fraction": 1.0}
    entry = Entry.of(line | {"mean_teacher_loss": 3.6, "mean_excess_loss": excess})
    texts = [words for _ in range(2) for words in warnings.look(entry)]
    assert len(texts) == is_said
    assert not texts or "loses 3.60 nats a token of the student's, the student 3.00" in texts[0]


def test_a_good_window_is_covered():
    entry = entry_of(**GOOD)
    assert entry["coverage"] == entry["scored"] == 1.0


def test_a_device_that_keeps_other_tokens_is_seen():
    window = window_of(439, GOOD)
    with pytest.raises(GuidanceError, match=r"step 7: 439 tokens were kept where .* says 440"):
        window.entry(7, window.sums())


BAD = "ß"
"""A character that stands in one document alone."""
WHERE = 5


@pytest.fixture
def corpus(tmp_path):
    texts = [*TEXTS[:WHERE], f"{TEXTS[0]} {BAD}", *TEXTS[WHERE:]]
    return write_corpus(tmp_path / "c.jsonl", texts)


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
    indices = []
    for index in range(len(store)):
        row = store[index]
        documents = row.documents.repeat(row.num_tokens)
        ends = (documents == WHERE) & (row.spans[:, 1] == size) & (row.spans[:, 0] < size)
        indices += [index] if ends[:-1].any() else []
    return indices


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
    path = config(train={"steps": 16, "log_every": 4, "checkpoint_every": 16})
    assert train_here(path) == 0
    entries, _ = metrics(tmp_path / "run")
    (spiking_entry,) = [entry for entry in entries if "spikes" in entry]
    (spike,) = spiking_entry["spikes"]
    assert (spiking_entry["step"], spike["step"]) == (16, 14)
    assert spike["loss"] > 1.5 * entries[2]["loss"]
    losses = [row["loss"] for row in spike["rows"]]
    assert losses == sorted(losses, reverse=True)
    (store,) = (RowStore(p) for p in (tmp_path / "cache" / "rows").iterdir())
    for row in spike["rows"]:
        assert row["documents"] == store[row["row"]].documents.tolist()
    printed = capsys.readouterr().err
    assert f"step 14: a loss of {spike['loss']:.3f}, over 1.5 times the loss before" in printed
    assert f"the run continues; row {spike['rows'][0]['row']} " in printed
    json.dumps(spike)


def test_a_selection_far_from_the_fraction_is_said_once(tmp_path, config, capsys):
    write_corpus(tmp_path / "c.jsonl", ["a", "b c", "d"] * 40)  # more BOS and EOS than text
    assert train_here(config(train={"steps": 4, "log_every": 1})) == 0
    error = capsys.readouterr().err
    assert error.count("of the tokens are kept, not 40%") == 1
    assert "special), and guidance.unmapped is include" in error


@pytest.mark.slow
def test_tensorboard_gets_what_the_log_gets(tmp_path, config):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    validation = write_corpus(tmp_path / "v.jsonl", TEXTS[:5])
    path = config(
        train={"log_with": ["tensorboard"], "eval_every": 3}, data={"validation": str(validation)}
    )
    assert train_here(path) == 0
    accumulator = events.EventAccumulator(str(tmp_path / "run" / "trackers" / "vocagno"))
    accumulator.Reload()
    training, held_out = metrics(tmp_path / "run")
    for name, entries in (("loss", training), ("validation_loss", held_out), ("lr", training)):
        scalars = [(event.step, event.value) for event in accumulator.Scalars(name)]
        expected = [(entry["step"], pytest.approx(entry[name])) for entry in entries]
        assert scalars == expected
    special = [event.value for event in accumulator.Scalars("unmapped/special")]
    assert special == [entry["unmapped"]["special"] for entry in training]


@pytest.mark.parametrize(
    ("tracker", "files"), [("wandb", "wandb/offline-run-*"), ("trackio", "trackio/**/tried*.db")]
)
def test_other_trackers_keep_their_files_where_they_are_told(tmp_path, config, tracker, files):
    pytest.importorskip(tracker)
    places = {"WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    path = config(train={"log_with": [tracker], "project": "tried"})
    run(1, TRAIN, "--config", path, WANDB_MODE="offline", **places)
    assert list(tmp_path.glob(files))


def test_a_tracker_that_is_not_installed_is_named(config, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train_here(config(train={"log_with": ["wandb"]})) == 2
    assert "train.log_with: wandb is not installed; `pip install wandb`" in capsys.readouterr().err


def test_trackers_get_nested_counts_as_flat_numbers():
    entry = {"step": 3, "loss": 1.5, "unmapped": {"hole": 2}, "spikes": [{}, {}]}
    assert _numbers(entry) == {"loss": 1.5, "unmapped/hole": 2, "spikes": 2}
