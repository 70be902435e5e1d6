"""The patch of TRL's GOLD trainer: equal where its alignment is right, and right beyond."""

import importlib.metadata
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

import vocagno
from examples import load_example
from families import TEXTS
from runs import environment
from tiny_models import tiny_llama

benchmark = load_example("trl_gold/benchmark")
ENDS = {"llama": "</s>"}
trl_version = importlib.metadata.version("trl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        trl_version != benchmark.VERSION,
        reason=f"the patch is for trl {benchmark.VERSION}, here is {trl_version}",
    ),
]


def fast(tokenizer, end="<|endoftext|>"):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return benchmark.patch_trl(tmp_path_factory.mktemp("trl"))


@pytest.fixture(scope="module")
def versions(folder):
    """The module of GOLD before and after the patch."""
    return benchmark.gold_trainer(), benchmark.gold_trainer(folder)


@pytest.fixture
def train(tokenizers, tmp_path):
    """Trains a tiny student for two steps: the losses and the weights."""
    from datasets import Dataset

    def run(gold, *pair, **options):
        sides = [fast(tokenizers[name], ENDS.get(name, "<|endoftext|>")) for name in pair]
        models = [tiny_llama(len(side), seed) for seed, side in enumerate(sides)]
        sides[1].save_pretrained(tmp_path / "teacher")
        config = gold.GOLDConfig(
            output_dir=str(tmp_path / "out"),
            teacher_tokenizer_name_or_path=str(tmp_path / "teacher"),
            **{"use_uld_loss": True, "use_cpu": True, "bf16": False, "report_to": "none"},
            **{"max_steps": 2, "logging_steps": 1, "learning_rate": 1e-2, "save_strategy": "no"},
            **{"per_device_train_batch_size": 3, "max_completion_length": 16, "max_length": 96},
            **options,
        )
        texts = [text.partition(" ") for text in TEXTS[:6]]
        data = {"prompt": [a for a, _, _ in texts], "completion": [b + c for _, b, c in texts]}
        trainer = gold.GOLDTrainer(
            models[0],
            models[1],
            config,
            train_dataset=Dataset.from_dict(data),
            processing_class=sides[0],
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return losses, models[0].state_dict()

    return run


def test_the_tests_of_the_example_pass(folder):
    options = "-q -p no:cacheprovider --rootdir=. tests".split()
    paths = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env=environment(PYTHONPATH=os.pathsep.join(paths)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"uld_skip_student_eos": False, "uld_skip_teacher_eos": False},
        {"uld_token_merge_strategy": "bayesian", "uld_use_hybrid_loss": True},
    ],
    ids=["usual", "with EOS", "hybrid"],
)
def test_losses_and_weights_stay_where_both_versions_agree(versions, train, options):
    (losses, weights), (patched_losses, patched_weights) = (
        train(gold, "byte-level", "byte-level-nfc", lmbda=0.0, **options) for gold in versions
    )
    assert len(losses) == 2
    assert losses == patched_losses
    for name, weight in weights.items():
        torch.testing.assert_close(weight, patched_weights[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("pair", "lmbda"),
    [(("llama", "byte-level"), 0.0), (("byte-level", "llama"), 1.0)],
    ids=["given", "sampled"],
)
def test_pairs_that_trl_refuses_are_trained(versions, train, pair, lmbda):
    before, after = versions
    with pytest.raises(NotImplementedError, match="not ByteLevel"):
        train(before, *pair, lmbda=lmbda)
    losses, _ = train(after, *pair, lmbda=lmbda)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    assert min(losses) > 0


def test_a_token_across_the_end_of_a_truncated_prompt(versions, tokenizers):
    """Before, the offsets of the completion are not those of the text that the teacher reads."""
    from datasets import Dataset

    text, side = TEXTS[1], fast(tokenizers["byte-level"])
    spans = vocagno.TokenSpans(side)
    tokens = spans.encode([text])
    number = len(tokens.ids) // 2 + int(np.diff(tokens.spans)[len(tokens.ids) // 2 :].argmax())
    end = int(tokens.spans[number, 1]) - 1  # inside this token
    rows = Dataset.from_dict({"prompt": [text[:end]], "completion": [text[end:]]})
    right = []
    for gold in versions:
        arguments = SimpleNamespace(
            dataset_num_proc=None,
            dataset_text_field="text",
            max_length=len(tokens.ids) - number + 3,
            use_extended_uld=True,
        )
        trainer = gold.GOLDTrainer.__new__(gold.GOLDTrainer)
        (row,) = trainer._prepare_dataset_with_original_text(
            rows, side, arguments, packing=False, formatting_func=None, dataset_name="train"
        )
        completion = row["original_completion_text"].encode()
        kept = zip(row["input_ids"], row["byte_offsets"], row["completion_mask"], strict=True)
        right.append(
            [
                completion[slice(*offsets)] == spans.pieces()[index]
                for index, offsets, is_completion in kept
                if is_completion and index != side.eos_token_id
            ]
        )
    before, after = right
    assert len(after) == len(before) > 1
    assert not any(before)
    assert all(after)


@pytest.mark.parametrize("teacher", ["byte-level", "llama"])
def test_the_benchmark_finds_what_is_misaligned(versions, tokenizers, teacher):
    """Ids as an untrained student samples them: many are parts of characters."""
    sides = (
        fast(tokenizers["byte-level-nfc"]),
        fast(tokenizers[teacher], ENDS.get(teacher, "<|endoftext|>")),
    )
    spans = [vocagno.TokenSpans(side) for side in sides]
    ids = np.random.default_rng(0).integers(1, spans[0].vocabulary_size, 400).tolist()
    counts = _measured(versions[1], sides, spans, ids)
    assert counts[0] > 100
    assert counts[1] == 0
    if teacher == "byte-level":
        assert _measured(versions[0], sides, spans, ids)[1] > 100


def _measured(gold, sides, spans, ids):
    pieces = [token_spans.pieces() for token_spans in spans]
    return benchmark.measure(gold, benchmark.read_sampled, sides, pieces, [ids])[:2]


def test_the_benchmark_says_what_is_kept(versions, tokenizer_files, corpus, capsys):
    files = [str(tokenizer_files / f"{side}.json") for side in ("student", "teacher")]
    benchmark.main(*files, str(corpus), "6")
    out, refused = capsys.readouterr()
    rows = [line.split(" | ") for line in out.splitlines()[2:]]
    assert [row[2:5] for row in rows[:2]] == [
        ["before", "0.00%", "0.00%"],
        ["after", "100.00%", "0.00%"],
    ]
    assert len(rows) == 4
    assert "NotImplementedError: " in refused
