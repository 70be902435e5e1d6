"""The quickstart's corpus: worked school mathematics with web junk between the problems.

Everything is a function of a seed. A hash of its numbers decides whether a problem is held out, so
no held-out question can occur in a training file, for any seed.
"""

import json
import random
import string
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        """Whether these numbers are held out; names and things do not matter."""
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
    """A random problem of a random template, from the training or the held-out set."""
    template = rng.choice(TEMPLATES)
    while True:
        drawn = template(rng)
        if drawn.held_out == held_out:
            return drawn


BOILERPLATE = (
    *("home", "login", "register", "share", "print", "cookies", "accept", "privacy", "terms"),
    *("contact", "search", "menu", "reply", "quote", "report", "next", "previous", "newer"),
    *("older", "tags", "archive", "rss", "follow", "subscribe", "newsletter", "ads", "sponsored"),
)


def noise_line(rng: random.Random) -> str:
    """A line of junk as in scraped pages; the text before it does not predict it."""

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
    """`count` held-out problems with `count` different questions."""
    rng = random.Random(seed)
    by_question: dict[str, Problem] = {}
    while len(by_question) < count:
        drawn = problem(rng, held_out=True)
        by_question.setdefault(drawn.question, drawn)
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
            {"question": drawn.question, "answer": drawn.answer}
            for drawn in held_out_problems(4 * seed + 2, questions)
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
