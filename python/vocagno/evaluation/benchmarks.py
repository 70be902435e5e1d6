"""The mathematical benchmarks: how each one's records become questions with gold answers, and how
its prompts are put. `benchmark_files` reads the files."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from vocagno.errors import InputError
from vocagno.evaluation.answers import answer_part, extract_answer, in_box, normalize

Record = Mapping[str, Any]
"""The JSON object in a line of a benchmark's file."""
UNREADABLE = KeyError, TypeError, ValueError, IndexError, ArithmeticError
"""The errors that readers raise for a record of another kind: one without a field, with a field of
another type, or with an answer such as 3/0."""

_CHOOSE = "What of the following is the right choice? Explain your answer."
_ENDINGS = dict.fromkeys(("true", "false"), " (True or False)")
_ENDINGS |= dict.fromkeys(("yes", "no"), " (Yes or No)")
"""Text that is appended to a question, by its gold answer in lower case."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question with its gold answer."""

    question: str
    stated: str
    """The gold answer as the benchmark writes it: LaTeX, a number, a letter or words."""
    gold: str
    """The gold answer, normalised as by `Benchmark.answer`."""
    words: tuple[str, ...] | None = None
    """The possible answers, if they are words or letters, as far as the item lists them."""
    index: int = 0
    """Number of the item in its benchmark, `idx` in the files."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The format of a benchmark: its file, its prompts, and how a record becomes an item."""

    name: str
    column: str | None
    """Column in the paper's tables; None if it is in none."""
    folder: str
    """Folder that contains its test.jsonl."""
    prompt: str
    """NAME of the worked examples' file, prompts/cot/NAME.md."""
    shots: int
    problem: bool
    """True if prompts use `Problem:` and `Solution:`, not `Question:` and `Answer:`."""
    choice: bool
    """True if the answer is a letter."""
    read: Callable[[Record], Item]
    """Reads a record. Raises: one of `UNREADABLE` for a record of another kind."""

    def item(self, record: Record, index: int) -> Item:
        """Reads and checks the item in a record. Raises: the errors of `read`."""
        item = self.read(record)
        if item.stated in ("", "nan", "inf", "-inf"):
            raise ValueError(f"it states no answer ({item.stated!r})")
        if item.words is not None and item.stated not in item.words:
            raise ValueError(f"the answer {item.stated!r} is not one of {', '.join(item.words)}")
        question = f"{item.question}{_ENDINGS.get(item.gold.lower(), '')}"
        return replace(item, question=question.strip(), index=index)

    def format_question(self, question: str) -> str:
        """Returns a question in the form that follows the worked examples."""
        if self.problem:
            return f"Problem:\n{question}\nSolution:"
        return f"Question: {question}\nAnswer:"

    def answer(self, completion: str) -> str:
        """Returns the answer in a completion, normalised."""
        return extract_answer(completion, choice=self.choice)


def _field(record: Record, name: str, kind: type | tuple[type, ...] = str) -> Any:
    """Reads a field of a record. Raises: KeyError, or TypeError for a value of another type."""
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):  # a bool is an int, too
        raise TypeError(f"`{name}` is {value!r:.60}")
    return value


_NUMBER = (int, float)
_NUMERAL = re.compile(r"-?[\d,]*\.?\d+(/\d+)?%?")


def _number_item(question: str, value: object) -> Item:
    """Builds an item whose gold answer is a number, or the text that stands for one, which is not
    checked."""
    # The harness normalises the number itself; 1e-05 is stated as 0.00001.
    stated = np.format_float_positional(value, trim="-") if isinstance(value, float) else value
    return Item(question, str(stated), normalize(value))


def _read_gsm8k(record: Record) -> Item:
    """Reads `question`, and the number behind the #### in `answer`."""
    _, marked, stated = _field(record, "answer").partition("####")
    if not marked:
        raise ValueError("`answer` has no ####")
    return _number_item(_field(record, "question"), stated.strip())


def _read_math(record: Record) -> Item:
    """Reads `problem`, and the answer in `solution`, which an `answer` must repeat: one metric
    grades by the first, another by the second."""
    solution = _field(record, "solution")
    gold = extract_answer(solution, choice=False)
    if "answer" in record:
        stated = _field(record, "answer")
        # It may name the whole list of which the last one is in a box, or be spelled otherwise.
        whole = normalize(stated)
        if _compact(gold) not in map(_compact, (whole, *whole.split(","))):
            raise ValueError(f"`answer` is {stated!r:.60}, but `solution` says {gold!r:.60}")
        return Item(_field(record, "problem"), stated, gold)
    # The normalised answer is only for the harness: it lacks units, `m` and half of `\\sec x`.
    # Without the backslash, as in the harness, the "boxed" of a sentence would count.
    _, box, after_box = solution.rpartition(r"\boxed")
    stated = in_box(after_box) if box else answer_part(solution)
    return Item(_field(record, "problem"), stated, gold)


def _compact(answer: str) -> str:
    """Removes blanks, commas and brackets of an answer."""
    return re.sub(r"[\s,()]", "", answer)


def _read_svamp(record: Record) -> Item:
    """Reads `Body` and `Question`, which make the question, and the number in `Answer`."""
    body = _field(record, "Body").strip()
    body = body if body.endswith(".") else f"{body}."
    stated = _field(record, "Answer", (*_NUMBER, str))  # text in the hub's
    return _number_item(f"{body} {_field(record, 'Question').strip()}", float(stated))


def _read_asdiv(record: Record) -> Item:
    """Reads `body` and `question`, which make the question, and `answer` without the unit that
    stands in brackets."""
    stated = re.sub(r"\(.*?\)", "", _field(record, "answer")).strip()
    question = f"{_field(record, 'body').strip()} {_field(record, 'question').strip()}"
    # Other answers than numbers are words, a time or a ratio.
    words = None if _NUMERAL.fullmatch(stated) else (stated,)
    return Item(question, stated, normalize(stated), words)


def _read_target(record: Record) -> Item:
    """Reads `input`, and the number in `target`."""
    return _number_item(_field(record, "input"), _field(record, "target", _NUMBER))


def _read_tabmwp(record: Record) -> Item:
    """Reads a `table` with a title or none, a `question` about it, the `choices` if it has any, and
    `answer`, a number if `ans_type` says so."""
    title, choices = record["table_title"], _field(record, "choices", (list, type(None)))
    regarding = f' regarding "{title}"' if title else ""
    question = (
        f"Read the following table{regarding} and answer a question:\n"
        f"{_field(record, 'table')}\n{_field(record, 'question')}"
    )
    if choices:
        question += f" Please select from the following options: {choices}"
    stated = _field(record, "answer")
    if record["ans_type"] in ("integer_number", "decimal_number"):
        return Item(question, stated, normalize(_number_value(stated)))
    return Item(question, stated, normalize(stated), tuple(choices or (stated,)))


def _number_value(number: str) -> float:
    """Reads `3/4`, `75%` or `1,000`."""
    numerator, slash, denominator = number.partition("/")
    if slash:
        return int(numerator) / int(denominator)
    digits = number.removesuffix("%")
    return float(digits.replace(",", "")) / (1 if digits == number else 100)


def _read_mathqa(record: Record) -> Item:
    """Reads `problem`, the choices in one line of `options`, and the letter in `correct`."""
    options = _field(record, "options").strip()
    if options.startswith("['"):  # a few items have a printed list
        options = " , ".join(options.removeprefix("['").removesuffix("']").split("', '"))
    _, *parts = re.split(r"(?:^| , )([a-e]) \) (?:\1 \) )?", options)  # some repeat the letter
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    if "".join(texts) != "abcde"[: len(texts)]:
        raise ValueError(f"`options` has no letters in order: {options!r:.60}")
    listed = ", ".join(f"({letter.upper()}) {text.strip()}" for letter, text in texts.items())
    problem = _field(record, "problem")
    return _choice_item(
        f"{problem[:1].upper()}{problem[1:]}".strip(),
        listed,
        _field(record, "correct").upper(),
        texts,
    )


def _read_mmlu(record: Record) -> Item:
    """Reads `question`, a list of `choices`, and in `answer` the place of the right one, from 0."""
    choices = _field(record, "choices", list)
    if len(choices) > len("ABCDE"):
        raise ValueError(f"`choices` has {len(choices)}; at most five have a letter")
    listed = ", ".join(
        f"({letter}) {str(text).strip()}" for letter, text in zip("ABCDE", choices, strict=False)
    )
    number = _field(record, "answer", int)
    if not 0 <= number < len(choices):
        raise ValueError(f"`answer` is {number}, of {len(choices)} choices")
    gold = "ABCDE"[number]
    return _choice_item(_field(record, "question").strip(), listed, gold, choices)


def _read_sat(record: Record) -> Item:
    """Reads `question`, the choices in one line of `options`, and the letter in `Answer`."""
    listed = re.sub(r"(^| )([A-E])[).] ", r"\1(\2) ", _field(record, "options").strip())
    letters = re.findall(r"\(([A-E])\) ", listed)
    if letters != list("ABCDE"[: len(letters)]):
        raise ValueError(f"`options` has no letters in order: {listed!r:.60}")
    return _choice_item(
        _field(record, "question").strip(), listed, _field(record, "Answer"), letters
    )


def _choice_item(question: str, listed: str, gold: str, choices: Collection[object]) -> Item:
    """Builds an item whose gold answer is a letter."""
    words = tuple("ABCDE"[: len(choices)])
    return Item(f"{question}\n{_CHOOSE}\n{listed}", gold, normalize(gold), words)


def _grade_school(name: str, column: str, read: Callable[[Record], Item]) -> Benchmark:
    """Returns a benchmark of word problems, with the worked examples of GSM8K."""
    return Benchmark(name, column, name, "gsm8k", shots=8, problem=False, choice=False, read=read)


def _competition(name: str, column: str | None, folder: str, shots: int) -> Benchmark:
    return Benchmark(name, column, folder, name, shots, problem=True, choice=False, read=_read_math)


def _multiple_choice(
    name: str, column: str, prompt: str, read: Callable[[Record], Item]
) -> Benchmark:
    return Benchmark(name, column, name, prompt, shots=4, problem=True, choice=True, read=read)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        _grade_school("gsm8k", "GSM8K", _read_gsm8k),
        _competition("minerva_math", "MATH", folder="math_oai", shots=4),
        _grade_school("gsm_hard", "GSM-Hard", _read_target),
        _grade_school("svamp", "SVAMP", _read_svamp),
        _grade_school("asdiv", "ASDiv", _read_asdiv),
        _grade_school("mawps", "MAWPS", _read_target),
        _grade_school("tabmwp", "TAB", _read_tabmwp),
        _multiple_choice("mathqa", "MQA", "mathqa", _read_mathqa),
        _multiple_choice("mmlu_stem", "MMLU-STEM", "mmlu_stem", _read_mmlu),
        _multiple_choice("sat_math", "SAT", "mmlu_stem", _read_sat),
        _competition("math", None, folder="math", shots=5),
    )
}
"""The benchmarks by name: the ten of the paper, and the full test set of MATH, of which
`minerva_math` has 500 problems."""

PAPER = tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.column is not None)
"""The names of the ten benchmarks that the paper names."""


def find_benchmark(task: str) -> Benchmark:
    """Returns the benchmark with a name. Raises: InputError that suggests similar names."""
    if task in BENCHMARKS:
        return BENCHMARKS[task]
    similar = get_close_matches(task.lower(), BENCHMARKS, n=3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(BENCHMARKS)}"
    raise InputError(f"task {task!r}: no such benchmark; {hint}")
