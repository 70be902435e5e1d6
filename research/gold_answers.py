"""Compares models by what they lose on the gold answers of questions such as GSM8K's.

    python -m research.gold_answers QUESTIONS.jsonl --write TEXT.jsonl [--most 300]
    vocagno score TEXT.jsonl --teacher.model MODEL --out STORE      # for each model
    python -m research.gold_answers QUESTIONS.jsonl STORE STORE ... [--most 300]

Models of this size generate next to no right answers, so that counting these would tell nothing.
Each model is given question and answer, and has two measures: its loss on the answer in nats a
byte, and the share of the questions whose final number, with the space before it and the full stop
behind it, has more than half of the probability after the gold reasoning and `The answer is`.
Errors are standard errors over the questions; they hold for these models, not for others that are
trained alike. Each line of QUESTIONS has `question` and `answer`, which ends in `#### NUMBER`.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.errors import InputError, require
from vocagno.evaluation.benchmark_files import json_records
from vocagno.system.files import atomic_file
from vocagno.teacher.score_store import ScoresOfTexts, ScoreStore


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """A question with its answer, as one text, and where the answer's parts begin."""

    text: str
    answer_start: int
    """The answer's first byte in the text's UTF-8."""
    number_start: int
    """The byte of the space before the final number, which ends the text with a full stop."""

    @classmethod
    def of(cls, question: str, answer: str) -> "GoldAnswer":
        """Joins a question and its answer in the wording of the usual few-shot prompts.

        Calculator annotations (`<<16-3=13>>`) are omitted: no model meets them elsewhere.
        Raises: InputError for an answer without a final number, and for text that UTF-8 lacks.
        """
        parts = re.sub(r"<<[^>]*>>", "", answer).rpartition("####")
        reasoning, mark, number = (part.strip() for part in parts)
        if not mark or not number:
            raise InputError(f"the answer to {question[:40]!r} does not end in '#### NUMBER'")
        asked = f"Question: {question.strip()}\nAnswer:"
        reasoned = f"{asked} {reasoning} The answer is"
        try:
            starts = [len(part.encode()) for part in (asked, reasoned)]
        except UnicodeEncodeError as error:
            raise InputError(f"{question[:40]!r} has a lone surrogate, or its answer") from error
        return cls(f"{reasoned} {number}.", *starts)

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the answer."""
        return len(self.text.encode()) - self.answer_start


@dataclass(frozen=True, slots=True)
class AnswerLosses:
    """What a model loses on the answers to Q questions, in nats."""

    answer_Q: NDArray[np.float64]
    """The loss on the whole answer."""
    number_Q: NDArray[np.float64]
    """The loss on only the final number, after the gold reasoning."""

    @classmethod
    def of(cls, answers: Sequence[GoldAnswer], store: ScoreStore) -> "AnswerLosses":
        """Reads the losses from a store of the texts' scores.
        Raises: InputError for a text, or a token of an answer, without a loss, and for a token of
            which only a part is of the answer, or of the number."""
        losses = []
        scored = ScoresOfTexts(store).find([answer.text for answer in answers])
        for answer, scores in zip(answers, scored, strict=True):
            reason = scores.missing
            starts, ends = scores.spans.T
            parts = []
            for first in (answer.answer_start, answer.number_start):
                if ((starts < first) & (ends > first)).any():
                    reason = reason or "a token covers the beginning of the answer, or number"
                parts.append(scores.nll[starts >= first])
            if not reason and not all(part.size and np.isfinite(part).all() for part in parts):
                reason = "a token of the answer has no loss"
            require(not reason, f"{store.folder}: has no loss on {answer.text[:50]!r}: {reason}")
            losses.append([part.sum(dtype=float) for part in parts])
        return cls(*np.array(losses).T)


def read_answers(path: Path, most: int | None = None) -> list[GoldAnswer]:
    """Reads the first questions of a file, at most `most`; None for all.
    Raises: InputError for less than two questions, and for a line without an answer."""
    answers = []
    for where, record in islice(json_records(path), most):
        question, answer = (record.get(name) for name in ("question", "answer"))
        if not isinstance(question, str) or not isinstance(answer, str):
            raise InputError(f"{where}: needs `question` and `answer`, both text")
        answers.append(GoldAnswer.of(question, answer))
    require(len(answers) > 1, f"{path}: has {len(answers)} questions, needs 2 for an error")
    return answers


def mean_per_byte(loss_Q: NDArray[Any], answers: Sequence[GoldAnswer]) -> tuple[float, float]:
    """Returns the nats a byte of all answers together, and the standard error over questions.

    The error is that of a ratio of sums (W. G. Cochran, Sampling Techniques, 1977, Eq. 6.13).
    """
    bytes_Q = np.array([answer.num_bytes for answer in answers])
    mean = float(loss_Q.sum() / bytes_Q.sum())
    count = len(answers)
    squares = float(((loss_Q - mean * bytes_Q) ** 2).sum())
    return mean, (squares * count / (count - 1)) ** 0.5 / float(bytes_Q.sum())


def compare(answers: Sequence[GoldAnswer], folders: Sequence[Path]) -> Iterator[str]:
    """Yields the rows of a table in Markdown, whose differences are from the first store.

    Raises: InputError for stores of one name, or of scores that were computed in other ways.
    """
    stores = [ScoreStore(folder) for folder in folders]
    for number, store in enumerate(stores):
        _check_alike(stores[:number], store)
    losses = [AnswerLosses.of(answers, store) for store in stores]
    yield "| model | answers, nats a byte | difference from the first | numbers above one half |"
    yield "|---|--:|--:|--:|"
    for store, model in zip(stores, losses, strict=True):
        mean, error = mean_per_byte(model.answer_Q, answers)
        further, error_of_it = mean_per_byte(model.answer_Q - losses[0].answer_Q, answers)
        difference = "-" if model is losses[0] else f"{further:+.4f} ± {error_of_it:.4f}"
        share = float((model.number_Q < np.log(2)).mean())
        spread = (share * (1 - share) / len(answers)) ** 0.5
        cells = f"{mean:.4f} ± {error:.4f} | {difference} | {share:.1%} ± {spread:.1%}"
        yield f"| {store.folder.name} | {cells} |"


def _check_alike(stores: Sequence[ScoreStore], store: ScoreStore) -> None:
    """Checks that differences between these stores are of the models, and rows can be told apart.
    Raises: InputError that names both stores."""
    for other in stores:
        pair = f"{store.folder} and {other.folder}"
        require(store.folder.name != other.folder.name, f"{pair}: give the stores two names")
        for name in ("context", "min_context", "dtype"):
            values = [of.manifest.made_from.get(name) for of in (store, other)]
            require(values[0] == values[1], f"{pair}: {name} is {values[0]} and {values[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=Path, help="lines with `question` and `answer`")
    parser.add_argument("stores", type=Path, nargs="*", help="each model's scores of the text")
    parser.add_argument("--write", type=Path, metavar="TEXT", help="the text to score")
    parser.add_argument("--most", type=int, help="the number of questions; default: all")
    options = parser.parse_args()
    is_comparison = bool(options.stores)
    try:
        require(is_comparison == (options.write is None), "give either --write TEXT or stores")
        require(options.most is None or options.most > 1, "--most: expected 2 questions or more")
        answers = read_answers(options.questions, options.most)
        if options.write:
            require(not options.write.exists(), f"{options.write}: exists; delete it first")
            lines = (json.dumps({"text": answer.text}) + "\n" for answer in answers)
            with atomic_file(options.write) as file:
                file.write("".join(lines).encode())
        else:
            print("\n".join(compare(answers, options.stores)))
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
