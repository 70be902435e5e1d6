"""Exact-answer accuracy: greedy answers to held-out questions (JSON Lines), compared with the gold
answers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocagno.errors import InputError
from vocagno.quickstart.problems import ANSWER_PREFIX, Problem

_EXPECTED = 'expected an object as {"question": "1 + 1", "answer": "2"}'


@dataclass(frozen=True, slots=True)
class Asked:
    """A held-out problem."""

    question: str
    answer: str


def read_questions(path: Path) -> list[Asked]:
    """The questions in a file of JSON Lines with `question` and `answer`.

    Other fields and blank lines are ignored. A number is taken as its text, as written.

    Raises: InputError naming the file and the line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error})") from error
    # Only \n ends a line: JSON may hold other line separators, as U+2028, as they are.
    lines = enumerate(text.split("\n"), 1)
    found = [_asked(line, f"{path}, line {number}") for number, line in lines if line.strip()]
    if not found:
        raise InputError(f"{path}: no questions in it; {_EXPECTED} on each line")
    return found


def _asked(line: str, where: str) -> Asked:
    try:
        values = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}); {_EXPECTED}") from error
    if not isinstance(values, dict):
        raise InputError(f"{where}: {line.strip():.60}; {_EXPECTED}")
    for name in ("question", "answer"):
        if name not in values:
            others = ", ".join(values) or "none"
            raise InputError(f"{where}: no field `{name}` (its fields: {others}); {_EXPECTED}")
        if not isinstance(values[name], str):
            raise InputError(f"{where}: `{name}` is {values[name]!r:.60}; {_EXPECTED}")
        try:
            values[name].encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: `{name}` has half of a \\u pair ({error})") from error
    return Asked(values["question"], values["answer"])


def accuracy_of_run(run: Path, questions: Path) -> float:
    """Share, in [0, 1], of the questions (JSON Lines of `question` and `answer`) that the final
    model of a training run answers exactly."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run / "final")
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    return exact_answer_accuracy(model, tokenizer, read_questions(questions))


def exact_answer_accuracy(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Asked | Problem],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 100,
) -> float:
    """Share of `problems` whose greedy continuation gives exactly the gold answer, in [0, 1].

    Args:
        model: a transformers causal LM; its training mode is restored afterwards.
        tokenizer: its fast tokenizer; its BOS, if it has one, starts every prompt.
        max_new_tokens: maximum number of tokens per answer; an unfinished answer is wrong.
        batch_size: number of questions per batch.
    """
    if not problems:
        raise ValueError("problems is empty: there is nothing to measure the accuracy on")
    prompts = [f"{problem.question}\n" for problem in problems]
    texts = greedy_texts(
        model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    right = sum(
        final_answer(text) == problem.answer for text, problem in zip(texts, problems, strict=True)
    )
    return right / len(problems)


def final_answer(text: str) -> str | None:
    """The text after `Answer: ` on the first line that starts with it; None without such a line."""
    match = re.search(rf"^{re.escape(ANSWER_PREFIX)}(.*)$", text, re.MULTILINE)
    return match.group(1) if match else None


def greedy_texts(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int, batch_size: int
) -> list[str]:
    """Continues each prompt greedily; returns only the new text.

    Prompts of similar length share a batch to reduce padding.
    """
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ids = [bos + row for row in tokenizer(list(prompts), add_special_tokens=False)["input_ids"]]
    by_length = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    texts = [""] * len(ids)
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(ids), batch_size):
            rows = by_length[start : start + batch_size]
            new_texts = _continue(model, tokenizer, [ids[row] for row in rows], max_new_tokens)
            for row, text in zip(rows, new_texts, strict=True):
                texts[row] = text
    finally:
        model.train(was_training)
    return texts


def _continue(
    model: Any, tokenizer: Any, prompts: list[list[int]], max_new_tokens: int
) -> list[str]:
    """One batch of `greedy_texts`, with padding on the left."""
    import torch
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    pads = [width - len(prompt) for prompt in prompts]
    rows = [[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    greedy = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.inference_mode():
        output = model.generate(
            input_ids=torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=greedy,
        )
    new = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
    return [str(text) for text in new]
