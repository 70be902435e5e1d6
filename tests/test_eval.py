"""`vocagno eval` as users start it: on a tiny model, killed, continued, refused."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")

from conftest import tiny_llama
from evaluation_data import RECORDS, right, write_benchmark, write_benchmarks
from vocagno.cli import main
from vocagno.evaluation.benchmarks import BENCHMARKS, PAPER
from vocagno.evaluation.judging import Verdict
from vocagno.evaluation.reading import read_items
from vocagno.evaluation.summary import averages, results, scores, share
from vocagno.results import read_results


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"))


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizers):
    """A model of a context that all prompts fit, some with less room than others."""
    folder = tmp_path_factory.mktemp("model")
    save(folder, tokenizers, 192)
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


def test_all_benchmarks(tmp_path, data, model, capsys):
    arguments = ["eval", str(model), "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "AVG (w/o SAT)" in shown.out
    assert "leave fewer than 1,024 tokens for an answer" in shown.err
    for name in PAPER:
        kept = lines(tmp_path / "out" / f"{name}.jsonl")
        items = read_items(BENCHMARKS[name], data)
        assert sorted(one["idx"] for one in kept) == [item.index for item in items]
        assert all(len(one["prompt_hash"]) == 32 and one["room"] > 0 for one in kept)
    found = read_results([tmp_path / "out" / "results.json"])
    assert found.benchmarks == tuple(BENCHMARKS[name].column for name in PAPER)
    # Again: nothing is asked, nothing changes.
    before = (tmp_path / "out" / "gsm8k.jsonl").read_bytes()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"].keys() == set(found.benchmarks)
    assert (tmp_path / "out" / "gsm8k.jsonl").read_bytes() == before


def test_answers_do_not_depend_on_where_it_was_killed(tmp_path, data, model):
    many = tmp_path / "data"
    record = RECORDS["gsm8k"][0]
    write_benchmark(many, "gsm8k", [{**record, "question": f"What is 1 + {n}?"} for n in range(30)])
    (many / "prompts").symlink_to(data / "prompts")

    def command(out):
        return [sys.executable, "-m", "vocagno", "eval", str(model), "--data", str(many),
                "--tasks", "gsm8k", "--batch_size", "3", "--out", str(tmp_path / out)]  # fmt: skip

    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # the model is too small to share
    subprocess.run(command("whole"), check=True, capture_output=True, env=alone)
    process = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL, env=alone)
    journal = tmp_path / "killed" / "gsm8k.jsonl"
    while process.poll() is None and not (journal.is_file() and journal.read_bytes().count(b"\n")):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    answered = journal.read_bytes()
    journal.write_bytes(answered + b'{"idx": 29, "prom')  # the line that was being written
    subprocess.run(command("killed"), check=True, capture_output=True, env=alone)
    assert journal.read_bytes().startswith(answered[: answered.rfind(b"\n") + 1])
    whole = lines(tmp_path / "whole" / "gsm8k.jsonl")
    assert len(whole) == 30
    assert sorted(lines(journal), key=lambda one: one["idx"]) == sorted(
        whole, key=lambda one: one["idx"]
    )


def test_what_is_refused(tmp_path, data, model, capsys, tokenizers):
    def error(*arguments):
        assert main(["eval", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    out = ("--out", tmp_path / "out")
    assert "expected a model" in error("--data", data)
    assert "did you mean gsm8k" in error(model, "--data", data, "--tasks", "gsm8", *out)
    assert "at least 1 item" in error(model, "--data", data, "--limit", 0)
    assert "go with --regrade" in error(model, "--data", data, "--task", "gsm8k")
    assert "no such folder" in error(model, "--data", tmp_path / "none", "--tasks", "svamp", *out)

    (tmp_path / "bare").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / file).write_bytes((model / file).read_bytes())
    message = error(tmp_path / "bare", "--data", data, "--out", tmp_path / "bare-out")
    assert "a folder without a tokenizer" in message

    save(tmp_path / "short", tokenizers, 24)
    message = error(
        tmp_path / "short", "--data", data, "--tasks", "gsm8k", "--out", tmp_path / "short-out"
    )
    assert "2 of 2 prompts" in message
    assert "do not fit the model's context of 24 tokens (idx 0, 1; the longest, 1" in message

    assert main(["eval", str(model), "--data", str(data), "--tasks", "svamp", *map(str, out)]) == 0
    message = error(tmp_path / "short", "--data", data, "--tasks", "svamp", *out)
    assert "holds answers with weights" in message
    write_benchmark(tmp_path / "other", "svamp", [{**RECORDS["svamp"][0], "Answer": 3.0}])
    (tmp_path / "other" / "prompts").symlink_to(data / "prompts")
    message = error(model, "--data", tmp_path / "other", "--tasks", "svamp", *out)
    assert "idx 0 was asked with gold '2', which is '3' now" in message


def test_regrading(tmp_path, data, capsys):
    benchmark = BENCHMARKS["asdiv"]
    items = read_items(benchmark, data)
    completions = [
        {"idx": 1, "completion": "The answer is no.", "question": "another?"},
        {"idx": 0, "completion": right(benchmark, items[0]), "question": items[0].question},
        {"idx": 0, "completion": "again"},
    ]
    file = tmp_path / "completions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in completions))
    arguments = ["eval", "--regrade", file, "--task", "asdiv", "--data", data, "--json"]
    assert main([*map(str, arguments), "--items", str(tmp_path / "items.jsonl")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "task": "asdiv", "count": 2, "harness_match": 0.5, "math_verify": 0.5
    }  # fmt: skip
    assert "1 lines repeat an idx" in shown.err
    assert "line 1: the question is not that of the item" in shown.err
    verdicts = lines(tmp_path / "items.jsonl")
    assert [(one["idx"], one["harness_match"]) for one in verdicts] == [(0, True), (1, False)]
    assert [one["answer"] for one in verdicts] == ["2", "no"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"idx": 0}', "line 1: expected an integer `idx` and a string `completion`"),
        ('{"idx": 7, "completion": ""}', "line 1: asdiv has no item with idx 7"),
        ("{", "line 1: not JSON"),
        ("", "no completions"),
    ],
)
def test_completions_that_cannot_be_graded(tmp_path, data, capsys, line, message):
    file = tmp_path / "completions.jsonl"
    file.write_text(line + "\n")
    arguments = ["eval", "--regrade", file, "--task", "asdiv", "--data", data]
    assert main([*map(str, arguments)]) == 2
    assert message in capsys.readouterr().err


def test_lm_eval_runs_the_same_tasks(data, monkeypatch):
    """`lm_eval --include_path`: the same prompts, golds and averages."""
    from lm_eval import simple_evaluate
    from lm_eval.models.dummy import DummyLM
    from lm_eval.tasks import TaskManager

    from vocagno.evaluation import TASKS

    def answer(lm, requests, disable_tqdm=False):
        return [right(BENCHMARKS[one.doc["benchmark"]], item_of(one.doc)) for one in requests]

    def item_of(doc):
        return read_items(BENCHMARKS[doc["benchmark"]], data)[
            [item.index for item in read_items(BENCHMARKS[doc["benchmark"]], data)].index(
                doc["index"]
            )
        ]

    monkeypatch.setattr(DummyLM, "generate_until", answer)
    tasks = TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"data": str(data)}
    )
    found = simple_evaluate(
        model="dummy", tasks=["vocagno_math"], task_manager=tasks, bootstrap_iters=0
    )
    for name in PAPER:
        result = found["results"][f"vocagno_{name}"]
        assert result["harness_match,none"] == result["math_verify,none"] == 1.0
    averages = [name for name in found["groups"] if name.startswith("vocagno_math_average")]
    assert len(averages) == 3
    assert all(found["groups"][name]["harness_match,none"] == 1.0 for name in averages)


def test_averages():
    def verdicts(right, count):
        return [Verdict("", one < right, False, ()) for one in range(count)]

    found = {name: verdicts(index, 10) for index, name in enumerate(PAPER)}
    by_name = scores(found, "harness_match")
    assert by_name["gsm_hard"].value == 0.2
    assert by_name["gsm_hard"].error == pytest.approx((0.2 * 0.8 / 9) ** 0.5)
    means = averages(by_name)
    tabulated = [index for index, name in enumerate(PAPER) if name != "gsm_hard"]
    assert means["AVG"].value == pytest.approx(sum(tabulated) / 90)
    assert means["AVG"].count == 90
    assert means["AVG (w/o SAT)"].count == 80
    assert means["AVG (w/o *)"].count == 60
    errors = [by_name[name].error for name in PAPER if name != "gsm_hard"]
    assert means["AVG"].error == pytest.approx(sum(error**2 for error in errors) ** 0.5 / 9)
    assert "AVG (w/o *)" in averages({name: by_name[name] for name in PAPER[:6]} | {
        "mathqa": by_name["mathqa"]})  # fmt: skip
    assert averages({"gsm8k": share([True])}) == {}
    told = results("m", found, {})
    assert told["scores"]["GSM-Hard"] == 20.0
    assert told["about"]["harness_match"]["AVG"]["count"] == 90
