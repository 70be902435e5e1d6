"""`vocagno eval` as users start it: on a tiny model, killed, continued, refused."""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("lm_eval")

import torch
from filelock import FileLock
from transformers import GenerationConfig

from evaluation_data import RECORDS, right, write_benchmark, write_benchmarks
from tiny_models import save_llama, tiny_llama
from vocagno.errors import InputError
from vocagno.evaluation.benchmark_files import read_items
from vocagno.evaluation.benchmarks import BENCHMARKS, PAPER, Item
from vocagno.evaluation.judge import Verdict
from vocagno.evaluation.running import (
    Journal,
    PromptedItem,
    generate_answers,
    load,
    prepare_tasks,
    resolve_device,
    tokenizer_identity,
)
from warm_python import executable

slow = pytest.mark.slow

ASKED = PromptedItem(Item("?", "2", "2"), "Question: ?", 10)
ANSWER = "The answer is 2."
VERDICT = Verdict(None, False, True, ("extract",))


@pytest.fixture
def path(tmp_path):
    """A journal of one answer."""
    path = tmp_path / "gsm8k.jsonl"
    with Journal(path) as journal:
        journal.add(ASKED, ANSWER, VERDICT)
    return path


def test_a_verdict_is_read_again(path):
    with Journal(path) as journal:
        assert journal.verdict(ASKED) == VERDICT


def test_a_journal_cut_at_any_byte_keeps_its_whole_lines(path):
    """A kill may fall between the making of the file, a write and its end."""
    first, other = path.read_bytes(), replace(ASKED, item=replace(ASKED.item, index=1))
    with Journal(path) as journal:
        journal.add(other, "é \n\u2028 2", VERDICT)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            for asked, end in ((ASKED, len(first)), (other, len(whole))):
                assert journal.verdict(asked) == (VERDICT if cut >= end else None)
                if cut < end:
                    journal.add(asked, "é \n\u2028 2" if asked is other else ANSWER, VERDICT)
        assert path.read_bytes() == whole


OTHER_TYPES = {"idx": True, "room": "10", "gold": None, "answer": 2, "math_verify": 1}
OTHER_TYPES["undecided"] = 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff", "not JSON in UTF-8"),
        (b"[]", "expected an object"),
        (b"{}", r"damaged \(no idx\)"),
        *(({name: bad}, rf"damaged \({name} is {bad!r}\)") for name, bad in OTHER_TYPES.items()),
    ],
)
def test_a_line_that_is_no_verdict_is_named(path, line, message):
    if isinstance(line, dict):
        line = json.dumps(json.loads(path.read_text()) | line).encode()
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(InputError, match=rf"gsm8k\.jsonl, line 2: {message}.*remove the line"):
        Journal(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"))


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizers):
    """A model of a context that all prompts fit, some with less room than others."""
    folder = tmp_path_factory.mktemp("model")
    save(folder, tokenizers, 512)
    return folder


def save(folder, tokenizers, context):
    from transformers import PreTrainedTokenizerFast

    spans = tokenizers["byte-level"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spans, eos_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    size = max(len(tokenizer), 400)
    tiny_llama(size, max_position_embeddings=context, eos_token_id=0).save_pretrained(folder)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@slow
def test_every_item_of_all_benchmarks_is_asked_once(tmp_path, data, model, cli):
    arguments = "eval", model, "--data", data, "--out", tmp_path / "out"
    shown = cli(*arguments)
    assert "AVG (w/o SAT)" in shown.out
    assert "leave fewer than 1,024 tokens for an answer" in shown.err
    for name in PAPER:
        kept = lines(tmp_path / "out" / f"{name}.jsonl")
        items = read_items(BENCHMARKS[name], data)
        assert sorted(line["idx"] for line in kept) == [item.index for item in items]
        assert all(len(line["prompt_hash"]) == 32 and line["room"] > 0 for line in kept)
    scores = json.loads((tmp_path / "out" / "results.json").read_text())["scores"]
    assert [*scores] == [BENCHMARKS[name].column for name in PAPER]
    # Again: nothing is asked, nothing changes.
    before = (tmp_path / "out" / "gsm8k.jsonl").read_bytes()
    assert cli.json(*arguments)["scores"] == scores
    assert (tmp_path / "out" / "gsm8k.jsonl").read_bytes() == before


@slow
def test_later_tasks_add_to_the_results(tmp_path, data, model, cli):
    """Whatever is asked in whatever order, the folder ends with the results of one command."""

    def run(out, *arguments):
        command = "eval", model, "--data", data, "--out", tmp_path / out, "--json", *arguments
        shown = cli(*command)
        results = json.loads((tmp_path / out / "results.json").read_text())
        assert json.loads(shown.out) == results
        return results, shown.err

    whole, _ = run("whole", "--tasks", "gsm8k", "svamp", "mathqa")
    first, _ = run("parts", "--tasks", "mathqa", "--limit", "1")
    assert first["about"]["harness_match"]["MQA"]["count"] == 1
    run("parts", "--tasks", "gsm8k", "mathqa")
    parts, message = run("parts", "--tasks", "svamp")
    assert parts == whole
    assert "keeps" not in message
    limited, message = run("parts", "--tasks", "gsm8k", "svamp", "--limit", "1")
    assert limited == whole
    kept = re.findall(r"(\w+): .*results\.json keeps the result of 2 items; for that of 1", message)
    assert kept == ["gsm8k"]


@slow
def test_answers_do_not_depend_on_where_it_was_killed(tmp_path, data, model):
    """A resumed evaluation neither asks twice, nor loses an answer, nor keeps the line that was
    being written."""
    many = tmp_path / "data"
    record = RECORDS["gsm8k"][0]
    write_benchmark(many, "gsm8k", [{**record, "question": f"What is 1 + {n}?"} for n in range(18)])
    (many / "prompts").symlink_to(data / "prompts")

    def command(out):
        words = [executable(), "-m", "vocagno", "eval", model, "--data", many, "--tasks", "gsm8k"]
        return [*map(str, words), "--batch_size", "3", "--out", str(tmp_path / out)]

    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # the model is too small to share

    def completes(out):
        done = subprocess.run(command(out), capture_output=True, text=True, env=alone, check=False)
        assert done.returncode == 0, done.stderr

    completes("whole")
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command("killed"), stderr=stderr, env=alone)
    journal = tmp_path / "killed" / "gsm8k.jsonl"
    while process.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n")):
        time.sleep(0.05)
    assert process.poll() is None, errors.read_text()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # It ends before the copy that the server of warm_python.py made for it, which has the lock.
    with FileLock(journal.parent / ".lock", timeout=60):
        answered = journal.read_bytes()
    journal.write_bytes(answered + b'{"idx": 17, "prom')  # the line that was being written
    completes("killed")
    assert journal.read_bytes().startswith(answered[: answered.rfind(b"\n") + 1])
    whole = lines(tmp_path / "whole" / "gsm8k.jsonl")
    assert len(whole) == 18
    assert sorted(lines(journal), key=lambda line: line["idx"]) == sorted(
        whole, key=lambda line: line["idx"]
    )


@slow
def test_the_model_s_own_generation_config_changes_nothing(tmp_path, data, model):
    """Penalties, beams and limits that instruct models ship with; ends are kept."""
    lm = load(str(model), dtype="float32", device="cpu", gguf_file=None, batch_size=2)
    (task,) = prepare_tasks(lm, [BENCHMARKS["gsm8k"]], data, limit=None, new_tokens=20)

    def completions():
        return [text for batch in generate_answers(lm, task.asked, 2) for _, text in batch]

    plain, config = completions(), lm.model.generation_config
    assert all(plain)
    for option in (
        {"repetition_penalty": 1.3},
        {"num_beams": 3},
        {"max_new_tokens": 3},
        {"do_sample": True, "temperature": 5.0},
    ):
        lm.model.generation_config = GenerationConfig(**{**config.to_diff_dict(), **option})
        before = lm.model.generation_config.to_dict()
        assert completions() == plain
        assert lm.model.generation_config.to_dict() == before


@slow
def test_a_start_that_fails_leaves_nothing_to_compare_with(tmp_path, data, model, cli):
    words = "eval", model, "--data", data, "--tasks", "svamp", "--out", tmp_path, "--dtype"
    assert "float61" in cli.error(*words, "float61")
    cli(*words, "float32")
    (tmp_path / "svamp.jsonl").write_text("{}\n")
    assert "svamp.jsonl, line 1: damaged" in cli.error(*words, "float32")
    (tmp_path / "run.json").write_text("[")
    assert "run.json: not JSON" in cli.error(*words, "float32")


@slow
def test_misleading_evaluations_are_refused(tmp_path, data, model, cli, tokenizers, monkeypatch):
    """Each case would give figures of another model, other questions or cut prompts."""
    error = partial(cli.error, "eval")
    out = ("--out", tmp_path / "out")
    assert "expected a model" in error("--data", data)
    assert "did you mean gsm8k" in error(model, "--data", data, "--tasks", "gsm8", *out)
    assert "at least 1 item" in error(model, "--data", data, "--limit", 0)
    assert "expected cpu" in error(model, "--data", data, "--device", "gpu9", *out)
    assert "no such folder" in error(model, "--data", tmp_path / "none", "--tasks", "svamp", *out)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = error("nope", "--data", data, *out)
    assert "error: model: no folder nope, and not found on the hub: " in message

    (tmp_path / "bare").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / file).write_bytes((model / file).read_bytes())
    message = error(tmp_path / "bare", "--data", data, "--out", tmp_path / "bare-out")
    assert "a folder without a tokenizer" in message

    save_llama(tmp_path / "bare", tokenizers["byte-level"], size=50)
    words = "error: tokenizer: 411 ids, but model has 50 embeddings: they do not belong"
    assert words in error(tmp_path / "bare", "--data", data, *out)

    save(tmp_path / "short", tokenizers, 24)
    gsm8k = "--data", data, "--tasks", "gsm8k", "--out", tmp_path / "short-out"
    message = error(tmp_path / "short", *gsm8k)
    assert "2 of 2 prompts" in message
    assert "do not fit the model's context of 24 tokens (idx 0, 1; the longest, 1" in message

    cli("eval", model, "--data", data, "--tasks", "svamp", *out)
    message = error(tmp_path / "short", "--data", data, "--tasks", "svamp", *out)
    assert "contains answers with weights" in message
    write_benchmark(tmp_path / "other", "svamp", [{**RECORDS["svamp"][0], "Answer": 3.0}])
    (tmp_path / "other" / "prompts").symlink_to(data / "prompts")
    message = error(model, "--data", tmp_path / "other", "--tasks", "svamp", *out)
    assert "idx 0 was asked with gold '2', which is '3' now" in message


@slow
@pytest.mark.parametrize(
    ("form", "options", "taken"),
    [
        (["M"], ["--task", "gsm8k", "--items", "file"], "--tasks, --limit"),
        (["--fetch"], ["--task", "svamp", "--limit", "5", "--out", "zz"], "--tasks"),
        (
            ["--regrade", "file", "--task", "gsm8k"],
            ["--tasks", "svamp", "--out", "zz", "--batch_size", "0", "--device", "cpu"],
            "--task, --items, --limit",
        ),
    ],
)
def test_options_of_another_form_are_refused(cli, form, options, taken):
    (message,) = cli.error("eval", *form, "--data", "nowhere", *options).splitlines()
    named, _, rest = message.removeprefix("error: ").partition(": ")
    assert set(named.split(", ")) == {word for word in options if word.startswith("--")}
    assert f"which takes {taken}" in rest


@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        (None, ["cpu"]),
        ("cuda", ["cpu", "cuda", "cuda:0", "cuda:1"]),
        ("xpu", ["cpu", "xpu:0", "xpu:1"]),
    ],
)
def test_only_devices_of_the_machine_are_taken(monkeypatch, kind, devices):
    """lm-eval takes the default for others, as for `xpu` without a number."""
    accelerator = kind and torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert [resolve_device(name) for name in devices] == devices
    assert resolve_device(None) == ("cuda" if kind == "cuda" else "cpu")
    for wrong in {"gpu9", "cuda", "cuda:2", "xpu", "CPU", ""} - set(devices):
        with pytest.raises(InputError, match=f"--device {wrong}: .* expected cpu"):
            resolve_device(wrong)


@slow
def test_regrading(tmp_path, data, cli):
    benchmark = BENCHMARKS["asdiv"]
    items = read_items(benchmark, data)
    completions = [
        {"idx": 1, "completion": "The answer is no.", "question": f" {items[1].question}\n"},
        {"idx": 0, "completion": right(benchmark, items[0]), "question": items[0].question},
        {"idx": 0, "completion": "again"},
    ]
    file = tmp_path / "completions.jsonl"
    file.write_text("".join(json.dumps(completion) + "\n" for completion in reversed(completions)))
    arguments = "eval", "--regrade", file, "--task", "asdiv", "--data", data, "--json"
    shown = cli(*arguments, "--items", tmp_path / "items.jsonl")
    shares = {"harness_match": 0.5, "math_verify": 0.5}
    assert json.loads(shown.out) == {"task": "asdiv", "count": 2, **shares}
    assert "1 lines repeat an idx" in shown.err
    assert "the question is not" not in shown.err
    verdicts = lines(tmp_path / "items.jsonl")
    assert [(line["idx"], line["harness_match"]) for line in verdicts] == [(0, True), (1, False)]
    assert [line["answer"] for line in verdicts] == ["2", "no"]


@slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"idx": 0}', "line 1: expected an integer `idx` and a string `completion`"),
        ('{"idx": 7, "completion": ""}', "line 1: asdiv has no item with idx 7"),
        (
            '{"idx": 0, "completion": "2", "gold": "17"}',
            "line 1: `gold` is '17', but that of item 0 of asdiv is '2'",
        ),
        (
            '{"idx": 0, "completion": "", "question": 5}',
            "completions.jsonl, line 1: expected a string as `question`, or none, got 5",
        ),
        (
            '{"idx": 0, "completion": "2", "question": "another?"}',
            "line 1: the question is not that of the item with this idx in asdiv (1 such lines)",
        ),
        ("{", "line 1: not JSON"),
        ("", "no completions"),
    ],
)
def test_completions_that_cannot_be_graded(tmp_path, data, cli, line, message):
    file = tmp_path / "completions.jsonl"
    file.write_text(line + "\n")
    assert message in cli.error("eval", "--regrade", file, "--task", "asdiv", "--data", data)


def test_another_tokenizer_is_another_model(tmp_path):
    """Answers of the same weights with a mended tokenizer are not those that are stored."""
    assert tokenizer_identity("a/name") is None
    identities = set()
    for name, content in (
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "{}"),
        ("tokenizer_config.json", '{"add_bos_token": true}'),
        ("chat_template.jinja", "{{ x }}"),
    ):
        (tmp_path / name).write_text(content)
        identities.add(tokenizer_identity(str(tmp_path)))
    assert len(identities) == 4
