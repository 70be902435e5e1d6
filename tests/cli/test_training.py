"""What goes wrong with a first run, and what is left of it: nothing that hinders the second."""

import signal
import subprocess
import sys
import time

import pytest

from families import TEXTS
from runs import TRAIN, environment, train_here
from tiny_models import save_llama
from warm_python import executable

pytest.importorskip("torch")

import numpy as np

import vocagno
from vocagno import TokenSpans
from vocagno.teacher.scoring import Teacher
from vocagno.teacher.windows import TextReader
from vocagno.training.main import main as train

pytestmark = pytest.mark.slow


def test_a_run_that_did_not_begin_claims_nothing(config, tmp_path, capsys):
    for mistake, words in (
        ({"data": {"seq_len": 4096}}, "data.seq_len: 4096 tokens, but the student reads at most"),
        ({"teacher": {"context": 4096}}, "teacher.context: 4096 tokens, but the teacher reads at"),
    ):
        assert train_here(config(**mistake)) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "cache" / "rows").exists()  # seen before anything is made
    assert train_here(config(train={"steps": 2})) == 0


def test_scores_that_did_not_begin_claim_nothing(corpus, tmp_path, teacher_model, cli):
    stores = f"--out {tmp_path}/scores --cache {tmp_path}/cache"
    command = f"score {corpus} --teacher.model {teacher_model} {stores} --teacher.context".split()
    assert "set teacher.context to at most" in cli.error(*command, 4096)
    assert not (tmp_path / "scores").exists()
    cli(*command, 64)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process there")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_and_twice_does_not(config, tmp_path, times):
    """The first signal must not lose the steps since the last checkpoint, the second one must not
    wait."""
    path = config(train={"steps": 2000, "log_every": 1, "checkpoint_every": 2000})
    command = [executable(), str(TRAIN), "--config", str(path)]
    process = subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    log = tmp_path / "run" / "metrics.jsonl"
    while not log.is_file() or log.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.0005)  # a step takes longer
    _, printed = process.communicate(timeout=120)
    assert "Traceback" not in printed
    if times == 2 and process.returncode == 130:  # else the step was over before the second
        assert printed.endswith("Finished work is kept. Run the same command again to resume.\n")
        return
    assert process.returncode == 75
    assert "SIGINT: saving after this step" in printed
    assert printed.endswith("saved. Run the same command again to resume.\n")
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    again = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    assert again.stderr is not None
    line = next(line for line in again.stderr if line.startswith("resuming"))
    again.kill()
    again.communicate()
    assert line == f"resuming from step {int(saved.name.removeprefix('step_')):,}\n"


class Guess:
    """A scorer that loses so much on every token."""

    def __init__(self, nats):
        self.nats = nats

    def score(self, windows):
        for number, window in enumerate(windows):
            losses = np.full(len(window.ids) - window.asked_from, self.nats, np.float32)
            yield number, losses


@pytest.mark.parametrize(("excess", "is_doubted"), [(0.5, False), (1.5, True)])
def test_a_teacher_worse_than_guessing_is_doubted_once(tokenizers, excess, is_doubted, capsys):
    spans = TokenSpans(tokenizers["byte-level"])
    nats = float(np.log(spans.vocabulary_size)) + excess
    teacher = Teacher(Guess(nats), TextReader(spans, (), context=64, min_context=8))
    teacher.score(TEXTS)
    teacher.score(TEXTS)
    printed = capsys.readouterr().err
    warning = f"warning: the mean teacher loss is {nats:.1f} nats per token"
    assert printed.count(warning) == is_doubted


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_a_tokenizer_that_is_not_the_model_s(
    config, role, teacher_model, tokenizer_files, tokenizers, tmp_path, capsys
):
    """Its ids have embeddings, so nothing else would stop the run."""
    other = str(tokenizer_files / ("student.json" if role == "teacher" else "teacher.json"))
    family = "byte-level" if role == "teacher" else "llama"
    model = save_llama(tmp_path / "model", tokenizers[family], size=2000)
    options = {"model": str(model), "tokenizer": other}
    if role == "student":
        options |= {"architecture": None, "eos": "<|endoftext|>"}
    assert train_here(config(**{role: options})) == 2
    error = capsys.readouterr().err
    assert f"error: {role}.tokenizer: " in error
    assert f"it is not the tokenizer of {role}.model; omit it" in error
    mended = {**options, "tokenizer": None} | ({"eos": "</s>"} if role == "student" else {})
    assert train_here(config(**{role: mended})) == 0


def test_a_mistyped_model_is_named(corpus, tmp_path, cli, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    command = "score", corpus, "--cache", tmp_path / "cache"
    of_hub = cli.error(*command, "--teacher.model", "runs/nope")
    assert "error: teacher.model: no folder runs/nope, and not found on the hub: " in of_hub
    of_folder = cli.error(*command, "--teacher.model", "../runs/teacher/nope")
    assert of_folder.endswith("error: teacher.model: no folder ../runs/teacher/nope\n")


def test_without_a_configuration_it_says_what_runs(capsys, tmp_path):
    from vocagno.errors import InputError
    from vocagno.quickstart.students import CONFIGS

    def refuse():
        raise InputError("seen")

    quickstart = CONFIGS / "guided.yaml"
    output = ["--output", str(tmp_path)]
    assert train(output, default_config=quickstart, prepare=refuse) == 2
    assert capsys.readouterr().err == f"no --config: taking {quickstart}\nerror: seen\n"
    # A run on a text of one's own inherits nothing: the quickstart's student would be refused
    # beside a model, after its teacher was trained.
    own_texts = "--data.train mine.jsonl", "--data.train=mine.jsonl", "--data.train.mine.jsonl 1.0"
    for own_text in [*map(str.split, own_texts), ["--data", '{"train": "mine.jsonl"}']]:
        model = ["--student.model", str(tmp_path / "none"), "--train.steps", "1"]
        model += ["--guidance.method", "cpt"]
        assert train([*own_text, *model, *output], default_config=quickstart, prepare=refuse) == 2
        assert "no folder" in (printed := capsys.readouterr().err)
        assert "taking" not in printed


@pytest.mark.parametrize("command", [["score", "--help"], ["guidance", "--help"]])
def test_help_says_what_options_mean(command, cli):
    printed = " ".join(cli(*command).out.split())
    assert "Longest run of tokens given to the teacher at once." in printed
    assert "<class" not in printed


def test_training_without_its_extra_names_it():
    code = "import sys, runpy; sys.modules['accelerate'] = None; runpy.run_path('train.py')"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=TRAIN.parent, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: needs accelerate")
    assert run.stderr.endswith(": pip install '.[train]'\n")


def test_the_version_needs_no_extra():
    absent = "import sys; sys.modules['jsonargparse'] = sys.modules['filelock'] = None; "
    absent += "from vocagno.cli.app import main; sys.exit(main(['--version']))"
    command = [sys.executable, "-c", absent]
    stdout = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert stdout == f"vocagno {vocagno.__version__}\n"
