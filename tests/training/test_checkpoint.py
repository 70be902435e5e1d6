"""A run that is stopped at any point ends in the same bits as one that nobody stops."""

import json
import logging
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from filelock import FileLock
from safetensors.torch import load_file, save_file

from chaos import repeats
from folders import LFS_POINTER, contents
from hub_server import serving, uses_hub
from processes.killed_training import POINTS
from runs import ARCHITECTURE, final_weights, metrics, run, same_weights, train_here

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "killed_training.py"
STEPS = 150
TRAIN = {"steps": STEPS, "log_every": 3, "checkpoint_every": 4, "keep_checkpoints": 2}
PRUNING = POINTS[-3:]
VOLATILE = ("tokens_per_s", "data_share", "validation_seconds")


@pytest.fixture
def config(tmp_path, config):
    """Dropout draws from the random state, so that one that is not restored is seen."""
    student = {"architecture": {**ARCHITECTURE, "attention_dropout": 0.1}}

    def build(name, train=TRAIN):
        return config(student=student, train=train, output=str(tmp_path / name))

    return build


def stopped(folder, stops, path, output):
    """What each of the attempts left, the last of which nobody stops."""
    (folder / "stops.json").write_text(json.dumps(stops))
    arguments = [folder / "stops.json", "--config", path, "--output", output]
    result = run(1, SCRIPT, *arguments, timeout=400)
    records = [json.loads(line) for line in result.stdout.splitlines() if '"stop"' in line]
    assert len(records) == len(stops) + 1, result.stderr[-3000:]
    return records


def logged(folder):
    return [{k: v for k, v in entry.items() if k not in VOLATILE} for entry in metrics(folder)[0]]


def state(folder):
    """All that the last checkpoint holds."""
    last = folder / "checkpoints" / f"step_{STEPS}"
    generators = torch.load(last / "random_states_0.pkl", weights_only=False)
    generators.pop("step")  # micro-batches since the process began
    return repr(generators), torch.load(last / "optimizer.bin")["state"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")
def test_kills_change_no_bit(tmp_path, config):
    """At every point of writing a checkpoint, and at any time of a step; SIGTERM, too. Thirty under
    `make chaos`."""
    path = config("whole")
    (whole,) = stopped(tmp_path, [], path, tmp_path / "whole")
    assert whole["exit"] == 0
    rng = random.Random(0)
    # An old checkpoint goes only once there are more than are kept.
    stops = [[point, 3 if point in PRUNING else 1 + i % 2] for i, point in enumerate(POINTS)]
    stops += [["step", rng.randint(1, 6), rng.random()] for _ in range(repeats(17, 6))]
    stops += [["term", rng.randint(1, 6), rng.random()] for _ in range(repeats(3, 2))]
    rng.shuffle(stops)
    records = stopped(tmp_path, stops, path, tmp_path / "stopped")
    hit = Counter(record["stop"][0] for record in records if record["killed"])
    print(hit)
    assert hit.total() == repeats(30, 19)
    assert all(hit[point] == 1 for point in POINTS)
    assert hit["step"] == repeats(17, 6)
    terminated = [record for record in records[:-1] if record["stop"][0] == "term"]
    assert [record["exit"] for record in terminated] == [75] * repeats(3, 2)
    torn = sum(any(name.endswith(".tmp") for name in record["left"]) for record in records)
    assert torn >= 8
    assert records[-1]["exit"] == 0
    assert records[-1]["left"] == ["step_148", f"step_{STEPS}"]
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    states = [state(tmp_path / name) for name in ("whole", "stopped")]
    (generators, moments), (other_generators, other_moments) = states
    assert generators == other_generators
    for number, of_one in moments.items():
        for name, value in of_one.items():
            assert torch.equal(value, other_moments[number][name])
    entries, whole_entries = logged(tmp_path / "stopped"), logged(tmp_path / "whole")
    assert [entry["step"] for entry in entries] == sorted({entry["step"] for entry in entries})
    # SIGTERM ends a window of the log early; every window that is in both is the same.
    same = [entry for entry in whole_entries if entry in entries]
    assert len(same) >= len(whole_entries) - 2 * len(terminated)


def test_a_folder_in_use_or_never_to_be_resumed(tmp_path, config, capsys):
    path = config("run")
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"):
        assert train_here(path, "--train.steps", 4) == 2
    assert "another process is training in it" in capsys.readouterr().err
    assert train_here(path, "--train.steps", 4) == 0
    (tmp_path / "run" / "final").rename(tmp_path / "elsewhere")
    assert train_here(path, "--train.steps", 4, "--resume", "never") == 2
    assert "resume: never, but" in capsys.readouterr().err
    assert train_here(path, "--train.steps", 4, "--resume", "auto") == 0


def test_checkpoints_of_tied_weights_warn_of_nothing(tmp_path, config, caplog):
    """Weights that are stored once come back as they were."""
    tied = ["--student.architecture.tie_word_embeddings", "true", "--train.checkpoint_every", 3]
    path, folder = config("run"), tmp_path / "run"
    assert train_here(path, "--train.steps", 4, *tied) == 0
    (tmp_path / "before").mkdir()
    shutil.rmtree(folder / "checkpoints" / "step_4")
    (folder / "final").rename(tmp_path / "before" / "final")
    assert train_here(path, "--train.steps", 4, *tied) == 0
    assert same_weights(tmp_path / "before", folder)
    assert "lm_head.weight" not in final_weights(folder)
    assert "shared tensor" not in caplog.text
    assert not logging.getLogger("accelerate.utils.other").filters


@pytest.mark.parametrize("kind", ["missing", "unexpected", "of another shape"])
def test_a_checkpoint_of_other_weights_is_not_resumed(tmp_path, config, capsys, kind):
    """Nothing of it is trained on, neither with a random weight nor without one of the file's."""
    path, folder = config("run"), tmp_path / "run"
    assert train_here(path, "--train.steps", 2) == 0
    shutil.rmtree(folder / "final")
    weights = folder / "checkpoints" / "step_2" / "model.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("up_proj.weight"))
    tensor = tensors.pop(name)
    if kind != "missing":
        tensors |= {name: tensor} if kind == "unexpected" else {name: tensor[:3].clone()}
        tensors |= {f"{name}.more": tensor.clone()} if kind == "unexpected" else {}
    save_file(tensors, weights, {"format": "pt"})
    capsys.readouterr()
    assert train_here(path, "--train.steps", 2) == 2
    error = capsys.readouterr().err
    assert f"error: {weights.parent} could not be restored" in error
    assert name in error
    assert "remove it to resume from an earlier one" in error
    assert not (folder / "final").exists()


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path, config, capsys):
    """Its weights fit, as the architecture is the same; so does its optimizer."""
    path, folder = config("run"), tmp_path / "run"
    assert train_here(path, "--train.steps", 2) == 0
    shutil.rmtree(folder / "final")
    other = tmp_path / "other"
    assert train_here(path, "--train.steps", 2, "--train.seed", 5, "--output", other) == 0
    checkpoint = folder / "checkpoints" / "step_2"
    shutil.rmtree(checkpoint)
    shutil.copytree(other / "checkpoints" / "step_2", checkpoint)
    capsys.readouterr()
    assert train_here(path, "--train.steps", 2) == 2
    error = capsys.readouterr().err
    assert f"error: {checkpoint} was saved by another run than the one in {folder}" in error
    assert "give the folder `final` of that run as student.model" in error
    assert not (folder / "final").exists()
    # The folder of the run may move: its identity does not depend on where it is.
    moved = tmp_path / "moved"
    shutil.rmtree(other / "final")
    other.rename(moved)
    assert train_here(path, "--train.steps", 2, "--train.seed", 5, "--output", moved) == 0


def test_a_damaged_checkpoint_is_named(tmp_path, config, capsys):
    path, folder = config("run"), tmp_path / "run"
    assert train_here(path, "--train.steps", 2) == 0
    shutil.rmtree(folder / "final")
    for name in ("process_0.json", "optimizer.bin", "model.safetensors"):  # read in this order
        (folder / "checkpoints" / "step_2" / name).write_bytes(LFS_POINTER)
        assert train_here(path, "--train.steps", 2) == 2
        assert "step_2 could not be restored (" in capsys.readouterr().err


def test_a_run_is_pushed_when_it_is_complete(config, tmp_path, monkeypatch, capsys):
    path, final = config("run", train={"steps": 2}), tmp_path / "run" / "final"
    push = [path, "--push_to_hub", "student"]
    with serving() as hub:
        uses_hub(monkeypatch, hub)
        hub.statuses = {"create": 403}
        assert train_here(*push) == 2
        assert "the token may not write there" in capsys.readouterr().err
        assert not final.exists()
        # The hub fails before the run, and after it: the model is kept.
        hub.statuses = {"create": 503}
        assert train_here(*push) == 2
        stderr = capsys.readouterr().err
        assert "trying again after the last step" in stderr
        assert f"complete: {final}" in stderr
        assert f"To push them again: hf upload student {final} . --private" in stderr
        # The same command pushes the finished run.
        hub.statuses = {}
        assert train_here(*push) == 0
        stderr = capsys.readouterr().err
        assert f"already complete: {final}" in stderr
        assert f"pushed: {hub.url}/tester/student/commit/" in stderr
        assert hub.private == {"models/tester/student": True}
        assert hub.files["models/tester/student"] == contents(final)
        assert "README.md" in contents(final)
