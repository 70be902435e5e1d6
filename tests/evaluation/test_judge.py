"""Completions are data: whatever they say, a verdict comes, and nothing of them is executed."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos import repeats
from odd_answers import LETTERS, ODD_ANSWERS

math_verify = pytest.importorskip("math_verify")

from vocagno.errors import InputError
from vocagno.evaluation import judge as judge_module
from vocagno.evaluation.answers import normalize
from vocagno.evaluation.benchmarks import BENCHMARKS, Item
from vocagno.evaluation.judge import Judge, _verify

pytestmark = pytest.mark.slow

MATH = BENCHMARKS["minerva_math"]
GSM8K = BENCHMARKS["gsm8k"]


def item(benchmark, gold="\\frac{1}{2}"):
    if benchmark is MATH:
        return benchmark.item({"problem": "?", "solution": rf"\boxed{{{gold}}}"}, 0)
    return benchmark.item({"question": "?", "answer": f"#### {gold}"}, 0)


def hostile(number):
    """Answers that are expensive, deep, huge or malformed; some would do harm as Python."""
    draw = random.Random(number)
    size = draw.choice([10, 1_000, 100_000])
    depth = draw.choice([50, 1_000, 20_000])
    power = "^".join(["9"] * draw.randint(3, 8))
    letters = "".join(draw.choice("\\{}[]()$^_&%#~'\"01x+-*/=,. \n") for _ in range(size))
    controls = "".join(chr(draw.randrange(32)) for _ in range(size))
    anything = "".join(chr(draw.choice([draw.randrange(0x110000), 0xD800])) for _ in range(50))
    return draw.choice(
        [
            power,
            power.replace("^", "**"),
            rf"9^{{{power}}}",
            f"({power})!",
            "9" * size + "!",
            "{" * size,
            "}" * size,
            "{" * depth + "1" + "}" * depth,
            "(" * depth + "1" + ")" * depth,
            r"\sqrt{" * depth + "2" + "}" * depth,
            r"\frac{1}{" * depth + "2" + "}" * depth,
            r"\frac" * size,
            "^" * size,
            "1" * size,
            "1e" + "9" * size,
            "0." + "0" * size + "1",
            "[" * depth + "]" * depth,
            r"\begin{pmatrix}" * depth,
            "1," * size,
            "x=" * size,
            rf"\sum_{{k=1}}^{{{power}}} k^{{k}}",
            r"\int_0^{\infty} e^{-x^2} x^{x^x} dx",
            rf"\binom{{{power}}}{{5}}",
            r"\prod_{k=1}^{10^{9}} k",
            r"\lim_{x\to0} x^{x^{x^x}}",
            "__import__('os').system('touch harmed')",
            "exec(\"open('harmed','w')\")",
            "().__class__.__bases__[0].__subclasses__()",
            "\\text{" * depth,
            "\\boxed{" * depth,
            letters,
            controls,
            anything,
            "\x00" * size,
            "%" * size,
            "\n" * size,
            "-" * size,
        ]
    )


TIMES = {
    "question": "When?",
    "choices": ["2:25 P.M.", "2:35 P.M."],
    "answer": "2:35 P.M.",
    "table_title": None,
    "table": "a | 1",
    "ans_type": "extractive_text",
}


@pytest.mark.parametrize(
    ("gold", "wrong", "right"),
    [
        (
            "John",
            "John has 3, Mary 5. The answer is Mary.",
            "Mary: 5. The answer is John.",
        ),
        ("7:30", "From 7:30 to 8:45. The answer is 8:45.", "The answer is: 7:30."),
        ("Yes", "Yes or no? The answer is no.", "No? The answer is Yes."),
    ],
)
def test_a_word_counts_only_where_the_answer_is_stated(gold, wrong, right):
    """Of a benchmark without a list of options, whose one word may stand in the question."""
    assert [_verify(completion, gold, [gold]) for completion in (wrong, right)] == [False, True]


def test_a_gold_answer_may_end_in_a_full_stop():
    tabmwp, asdiv = BENCHMARKS["tabmwp"], BENCHMARKS["asdiv"]
    time = tabmwp.item(TIMES, 0)
    caller = asdiv.item({"body": "Who", "question": "won?", "answer": "The 60th caller."}, 0)
    with Judge() as judge:
        for stops in ("", ".", ".."):
            for benchmark, item, right in (
                (tabmwp, time, "2:35 P.M"),
                (asdiv, caller, "The 60th caller"),
            ):
                verdict = judge.verdict(benchmark, item, f"So. The answer is {right}{stops}")
                assert verdict.math_verify, (right, stops)
                assert verdict.harness_match, (right, stops)
            verdict = judge.verdict(tabmwp, time, f"So. The answer is 2:25 P.M{stops}")
            assert not verdict.math_verify
        midway = judge.verdict(tabmwp, time, "The answer is 2:35 P.M. because it is later.")
        assert midway.math_verify


@pytest.mark.parametrize("choices", [["U.S.", "U.S.S.R."], ["Jan. 1", "Jan."]])
def test_a_choice_that_begins_another_is_not_taken_for_it(choices):
    tabmwp = BENCHMARKS["tabmwp"]
    with Judge() as judge:
        for gold, other in (choices, choices[::-1]):
            item = tabmwp.item({**TIMES, "choices": choices, "answer": gold}, 0)
            verdict = judge.verdict(tabmwp, item, f"So. The answer is {other}")
            assert not verdict.math_verify, (gold, other)


def by_the_library(completion, gold):
    """The verdict of math-verify alone, with its defaults but for its limits of time."""
    parsed = [math_verify.parse(text, parsing_timeout=None) for text in (f"${gold}$", completion)]
    return math_verify.verify(*parsed, timeout_seconds=None)


def test_odd_answers_get_the_verdict_of_the_library():
    """A difference has its reason in the table; a reason has a difference."""
    wrong, count = [], 0
    with Judge(seconds=30) as judge:
        for gold, words, right, reason, answers in ODD_ANSWERS:
            benchmark = BENCHMARKS["mmlu_stem"] if words == LETTERS else GSM8K if words else MATH
            item = Item("?", gold, normalize(gold), words)
            for answer in map(str.strip, answers.split("|")):
                completion = f"The answer is {answer}"
                by_judge = judge.verdict(benchmark, item, completion).math_verify
                alone = by_the_library(completion, gold)
                if (by_judge, alone) != (right, right is not bool(reason)):
                    wrong.append((gold, answer, by_judge, alone))
                count += 1
    assert wrong == []
    assert count >= 200


def test_hostile_answers_cost_limited_time_and_do_no_harm(tmp_path, monkeypatch):
    """Sees an answer that hangs the judge, changes a file or spoils the verdict after it."""
    monkeypatch.chdir(tmp_path)
    began, late, count = time.monotonic(), 0, repeats(500, 30)
    with Judge(seconds=0.1) as judge:
        for number in range(count):
            text = hostile(number)
            benchmark = (MATH, GSM8K)[number % 2]
            completion = f"The final answer is ${text}$. I hope it is correct."
            verdict = judge.verdict(
                benchmark, item(benchmark, "7"), (completion, text)[number % 3 == 0]
            )
            assert not verdict.harness_match, text[:80]
            late += bool(verdict.undecided)
        print(f"{late} of {count} undecided, {time.monotonic() - began:.0f} s")
        assert judge.verdict(GSM8K, item(GSM8K, "7"), "The answer is 7.").harness_match
    assert late > count // 50  # some do exceed the limits
    assert time.monotonic() - began < count
    assert not (tmp_path / "harmed").exists()


def test_a_process_that_dies_is_replaced():
    with Judge(seconds=0.3) as judge:
        expensive = judge.verdict(MATH, item(MATH), r"\boxed{9^{9^{9^{9}}}!}")
        again = judge.verdict(MATH, item(MATH), r"\boxed{\frac{2}{4}}")
    assert "match" in expensive.undecided
    assert not expensive.harness_match
    assert again.harness_match
    assert again.math_verify
    assert again.undecided == ()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the process in /proc")
@pytest.mark.parametrize("taken", [(0, 1), (20, -1)])
def test_a_process_that_is_killed_idle_changes_no_verdict(taken, monkeypatch):
    """The one that compares, as a machine out of memory does. It may take some bytes of the next
    request with it, or all (-1): woken by what it reads before the signal reaches it."""
    requests = Judge._requests

    def shortened(judge):
        """What the fork took is never written."""
        pipe = requests(judge)
        if not killed:
            return pipe
        takes = killed.pop()
        return SimpleNamespace(
            write=lambda line: pipe.write(line[takes:] if takes >= 0 else ""), flush=pipe.flush
        )

    killed = []
    monkeypatch.setattr(Judge, "_requests", shortened)
    with Judge(seconds=1.0) as judge:
        for takes in taken:
            assert judge.verdict(GSM8K, item(GSM8K, "7"), "The answer is 7.").harness_match
            assert judge._process is not None
            pid = judge._process.pid
            (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            killed.append(takes)
            for answer in ("7", "8", "14/2", "9", "7"):
                verdict = judge.verdict(GSM8K, item(GSM8K, "7"), f"The answer is {answer}.")
                assert verdict.harness_match is (answer in ("7", "14/2"))
                assert verdict.math_verify is verdict.harness_match
                assert verdict.undecided == ()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds to the limit")
def test_a_judge_has_a_limit_of_memory():
    """Sees a process of the judge in which an answer could take all memory of the machine."""
    code = "from vocagno.evaluation import judge; judge._limit_memory(64); bytearray(2**28)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.endswith("MemoryError\n")
    with Judge(mebibytes=64) as judge:
        judge.verdict(GSM8K, item(GSM8K, "7"), "")
        assert judge._process is not None
        limits = Path(f"/proc/{judge._process.pid}/limits").read_text()
    (limit,) = re.findall(r"Max address space +(\d+) ", limits)
    assert int(limit) < 2**30


def test_a_library_that_is_not_there_is_no_wrong_answer(monkeypatch):
    monkeypatch.setitem(judge_module._REQUIRED_VERSIONS, "antlr4-python3-runtime", "3.0")
    with pytest.raises(InputError, match=r"antlr4-python3-runtime 3\.0, found 4.*'\.\[eval\]'"):
        Judge()
