"""The quickstart's corpus: worked school mathematics with web junk between the problems; and the
share of held-out questions that a model answers exactly.

Everything is a function of a seed. A hash of its numbers decides whether a problem is held out, so
no held-out question can occur in a training file, for any seed.
"""

import json
import random
import re
import string
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vocagno.errors import InputError
from vocagno.system.records import check_type

HELD_OUT_ONE_IN = 8
"""One in this many number combinations of a template is never trained on."""

ANSWER_PREFIX = "Answer: "

NAMES = ("Zoë", "José", "Ann", "Omar", "Renée", "Søren", "Mei", "Tom")
THINGS = ("apples", "coins", "books", "stamps", "shells", "pens", "cards", "marbles")


@dataclass(frozen=True, slots=True)
class Problem:
    """One worked problem. `operands` are its numbers in a canonical order."""

    template: str
    operands: tuple[int, ...]
    question: str
    working: tuple[str, ...]
    answer: str

    @property
    def held_out(self) -> bool:
        """True if these numbers are held out; names and things do not matter."""
        key = f"{self.template} {' '.join(map(str, self.operands))}"
        return zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Question, working and the final `Answer: ...` line."""
        return (self.question, *self.working, ANSWER_PREFIX + self.answer)


def three_finds(rng: random.Random) -> Problem:
    a, b, c = (rng.randint(2, 9) for _ in range(3))
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    return Problem(
        "three finds",
        (a, b, c),
        f"{name} has {a} {thing}, finds {b} and then {c} more. How many {thing} is that?",
        (f"{a} + {b} = {a + b}", f"{a + b} + {c} = {a + b + c}"),
        f"{a + b + c}",
    )


def gain_and_loss(rng: random.Random) -> Problem:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    c, name, thing = rng.randint(1, min(9, a + b - 1)), rng.choice(NAMES), rng.choice(THINGS)
    return Problem(
        "gain and loss",
        (a, b, c),
        f"{name} had {a} {thing}, got {b} and gave away {c}. How many {thing} are left?",
        (f"{a} + {b} = {a + b}", f"{a + b} − {c} = {a + b - c}"),
        f"{a + b - c}",
    )


def price(rng: random.Random) -> Problem:
    a, b, c = rng.randint(2, 6), rng.randint(2, 6), rng.randint(1, 9)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    return Problem(
        "price",
        (a, b, c),
        f"{name} buys {a} {thing} at {b} € each and a bag for {c} €. What does {name} pay?",
        (f"{a} × {b} = {a * b}", f"{a * b} + {c} = {a * b + c}"),
        f"{a * b + c} €",
    )


def share(rng: random.Random) -> Problem:
    sign, bottom = rng.choice((("½", 2), ("⅓", 3), ("¼", 4)))
    a, part = rng.randint(2, 9), rng.randint(2, 6)
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    return Problem(
        "share",
        (a, bottom, part),
        f"{name} has {a} {thing} and gets {sign} of {bottom * part} more. How many {thing} now?",
        (f"{bottom * part} ÷ {bottom} = {part}", f"{a} + {part} = {a + part}"),
        f"{a + part}",
    )


def equation(rng: random.Random) -> Problem:
    a, x, b = rng.randint(2, 6), rng.randint(2, 6), rng.randint(1, 9)
    return Problem(
        "equation",
        (a, x, b),
        f"Solve ${a}x + {b} = {a * x + b}$ for $x$.",
        (f"${a}x = {a * x + b} - {b} = {a * x}$", rf"$x = \frac{{{a * x}}}{{{a}}} = {x}$"),
        f"{x}",
    )


def circles(rng: random.Random) -> Problem:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return Problem(
        "circles",
        (a, b),
        f"Two circles have radii {a} and {b}. How long are they together?",
        (f"{a} + {b} = {a + b}", rf"$C = 2 \pi r$: 2 × {a + b} × π = {2 * (a + b)}π"),
        f"{2 * (a + b)}π",
    )


TEMPLATES: tuple[Callable[[random.Random], Problem], ...] = (
    three_finds,
    gain_and_loss,
    price,
    share,
    equation,
    circles,
)


def problem(rng: random.Random, *, held_out: bool) -> Problem:
    """Draws a problem of a random template, from the training or the held-out set."""
    template = rng.choice(TEMPLATES)
    while True:
        candidate = template(rng)
        if candidate.held_out == held_out:
            return candidate


BOILERPLATE = (
    *("home", "login", "register", "share", "print", "cookies", "accept", "privacy", "terms"),
    *("contact", "search", "menu", "reply", "quote", "report", "next", "previous", "newer"),
    *("older", "tags", "archive", "rss", "follow", "subscribe", "newsletter", "ads", "sponsored"),
)


def noise_line(rng: random.Random) -> str:
    """Makes a line of junk as in scraped pages; the text before it does not predict it."""

    def pick(alphabet: str, low: int, high: int) -> str:
        return "".join(rng.choices(alphabet, k=rng.randint(low, high)))

    kind = rng.randrange(5)
    if kind == 0:
        return f"id={pick('0123456789abcdef', 16, 32)}"
    if kind == 1:
        name = pick(string.ascii_lowercase, 4, 9)
        return f"/{name}/{pick(string.ascii_letters + string.digits, 12, 24)}"
    if kind == 2:
        return " | ".join(word.title() for word in rng.choices(BOILERPLATE, k=rng.randint(3, 6)))
    if kind == 3:
        return " ".join(pick(string.digits, 1, 5) for _ in range(rng.randint(4, 8)))
    name = f"{pick(string.ascii_lowercase, 3, 8)}_{pick(string.ascii_letters, 3, 8)}"
    return f"{name} = {pick(string.hexdigits, 8, 16)};"


def documents(
    seed: int, count: int, noise_fraction: float, *, held_out: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields `count` documents `{"text": ...}` of two to five problems each; `noise` has
    the bytes of its junk, as half-open ranges.

    `noise_fraction` is the expected share of junk among the non-blank lines, in [0, 1). Junk is
    between problems, never inside one, so a question is always followed by its own working.
    """
    if not 0 <= noise_fraction < 1:
        raise ValueError(f"noise_fraction must be in [0, 1), got {noise_fraction}")
    rng = random.Random(seed)
    for _ in range(count):
        text, noise = "", []
        for _ in range(rng.randint(2, 5)):
            lines = problem(rng, held_out=held_out).lines
            junk = []
            for _ in lines:  # a geometric number of junk lines for each line of mathematics
                while rng.random() < noise_fraction:
                    junk.append(noise_line(rng))
            if junk:
                start = len(text.encode())
                text += "\n".join(junk) + "\n\n"
                noise.append([start, len(text.encode())])
            text += "\n".join(lines) + "\n\n"
        yield {"text": text[:-1]} | ({"noise": noise} if noise else {})


def held_out_problems(seed: int, count: int) -> list[Problem]:
    """Draws `count` held-out problems with different questions."""
    rng = random.Random(seed)
    by_question: dict[str, Problem] = {}
    while len(by_question) < count:
        candidate = problem(rng, held_out=True)
        by_question.setdefault(candidate.question, candidate)
    return list(by_question.values())


def write_corpus(
    folder: Path,
    *,
    seed: int = 0,
    train_documents: int,
    valid_documents: int,
    questions: int,
    noise_fraction: float,
    teacher_documents: int = 0,
) -> dict[str, Path]:
    """Writes the quickstart's JSON Lines files into `folder` and returns their paths by name.

    `train` contains junk. `valid-clean` contains no junk and only held-out problems, as does
    `problems` (`{"question", "answer"}`). `teacher-train`, written if `teacher_documents` is not 0,
    contains no junk: a mathematics teacher has read better texts than its student will.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents: dict[str, Iterable[dict[str, Any]]] = {
        "train": documents(4 * seed, train_documents, noise_fraction),
        "valid-clean": documents(4 * seed + 1, valid_documents, 0.0, held_out=True),
        "problems": (
            {"question": candidate.question, "answer": candidate.answer}
            for candidate in held_out_problems(4 * seed + 2, questions)
        ),
    }
    if teacher_documents:
        contents["teacher-train"] = documents(4 * seed + 3, teacher_documents, 0.0)
    paths = {}
    for name, rows in contents.items():
        paths[name] = folder / f"{name}.jsonl"
        with paths[name].open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return paths


_EXPECTED = 'expected an object as {"question": "1 + 1", "answer": "2"}'


class Asked(TypedDict):
    """A held-out problem."""

    question: str
    answer: str


def read_questions(path: Path) -> list[Asked]:
    """Reads the questions in a file of JSON Lines with `question` and `answer`.

    Other fields and blank lines are ignored. A number is taken as its text, as written.

    Raises: InputError naming the file and the line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error})") from error
    # Only \n ends a line: JSON may hold other line separators, as U+2028, as they are.
    lines = enumerate(text.split("\n"), 1)
    questions = [
        _parse_question(line, f"{path}, line {number}") for number, line in lines if line.strip()
    ]
    if not questions:
        raise InputError(f"{path}: no questions in it; {_EXPECTED} on each line")
    return questions


def _parse_question(line: str, where: str) -> Asked:
    """Parses a line of JSON; `where` names file and line in errors."""

    def fault(words: str) -> InputError:
        return InputError(f"{where}: {words}; {_EXPECTED}")

    try:
        values = json.loads(line, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise fault(f"not JSON ({error})") from error
    return check_type(Asked, values, fault)


def accuracy_of_run(run: Path, questions: Path) -> float:
    """Share, in [0, 1], of the questions (JSON Lines of `question` and `answer`) that the final
    model of a training run answers exactly."""
    from transformers import AutoTokenizer

    from vocagno.models.weights import causal_model

    model = causal_model(str(run / "final"), "run")
    tokenizer = AutoTokenizer.from_pretrained(run / "final")
    return exact_answer_accuracy(model, tokenizer, read_questions(questions))


def exact_answer_accuracy(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Asked],
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
    prompts = [f"{problem['question']}\n" for problem in problems]
    texts = greedy_texts(
        model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=batch_size
    )
    right = sum(
        final_answer(text) == problem["answer"]
        for text, problem in zip(texts, problems, strict=True)
    )
    return right / len(problems)


def final_answer(text: str) -> str | None:
    """Returns the text after `Answer: ` on the first line that starts with it; None without one."""
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
