"""Exact-answer accuracy: greedy answers to held-out questions, compared with the gold answers."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import GenerationConfig

from vocagno.quickstart.problems import ANSWER_PREFIX
from vocagno.quickstart.questions import read_questions


class Question(Protocol):
    """A question with its gold answer; `problems.Problem` is one."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...


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
    problems: Sequence[Question],
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


@torch.inference_mode()
def _continue(
    model: Any, tokenizer: Any, prompts: list[list[int]], max_new_tokens: int
) -> list[str]:
    """One batch of `greedy_texts`, with padding on the left."""
    width = max(map(len, prompts))
    pads = [width - len(prompt) for prompt in prompts]
    rows = [[0] * pad + prompt for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (width - pad) for pad in pads]
    output = model.generate(
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=tokenizer.eos_token_id,
        ),
    )
    new = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
    return [str(text) for text in new]
