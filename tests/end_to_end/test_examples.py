"""The examples as a user runs them, and the Trainer against a step computed by hand."""

import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import runs
import vocagno
from corpora import write_corpus
from families import TEXTS
from tiny_models import save_llama
from vocagno.cli.app import main as command_line
from vocagno.config.guidance import GuidanceConfig
from vocagno.data.rows import RowStore
from vocagno.teacher.score_store import MatchedScores, ScoreStore

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
LEARNING = ("guided_trainer", "plain_loop")
SEQ_LEN = 64


def run(example, *arguments, status=0):
    """What an example, started as a user starts it, prints; on stderr if it fails as expected."""
    result = runs.run(1, EXAMPLES / f"{example}.py", *arguments, check=False)
    assert result.returncode == status, result.stderr[-3000:]
    return result.stderr if status else result.stdout


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tokenizers, teacher_model):
    """A folder with a student in bfloat16, as most are published, and rows and scores, made by the
    commands that the examples name."""
    folder = tmp_path_factory.mktemp("example")
    corpus = write_corpus(folder / "corpus.jsonl", [*TEXTS, "a", ""] * 3)
    student = save_llama(folder / "student", tokenizers["llama"])
    loaded(student).bfloat16().save_pretrained(student)
    cache = ["--cache", str(folder / "cache")]
    student = ["--tokenizer", str(folder / "student"), "--eos", "</s>"]
    rows = ["--out", str(folder / "rows"), "--seq_len", str(SEQ_LEN)]
    assert command_line(["prepare", str(corpus), *student, *rows, *cache]) == 0
    runs.score_here(corpus, teacher_model, folder / "scores")
    return folder


def test_every_example_is_run_here():
    assert {path.stem for path in EXAMPLES.rglob("*.py")} == {
        *LEARNING,
        "benchmark",  # of trl_gold
        "align",
        "bits_per_byte",
        "guided_axolotl",
        "guided_sft",
        "megatron_loss",
        "on_policy",
        "probe",
        "rllm_alignment",
    }


@pytest.mark.parametrize("example", [*LEARNING, "align", "bits_per_byte"])
def test_without_arguments_an_example_says_how_it_is_started(example):
    stderr = run(example, status=1)
    assert f"\npython examples/{example}.py " in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("example", LEARNING)
def test_examples_run_and_learn(tmp_path, prepared, example):
    parts = [prepared / name for name in ("student", "rows", "scores")]
    run(example, *parts, tmp_path / "out")
    before, after = map(loaded, (prepared / "student", tmp_path / "out"))
    assert mean_loss(after, prepared) < mean_loss(before, prepared) - 0.01
    assert moved_share(before, after) > 0.99


@pytest.mark.parametrize("example", LEARNING)
def test_scores_of_another_corpus_stop_an_example(tmp_path, prepared, teacher_model, example):
    corpus = write_corpus(tmp_path / "other.jsonl", [f"{text}!" for text in TEXTS])
    scores = runs.score_here(corpus, teacher_model, tmp_path / "scores")
    parts = prepared / "student", prepared / "rows", scores, tmp_path / "out"
    stderr = run(example, *parts, status=1)
    assert "(100.00% of its tokens), and guidance.min_coverage is 99.00%" in stderr


@pytest.mark.parametrize("example", LEARNING)
def test_rows_of_another_tokenizer_stop_an_example(tmp_path, prepared, tokenizers, example):
    """Their ids mean other tokens of the student, or none (an IndexError)."""
    student = save_llama(tmp_path / "student", tokenizers["byte-level"])
    parts = student, prepared / "rows", prepared / "scores", tmp_path / "out"
    assert "made with another tokenizer than that of" in run(example, *parts, status=1)


def moved_share(before, after):
    """Of the weights of all layers: in bfloat16 most would stay as they are."""
    pairs = zip(before.model.layers.parameters(), after.model.layers.parameters(), strict=True)
    moved = torch.cat([(old != new).flatten() for old, new in pairs])
    return moved.float().mean().item()


def mean_loss(model, prepared):
    """Over all rows, by transformers' own loss."""
    rows = RowStore(prepared / "rows")
    total, count = 0.0, 0
    with torch.no_grad():
        for index in range(len(rows)):
            ids = torch.from_numpy(rows[index].ids.astype("int64"))[None]
            total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    return total / count


@pytest.fixture
def trained(tmp_path, prepared):
    """What a GuidedTrainer makes of the first rows in one step of plain SGD."""
    from transformers import TrainingArguments

    from vocagno.integrations.collators import GuidedCollator
    from vocagno.integrations.transformers_trainer import GuidedTrainer

    def train(rows_at_once, accumulation, wrap=lambda model: model, **guidance):
        chosen = GuidanceConfig(**{"top_fraction": 0.4} | guidance)
        rows = RowStore(prepared / "rows")
        scores = MatchedScores(ScoreStore(prepared / "scores"), rows)
        arguments = TrainingArguments(
            str(tmp_path / "out"),
            max_steps=1,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=accumulation,
            learning_rate=0.1,
            optim="sgd",
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        line_ends = vocagno.TokenSpans(prepared / "student").line_ends()
        trainer = GuidedTrainer(
            wrap(loaded(prepared / "student")),
            arguments,
            guidance=chosen,
            train_dataset=rows,
            eval_dataset=[rows[index] for index in range(4)],
            data_collator=GuidedCollator(scores, chosen, seq_len=SEQ_LEN, line_ends=line_ends),
        )
        trainer.train()
        return trainer

    return train


GROUPS = {"unit": "group", "top_fraction": None, "max_threshold": 3.0, "window_max_loss": 3.0}


@pytest.mark.parametrize(
    "options", [{"normalize": "tokens"}, {"normalize": "selected"}, GROUPS], ids=str
)
def test_a_step_of_the_trainer_is_the_step_of_equation_3(prepared, trained, options):
    from vocagno.guidance import GuidanceTensors, token_weights

    start = loaded(prepared / "student")
    whole = trained(8, 1, **options)
    cut = trained(2, 4, **options)
    before = dict(start.named_parameters())
    for named_weight, cut_weight in zip(
        whole.model.named_parameters(), cut.model.named_parameters(), strict=True
    ):
        moved = named_weight[1] - before[named_weight[0]]
        assert (named_weight[1] - cut_weight[1]).norm() <= 1e-4 * moved.norm()
    # The same step by hand: the rows that the Trainer drew, from all logits.
    drawn = next(iter(whole.get_train_dataloader()))
    guidance = GuidanceConfig(**{"top_fraction": 0.4} | options)
    logits = start(input_ids=drawn["input_ids"]).logits
    nll = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), drawn["labels"].flatten(), reduction="none"
    ).view(drawn["labels"].shape)
    inputs = GuidanceTensors.of(drawn), drawn["labels"]
    weights = token_weights(nll, *inputs, guidance)
    assert 0.1 < weights.sum() / (drawn["labels"] >= 0).sum() < 0.9
    counted = weights.sum() if guidance.normalize == "selected" else (inputs[1] >= 0).sum()
    ((nll * weights).sum() / counted).backward()
    for name, parameter in whole.model.named_parameters():
        expected = before[name] - 0.1 * before[name].grad
        assert (parameter - expected).norm() <= 1e-4 * (0.1 * before[name].grad).norm()


def test_a_trained_model_still_evaluates_and_generates(trained, prepared):
    trainer = trained(2, 1)
    model = trainer.model.eval()
    ids = torch.tensor([[1, 5, 9]])
    assert model(input_ids=ids).logits.shape[:2] == (1, 3)
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape == (1, 5)
    metrics = trainer.evaluate()
    with torch.no_grad():
        rows = RowStore(prepared / "rows")
        ids = torch.stack([torch.from_numpy(rows[i].ids.astype("int64")) for i in range(4)])
        expected = model(input_ids=ids, labels=ids).loss
    assert metrics["eval_loss"] == pytest.approx(float(expected), rel=1e-4)


def test_the_trainer_trains_the_adapters_of_a_peft_model(tmp_path, trained, prepared):
    peft = pytest.importorskip("peft")

    def adapted(model):
        torch.manual_seed(0)
        settings = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
        return peft.get_peft_model(model, settings)

    whole, cut = (trained(8 // n, n, wrap=adapted).model for n in (1, 4))
    for (name, weight), cut_weight in zip(whole.named_parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(weight, cut_weight, rtol=1e-4, atol=1e-6)
        assert weight.requires_grad == ("lora_" in name)
    moved = [p.abs().sum() for name, p in whole.named_parameters() if "lora_B" in name]
    assert min(moved) > 0  # zero before
    whole.save_pretrained(tmp_path / "adapters")
    assert (tmp_path / "adapters" / "adapter_model.safetensors").is_file()


def test_the_trainer_chooses_chunks(prepared, trained):
    """The same step in one micro-batch and in four; more rows fit than the chosen chunks hold."""
    before = dict(loaded(prepared / "student").named_parameters())
    whole, cut = (trained(rows, 8 // rows, method="chunk", chunks=8) for rows in (8, 2))
    tokens = dict(trained(8, 1).model.named_parameters())
    cut = dict(cut.model.named_parameters())
    for name, parameter in whole.model.named_parameters():
        moved = (parameter - before[name]).norm()
        assert (parameter - cut[name]).norm() <= 1e-4 * moved
        assert (parameter - tokens[name]).norm() > 1e-2 * moved  # another choice


@pytest.mark.parametrize(
    "guidance",
    [
        {"method": "kld"},
        {"method": "uld"},
        {"method": "chunk", "selection": "random"},
        {"method": "rho1", "criterion": "excess_and_entropy"},
    ],
    ids=str,
)
def test_methods_that_the_trainer_cannot_have_are_refused(trained, guidance):
    with pytest.raises(ValueError, match=r"`train.py` gives; use vocagno, alm, distill, rho1"):
        trained(2, 1, **guidance)


def test_the_align_example_prints_a_line_for_each_token(tokenizer_files):
    files = (tokenizer_files / f"{side}.json" for side in ("student", "teacher"))
    first, *lines = run("align", *files, "17 and 25").splitlines()
    assert first.startswith("▁")
    assert all(line.endswith("]") and "[]" not in line for line in lines)


def test_two_models_need_no_more_bits_than_their_mean(tmp_path, prepared, teacher_model):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS[:6]), encoding="utf-8")
    models = prepared / "student", teacher_model
    lines = run("bits_per_byte", *models, tmp_path / "text.txt").splitlines()
    student_bits, teacher_bits, both = (float(line.split()[0]) for line in lines[:3])
    assert lines[2].endswith("both together")
    assert both <= (student_bits + teacher_bits) / 2 + 0.001  # as the logarithm is concave
    assert all(line.endswith("nats") for line in lines[3:5])


@pytest.fixture(scope="module")
def asked_of_probe(tmp_path_factory, prepared, teacher_model):
    """Which tokens are of numbers, in texts where about half of them are."""
    draw = random.Random(0)
    words = ["the", "sum", "of", "every", "real", "prime", "café", "has", "two", "divisors", "×"]
    texts = [
        " ".join(
            str(draw.randrange(10**5)) if draw.random() < 0.25 else draw.choice(words)
            for _ in range(40)
        )
        for _ in range(40)
    ]
    corpus = write_corpus(tmp_path_factory.mktemp("probe") / "numbers.jsonl", texts)
    return [*map(str, [teacher_model, prepared / "student", corpus]), "--label", "[0-9]+"]


def above_majority(printed):
    """Points of the teacher's probe, of its scores carried over, and of the student's probe."""
    shares = [line.replace("%", "").split()[1:3] for line in printed.splitlines()[1:4]]
    return [float(accuracy) - float(majority) for majority, accuracy in shares]


@pytest.fixture
def probe_here(monkeypatch, capsys):
    """What it prints in this process."""

    def probe(*arguments):
        monkeypatch.setattr(sys, "argv", ["probe.py", *arguments])
        runpy.run_path(str(EXAMPLES / "probe.py"))
        return capsys.readouterr().out

    return probe


def test_a_wrong_mapping_shows(asked_of_probe, probe_here, monkeypatch):
    """The right one carries the teacher's probe over, a wrong one does not."""
    for how in ([], ["--how", "max"]):
        assert min(above_majority(probe_here(*asked_of_probe, *how))) > 38
    align, draw = vocagno.align, np.random.default_rng(0)
    for disorder, limits in (
        (draw.permutation, (5, 5)),
        (lambda mapping: np.roll(mapping, 1, axis=0), (33, 41)),
    ):

        def wrong(spans, other_spans, disorder=disorder, **boundaries):
            mapping = align(spans, other_spans, **boundaries)
            return disorder(mapping) if boundaries else mapping  # tokens to bytes, for the labels

        monkeypatch.setattr(vocagno, "align", wrong)
        teacher, *student = above_majority(probe_here(*asked_of_probe))
        assert teacher > 38
        assert all(gain < limit for gain, limit in zip(student, limits, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: teacher, student, corpus"),
        (["--label", "absent"], "--label: absent is nowhere in the 40 documents"),
        (["--documents", "3"], "expected 4 documents at least, got 3"),
    ],
)
def test_what_the_probe_refuses(asked_of_probe, probe_here, capsys, arguments, message):
    with pytest.raises(SystemExit):
        probe_here(*(asked_of_probe + arguments if arguments else []))
    assert message in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("cargo") is None, reason="no Rust toolchain")
def test_the_rust_example_prints_ranges_of_words():
    manifest = EXAMPLES / "rust" / "Cargo.toml"
    target = EXAMPLES.parent / "target" / "examples-rust"
    command = ["cargo", "run", "--quiet", "--locked", "--manifest-path", manifest]
    command += ["--target-dir", target, "--", "an unbelievable story", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "bytes 0 to 4: words 0 to 2, the longest of 13 bytes"
