"""Compares models by what they lose on the gold answers of questions such as GSM8K's.

    python -m research.gold_answers QUESTIONS.jsonl --write TEXT.jsonl [--most 300]
    vocagno score TEXT.jsonl --teacher.model MODEL --out STORE      # for each model
    python -m research.gold_answers QUESTIONS.jsonl STORE STORE ... [--most 300]

Models of this size generate next to no right answers, so that counting these would tell nothing.
Each model is given question and answer, and has two measures: its loss on the answer in nats a
byte, and the share of the questions whose final number it gives more than half of the probability
after the gold reasoning (a greedy decoder would then write the number). Each line of QUESTIONS has
`question` and `answer`, and the answer ends in `#### NUMBER`.
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
from vocagno.evaluation.benchmarks import json_records
from vocagno.system.files import atomic_file
from vocagno.teacher.score_store import ScoresOfTexts, ScoreStore


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """A question with its answer, as one text, and where the answer's parts begin."""

    text: str
    answer_start: int
    """The answer's first byte in the text's UTF-8."""
    number_start: int
    """The first byte of the final number, which ends one byte before the end of the text."""

    @classmethod
    def of(cls, question: str, answer: str) -> "GoldAnswer":
        """Joins a question and its answer in the wording of the usual few-shot prompts.

        Calculator annotations (`<<16-3=13>>`) are omitted: no model meets them elsewhere.
        Raises: InputError for an answer without a final number.
        """
        reasoning, mark, number = re.sub(r"<<[^>]*>>", "", answer).rpartition("####")
        number = number.strip()
        if not mark or not number:
            raise InputError(f"the answer to {question[:40]!r} does not end in '#### NUMBER'")
        asked = f"Question: {question.strip()}\nAnswer:"
        reasoned = f"{asked} {reasoning.strip()} The answer is "
        starts = (len(part.encode()) for part in (asked, reasoned))
        return cls(f"{reasoned}{number}.", *starts)

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
    def of(cls, answers: Sequence[GoldAnswer], store: Path) -> "AnswerLosses":
        """Reads the losses from a store of the texts' scores.
        Raises: InputError for a text, or a token of an answer, without a loss."""
        losses = []
        scored = ScoresOfTexts(ScoreStore(store)).find([answer.text for answer in answers])
        for answer, scores in zip(answers, scored, strict=True):
            starts, ends = scores.spans.T
            is_number = (ends > answer.number_start) & (starts < len(answer.text.encode()) - 1)
            parts = (scores.nll[ends > answer.answer_start], scores.nll[is_number])
            if scores.missing or not all(part.size and np.isfinite(part).all() for part in parts):
                reason = scores.missing or "a token of the answer has no loss"
                raise InputError(f"{store}: has no scores of {answer.text[:50]!r}: {reason}")
            losses.append([part.sum(dtype=float) for part in parts])
        return cls(*np.array(losses).T)


def read_answers(path: Path, most: int | None = None) -> list[GoldAnswer]:
    """Reads the first questions of a file, at most `most`; None for all.
    Raises: InputError for a file without questions, and for a line without an answer."""
    answers = []
    for where, record in islice(json_records(path), most):
        question, answer = (record.get(name) for name in ("question", "answer"))
        if not isinstance(question, str) or not isinstance(answer, str):
            raise InputError(f"{where}: needs `question` and `answer`, both text")
        answers.append(GoldAnswer.of(question, answer))
    require(bool(answers), f"{path}: has no questions")
    return answers


def mean_per_byte(loss_Q: NDArray[Any], answers: Sequence[GoldAnswer]) -> tuple[float, float]:
    """Returns the nats a byte of all answers together, and the standard error over questions.

    The error is that of a ratio of sums (W. G. Cochran, Sampling Techniques, 1977, Eq. 6.13).
    """
    bytes_Q = np.array([answer.num_bytes for answer in answers])
    mean = float(loss_Q.sum() / bytes_Q.sum())
    count = len(answers)
    squares = float(((loss_Q - mean * bytes_Q) ** 2).sum())
    return mean, (squares * count / max(1, count - 1)) ** 0.5 / float(bytes_Q.sum())


def compare(answers: Sequence[GoldAnswer], stores: Sequence[Path]) -> Iterator[str]:
    """Yields the rows of a table in Markdown, whose differences are from the first store."""
    losses = [AnswerLosses.of(answers, store) for store in stores]
    yield "| model | answers, nats a byte | difference from the first | numbers above one half |"
    yield "|---|--:|--:|--:|"
    for store, model in zip(stores, losses, strict=True):
        mean, error = mean_per_byte(model.answer_Q, answers)
        further, error_of_it = mean_per_byte(model.answer_Q - losses[0].answer_Q, answers)
        difference = "-" if model is losses[0] else f"{further:+.4f} ± {error_of_it:.4f}"
        share = float((model.number_Q < np.log(2)).mean())
        yield f"| {store.name} | {mean:.4f} ± {error:.4f} | {difference} | {share:.1%} |"


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
        answers = read_answers(options.questions, options.most)
        if options.write:
            lines = (json.dumps({"text": answer.text}) + "\n" for answer in answers)
            with atomic_file(options.write) as file:
                file.write("".join(lines).encode())
        else:
            print("\n".join(compare(answers, options.stores)))
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
