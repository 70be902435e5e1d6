"""Whole runs on one process: what they leave, how they go on after a kill, what they refuse."""

import io
import json
import platform
import shutil
import subprocess
import sys
from contextlib import nullcontext, redirect_stderr
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from corpora import write_corpus
from families import TEXTS
from runs import (
    TRAIN,
    command,
    environment,
    final_weights,
    metrics,
    run,
    same_weights,
    score_here,
    write_config,
)
from runs import train_here as train
from tiny_models import tiny_llama
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, TrainConfig
from vocagno.data.rows import Row, RowStore
from vocagno.errors import ConfigError
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.collator import Collator
from vocagno.guidance.methods import method_of
from vocagno.tokens.token_spans import TokenSpans
from vocagno.training import main as main_module
from vocagno.training.configuration import keep_inputs, parse
from vocagno.training.loop import Training
from vocagno.training.report import REPORT
from vocagno.training.step import GuidedStudent

pytestmark = pytest.mark.slow


def trained_in(folder, *models, **sections):
    """A run with held-out text: its folder, its configuration, and what it said."""
    corpus = write_corpus(folder / "c.jsonl", TEXTS)
    sections |= {"data": {"validation": str(corpus)}, "train": {"eval_every": 3}}
    path = write_config(folder, corpus, *models, **sections)
    stderr = io.StringIO()
    with redirect_stderr(stderr):
        assert train(path) == 0
    return folder / "run", path, stderr.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer_files, teacher_model):
    return trained_in(tmp_path_factory.mktemp("trained"), tokenizer_files, teacher_model)


@pytest.fixture(scope="module")
def naive(tmp_path_factory, tokenizer_files, teacher_model):
    """The folder of a run without a teacher."""
    models, method = (tokenizer_files, teacher_model), {"method": "cpt"}
    return trained_in(tmp_path_factory.mktemp("naive"), *models, guidance=method)[0]


def test_a_guided_run_from_text_to_a_model_that_loads(trained):
    """The whole way: sees steps or validations at other times than configured, a share of kept
    tokens that is not the quota, and a model that does not load with its tokenizer."""
    folder, _, stderr = trained
    training, validation = metrics(folder)
    assert [entry["step"] for entry in training] == [2, 4, 6]
    assert [entry["step"] for entry in validation] == [3, 6]
    for entry in training:
        assert entry["coverage"] == 1.0
        assert entry["scored"] == 1.0
        assert 0.4 < entry["kept_fraction"] < 0.6  # 40 % of the scored ones, and BOS and EOS
        reasons = {"special", "truncated", "hole", "unscored", "missing", "partial"}
        assert set(entry["unmapped"]) == reasons
        assert entry["tokens_per_s"] > 0
        assert 0 < entry["data_share"] < 1
    assert training[-1]["loss"] < training[0]["loss"]
    assert validation[-1]["validation_loss"] < validation[0]["validation_loss"]
    assert "validation_losses" not in validation[0]  # as there is one held-out text
    assert f"step 6: held-out loss {validation[-1]['validation_loss']:.4f}\n" in stderr
    assert stderr.count("raises the held-out loss of clean text; a run without guidance.top_f") == 1
    # Old checkpoints go once the new one is whole.
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step_4", "step_6"}

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(folder / "final") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    ids = tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    assert ids[0, 0] == tokenizer.bos_token_id
    loss = model(ids, labels=ids).loss
    assert loss < 6.3  # below that of a uniform guess


def test_a_finished_run_is_left_as_it_is(trained, capsys):
    folder, path, _ = trained
    log = (folder / "metrics.jsonl").read_bytes()
    assert train(path) == 0
    assert (folder / "metrics.jsonl").read_bytes() == log
    assert "complete" in capsys.readouterr().err
    error = refused(path, capsys, "--optimizer.lr", "2e-3")
    assert "optimizer.lr is 0.002, but" in error
    assert "holds a run with 0.001" in error


def test_naive_and_guided_differ_by_their_weights_alone(trained, naive, tmp_path, config):
    """A guided run that keeps every token is the naive run, to the last bit."""
    assert train(config(guidance={"top_fraction": 1.0})) == 0
    assert same_weights(naive, tmp_path / "run")
    assert not same_weights(naive, trained[0])
    assert "What the teacher chose" not in (naive / REPORT).read_text()


def test_what_a_model_was_made_of_is_beside_it(trained, naive, teacher_model):
    for folder, has_teacher in ((trained[0], True), (naive, False)):
        card = (folder / "final" / "README.md").read_text("utf-8")
        _, metadata, body = card.split("---\n", 2)
        metadata = yaml.safe_load(metadata)
        assert metadata["library_name"] == "transformers"
        assert ("vocagno" in metadata["tags"], "base_model" in metadata) == (True, False)
        materials = json.loads((folder / "materials.json").read_text())
        for part in materials.values():
            assert all(text in body for text in part["text"])
        assert ("scores" in materials) is has_teacher
        assert (folder / "config.yaml").read_text().strip() in body
        assert (f"`{teacher_model}`" in body) is has_teacher
        assert f"| loss, the last window | {metrics(folder)[0][-1]['loss']:.4f} |" in body


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files there")
def test_a_checkpoint_that_does_not_fit_is_not_there(trained, tmp_path, config):
    """A limit on the size of files stands for a full disk; the optimizer's is the largest."""
    import resource

    checkpoint, path = trained[0] / "checkpoints" / "step_6", config(train={"steps": 2})
    largest = max(file.stat().st_size for file in checkpoint.iterdir())
    whole_model = (checkpoint / "model.safetensors").stat().st_size
    for limit in (whole_model + 4096, whole_model - 4096):  # fails in torch, then in safetensors
        assert limit < largest
        failed = subprocess.run(
            command(1, TRAIN, "--config", path),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),  # noqa: B023 - called at once
        )
        assert failed.returncode == 2, failed.stderr[-2000:]
        assert "step_2 could not be written" in failed.stderr.splitlines()[-1]
        assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def stopped_before(step, path, monkeypatch):
    """A run that dies in this process before a step."""
    original = Training._step

    def dying(self, number, *rest):
        if number == step:
            raise KeyboardInterrupt
        return original(self, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", dying)
        assert train(path) == 130


FREED_TENSORS = """
import sys
from resource import RUSAGE_SELF, getrusage
import torch
from vocagno.training.main import keep_freed_memory
def page_faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.zeros(32 * 1024 * 1024)  # 128 MB
    return getrusage(RUSAGE_SELF).ru_minflt - before
by_default = page_faults()
keep_freed_memory()
page_faults()  # the heap grows to what the loop needs
print(by_default, page_faults())
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="another C library than glibc")
def test_the_memory_of_freed_tensors_is_kept():
    """Each page of a tensor that the system clears is a fault."""
    run = subprocess.run(
        [sys.executable, "-c", FREED_TENSORS], capture_output=True, text=True, check=True
    )
    by_default, kept = map(int, run.stdout.split())
    assert kept < by_default / 10


def test_the_memory_is_left_alone_where_there_is_no_glibc(monkeypatch):
    """Windows refuses `CDLL(None)`: each run there would end with a TypeError."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(main_module.ctypes, "CDLL", Mock(side_effect=TypeError))
    main_module.keep_freed_memory()


def test_a_run_begun_before_held_out_text_was_noted_resumes(tmp_path, monkeypatch):
    folder = SimpleNamespace(output=tmp_path)
    materials = {"rows": {"text": "a"}, "held-out rows": {"text": "b"}}
    inputs = SimpleNamespace(made_from=lambda: materials)
    monkeypatch.setattr("vocagno.training.configuration.is_begun", lambda output: True)
    path = tmp_path / "materials.json"
    for kept, is_refused in (({"rows": {"text": "a"}}, False), ({"rows": {"text": "x"}}, True)):
        path.write_text(json.dumps(kept))
        with pytest.raises(ConfigError, match="another text") if is_refused else nullcontext():
            keep_inputs(folder, inputs, write=False)
    path.write_text(json.dumps(materials | {"held-out rows": {"text": "x"}}))
    with pytest.raises(ConfigError, match="another text of the held-out rows"):
        keep_inputs(folder, inputs, write=False)


def test_a_run_on_a_cpu_keeps_it(config, monkeypatch):
    calls = []
    monkeypatch.setattr(main_module, "keep_freed_memory", lambda: calls.append("kept"))
    accelerator = main_module.start(parse(["--config", str(config())]))
    assert calls == (["kept"] if accelerator.device.type == "cpu" else [])


def test_going_on_with_another_cut_of_the_steps(trained, tmp_path, config, monkeypatch):
    stopped_before(3, config(), monkeypatch)
    assert train(config(), "--train.micro_batch", 2) == 0
    whole, resumed = map(final_weights, (trained[0], tmp_path / "run"))
    for name in whole:
        torch.testing.assert_close(resumed[name], whole[name], atol=1e-4, rtol=1e-3)
    assert metrics(tmp_path / "run")[0][-1]["step"] == 6


def test_going_on_with_another_text_teacher_or_tokenizer_is_refused(
    tmp_path, config, corpus, teacher_model, monkeypatch, capsys
):
    """Another release of the tokenizer may omit other documents: then other rows stand at the same
    numbers."""
    teacher = shutil.copytree(teacher_model, tmp_path / "teacher")
    held_out = write_corpus(tmp_path / "held.jsonl", TEXTS[:5])
    path = config(teacher={"model": str(teacher)}, data={"validation": str(held_out)})
    stopped_before(3, path, monkeypatch)
    write_corpus(corpus, [*TEXTS, "more"])
    capsys.readouterr()
    error = refused(path, capsys)
    assert "was made with another text of the rows" in error
    assert "scoring" not in error  # the new text is not scored first
    write_corpus(corpus, TEXTS)
    shutil.rmtree(tmp_path / "cache" / "rows")
    read = TokenSpans.try_encode

    def reads_less(self, texts, **options):
        tokens, refused = read(self, texts, **options)
        return tokens.without([0]), refused | {0: "odd"}

    with monkeypatch.context() as patched:
        patched.setattr(TokenSpans, "try_encode", reads_less)
        assert "another refused documents" in refused(path, capsys)
    shutil.rmtree(tmp_path / "cache" / "rows")
    tiny_llama(500, seed=2).save_pretrained(teacher)
    assert "another teacher of the scores" in refused(path, capsys)
    write_corpus(held_out, TEXTS[5:])
    assert "was made with another text of the held-out rows" in refused(path, capsys)


def test_resuming_with_stores_that_have_moved(
    tmp_path, config, corpus, scores, teacher_model, monkeypatch, capsys
):
    """To a bucket, for example: they are compared by their content."""
    data = {"train": str(write_corpus(corpus, TEXTS))}
    path = config(teacher={"model": None, "scores": [str(scores)]}, data=data)
    stopped_before(3, path, monkeypatch)
    moved = shutil.copytree(scores, tmp_path / "moved")
    tiny_llama(500, seed=2).save_pretrained(shutil.copytree(teacher_model, tmp_path / "t"))
    other = score_here(corpus, tmp_path / "t", tmp_path / "other")
    assert "another teacher of the scores" in refused(path, capsys, "--teacher.scores", other)
    assert train(path, "--teacher.scores", moved) == 0
    assert f"| teacher | `{scores}` |" in (tmp_path / "run/final/README.md").read_text("utf-8")


def test_a_loss_that_is_none_stops_the_run_before_it_is_saved(tmp_path, config, capsys):
    path = config(
        train={"steps": 40, "log_every": 40, "checkpoint_every": 2, "keep_checkpoints": 1},
        optimizer={"lr": 1e30},
    )
    assert " is nan; row " in refused(path, capsys).replace("inf", "nan")
    for folder in (tmp_path / "run" / "checkpoints").glob("step_*"):
        from safetensors.torch import load_file

        weights = load_file(folder / "model.safetensors")
        assert all(weight.isfinite().all() for weight in weights.values())


def test_the_loss_is_that_of_transformers(tokenizers):
    """On one row, with nothing left out: a shift by one in the student would show here."""
    model = tiny_llama(tokenizers["llama"].get_vocab_size())
    ids = tokenizers["llama"].encode(TEXTS[0]).ids
    count = len(ids)
    row = Row(
        np.array(ids, np.int32),
        np.zeros((count, 2), np.int32),
        np.zeros(1, np.int64),
        np.array([count], np.int32),
        np.zeros(1, np.int32),
    )
    naive = GuidanceConfig(method="cpt")
    batch = Collator(None, naive, DataConfig(train="unused", seq_len=count - 1))([row])
    loss, *_ = GuidedStudent(model, naive)(**batch.inputs())
    expected = model(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss
    torch.testing.assert_close(loss / (count - 1), expected)


def test_a_folder_of_a_tokenizer_keeps_the_end_that_was_named(tmp_path, config, tokenizer_files):
    from transformers import AutoTokenizer

    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((tokenizer_files / "student.json").read_bytes())
    assert train(config(student={"tokenizer": str(folder)}, train={"steps": 1})) == 0
    final = AutoTokenizer.from_pretrained(tmp_path / "run" / "final")
    assert (final.bos_token, final.eos_token) == ("<s>", "</s>")


def refused(path, capsys, *arguments):
    """What a run says that ends with an error of the user's."""
    assert train(path, *arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_a_pretrained_student_trains_as_such(tmp_path, config, tokenizers, monkeypatch):
    """It is loaded for evaluation, in which nothing drops out: a run that goes on, or draws pages,
    would part from one that does not. Checkpointing is used from the first step. Generations of the
    final model end at the EOS of its training text, and where they ended before."""
    pretrained, final = tmp_path / "pretrained", tmp_path / "whole" / "final"
    model = tiny_llama(tokenizers["llama"].get_vocab_size(), attention_dropout=0.3)
    model.config.eos_token_id, model.generation_config.eos_token_id = 7, [7, 9]
    model.save_pretrained(pretrained)
    student = {"architecture": None, "model": str(pretrained)}
    assert train(config(student=student, output=str(tmp_path / "whole"))) == 0
    ends = [
        json.loads((final / name).read_text())["eos_token_id"]
        for name in ("config.json", "generation_config.json")
    ]
    assert ends == [eos := tokenizers["llama"].token_to_id("</s>"), [eos, 7, 9]]
    assert len({path.stat().st_mode for path in final.iterdir()}) == 1
    recomputed, step = [], Training._step

    def watched(self, *arguments):
        layer = self.student.model.base_model.layers[0]
        recomputed.append(layer.gradient_checkpointing and layer.training)
        return step(self, *arguments)

    monkeypatch.setattr(Training, "_step", watched)
    for options in ({}, {"gradient_checkpointing": True, "sample_every": 1}):
        folder = tmp_path / f"{len(options)} options"
        path = config(student=student, train=options, output=str(folder))
        stopped_before(4, path, monkeypatch)
        assert train(path) == 0
        assert recomputed == [bool(options)] * 6
        recomputed.clear()
        assert same_weights(tmp_path / "whole", folder)


@pytest.fixture(scope="module")
def scores(tmp_path_factory, teacher_model):
    """A store of the teacher's scores of `corpus`."""
    folder = tmp_path_factory.mktemp("scored")
    return score_here(write_corpus(folder / "c.jsonl", TEXTS), teacher_model, folder / "scores")


@pytest.fixture
def named(tmp_path, scores, teacher_model, tokenizer_files):
    """What options name, by the words that stand for it in `BEFORE_ANY_MODEL`."""
    other = shutil.copytree(teacher_model, tmp_path / "other")
    tiny_llama(500, seed=2).save_pretrained(other)
    few = tmp_path / "few"
    tiny_llama(100, seed=2).save_pretrained(few)
    (tmp_path / "empty").mkdir()
    student, empty = tokenizer_files / "student.json", tmp_path / "empty"
    named = {"teacher": teacher_model, "scores": scores, "other": other}
    return named | {"student": student, "empty": empty, "few": few}


BEFORE_ANY_MODEL = [
    (
        "--data.seq_len 4096 --student.architecture.max_position_embeddings 2048",
        "data.seq_len: 4096 tokens, but the student reads at most 2048; set data.seq_len to at "
        "most 2048",
    ),
    (
        "--student.architecture=null --student.model={teacher} --data.seq_len=4096",
        "data.seq_len: 4096 tokens, but the student reads at most 2048",
    ),
    (
        "--student.architecture=null --student.model={few}",
        "ids, but student.model has 100 embeddings: they do not belong together",
    ),
    ("--student.architecture.vocab_size 32k", "student.architecture.vocab_size: expected a number"),
    ("--guidance.method ./my_rules:Rule", "guidance.method: ./my_rules:Rule: "),
    ("--guidance.method :Rule", "guidance.method: :Rule: "),
    (
        "--guidance.method=distill --guidance.top_fraction=null "
        '--teacher.also=[{{"scores":"gone","tokenizer":"{student}"}}]',
        "gone: this store of scores does not exist",
    ),
    ("--teacher.context 4096", "teacher.context: 4096 tokens, but the teacher reads at most"),
    ("--teacher.mode live --teacher.context 4096", "but the teacher reads at most"),
    ("--train.micro_batch 3", "train.global_batch 8 is not a multiple of train.micro_batch 3"),
    ("--teacher.scores {scores} --teacher.model {other}", "made with another teacher ("),
    (
        "--teacher.scores {scores} --teacher.context 128",
        "was made with another context (2048, now 128); to use these scores, name that one or drop "
        "teacher.context; to score again, drop teacher.scores",
    ),
    ("--teacher.scores {scores} --teacher.dtype bfloat16", "another dtype (float32"),
    (
        "--teacher.scores={scores} --teacher.tokenizer={student} --teacher.model=null",
        "made with another tokenizer",
    ),
    ("--teacher.scores {scores} --teacher.bos e", "was made with another bos ([], now ["),
    ("--teacher.scores missing", "missing: this store of scores does not exist"),
    ("--teacher.model null", "teacher.model: guidance needs a teacher"),
    ("--teacher.model {empty}", "no config.json in"),
    ("--student.architecture.hiden_size 3", "hiden_size"),
    ("--student.architecture.model_type llamma", "student.architecture: "),
    ("--student.architecture.eos_token_id 5", "eos_token_id 5 is not the tokenizer's 2; omit it"),
    ("--student.architecture.bos_token_id 5", "bos_token_id 5 is not the tokenizer's 1; omit it"),
    ("--optimizer.betas [2,0.9]", "optimizer.betas must be in [0, 1)"),
    ("--train.seed -1", "train.seed must be at least 0"),
    ("--train.seed 2147483648", "train.seed must be at most 2147483647, got 2147483648"),
]


@pytest.mark.parametrize(("arguments", "words"), BEFORE_ANY_MODEL)
def test_what_cannot_work_stops_before_any_model_is_loaded(
    config, named, monkeypatch, capsys, arguments, words
):
    from transformers import AutoModelForCausalLM

    def never(*arguments, **options):
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", never)
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", never)
    filled = [argument.format_map(named) for argument in arguments.split()]
    assert words in refused(config(), capsys, *filled)


def test_a_precision_that_the_launcher_contradicts_is_named(config, monkeypatch, capsys):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    error = refused(config(), capsys)
    assert "train.precision is fp32, but the launcher asks for mixed precision in bf16" in error


def test_an_architecture_that_cannot_be_built_is_named(config, capsys):
    wrong = "--student.architecture.hidden_size", "33"
    assert "student.architecture: " in refused(config(), capsys, *wrong)


def test_a_device_without_bfloat16_is_named(config, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Old")
    error = refused(config(), capsys, "--train.precision", "bf16")
    assert "train.precision: Old has no bfloat16; use fp32" in error


def test_a_corpus_that_changed_since_it_was_scored(tmp_path, config, corpus, teacher_model, capsys):
    """Moved documents guide as before; edited and added ones are counted, and stop the run."""
    texts = [f"{number}: {text}" for number, text in enumerate(TEXTS)]
    store = score_here(write_corpus(corpus, texts), teacher_model, tmp_path / "store")

    def run_on(name, documents, *arguments):
        write_corpus(corpus, documents)
        path = config(output=str(tmp_path / name), train={"steps": 3, "log_every": 3})
        status = train(path, "--teacher.scores", store, *arguments)
        return status, capsys.readouterr().err

    status, error = run_on("moved", texts[:3] + texts[:2:-1] + texts[5:6])  # one twice, too
    assert status == 0, error
    assert "have no scores" not in error
    entry = metrics(tmp_path / "moved")[0][-1]
    assert entry["coverage"] == 1.0

    changed = ["edited", *texts[1:-2], "added", texts[-1]]
    status, error = run_on("stopped", changed)
    assert status == 2
    assert "2 documents of" in error
    assert "guidance.min_coverage is 99.00%: documents without scores were edited or add" in error
    assert not (tmp_path / "stopped" / "metrics.jsonl").exists()
    status, error = run_on("lenient", changed, "--guidance.min_coverage", "0.9")
    assert status == 0, error
    assert "2 documents of" in error
    entry = metrics(tmp_path / "lenient")[0][-1]
    assert entry["coverage"] == 1.0  # of the documents that have scores
    assert entry["unmapped"]["missing"] > 0
    assert entry["unmapped"]["truncated"] == 0


def test_prompts_are_read_and_not_learnt(tmp_path, config, corpus):
    lines = [{"prompt": f"{text}\nQ:", "completion": " 42."} for text in TEXTS]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert train(config(train={"steps": 3, "log_every": 3})) == 0
    seen = sum(entry["tokens"] for entry in metrics(tmp_path / "run")[0])
    store = RowStore(next((tmp_path / "cache" / "rows").iterdir()))
    rows = [store[index] for index in range(len(store))]
    learnt = sum(int((row.num_tokens - row.num_prompt).sum()) for row in rows)
    assert 0 < learnt < 0.25 * store.num_tokens
    assert 0 < seen < 0.25 * store.num_tokens * 3 * 8 / len(rows)


def test_a_teacher_that_covers_too_little_stops_the_run(tmp_path, config, monkeypatch, capsys):
    """Zero-width offsets on real tokens would turn guidance into naive training, unnoticed."""
    from vocagno.teacher import scoring

    original = scoring._document_scores

    def collapsed(spans, *losses):
        spans = spans.copy()
        spans[len(spans) // 2 :, 1] = spans[len(spans) // 2 :, 0]
        return original(spans, *losses)

    monkeypatch.setattr(scoring, "_document_scores", collapsed)
    error = refused(config(), capsys)
    assert "of the tokens map to the teacher" in error
    assert "truncated" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="Accelerate finds its processes on a GPU")
def test_a_world_size_that_nobody_sees_is_refused(tmp_path, config):
    """torchrun alone, on a machine without a GPU: two processes that ignore each other."""
    path = config(train={"micro_batch": 4})
    result = run(2, TRAIN, "--config", path, check=False, ACCELERATE_USE_CPU="false")
    assert result.returncode != 0
    assert "WORLD_SIZE is 2, but Accelerate sees 1 process(es)" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "is_cpu"), [("mps", True), ("cuda", False), (None, False)])
def test_a_run_uses_no_gpu_of_apple(kind, is_cpu, config, monkeypatch):
    seen = []

    def noted(**options):
        seen.append(options["cpu"])
        raise ConfigError("started")

    device = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
    monkeypatch.setattr(main_module.accelerate, "Accelerator", noted)
    with pytest.raises(ConfigError, match="started"):
        main_module.start(parse(["--config", str(config())]))
    assert seen == [is_cpu]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", [(2, 4)]), ("cpu", [])])
def test_ranks_that_are_added_to_a_batch_are_pinned_too(device, pinned, monkeypatch):
    seen = []

    def pin(tensor):
        seen.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    training = Training.__new__(Training)
    training.method = method_of(GuidanceConfig(method="chunk", chunks=4, selection="random"))
    training.train, training.live_teacher = TrainConfig(steps=1), None
    training.accelerator = SimpleNamespace(device=torch.device(device))
    losses = torch.zeros(2, 8)
    batch = training._plan(GuidedBatch(teacher_loss=losses, labels=losses.long()), range(2))
    assert batch.chunk_rank.shape == (2, 4)
    assert seen == pinned
