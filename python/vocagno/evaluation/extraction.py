"""Extracts the answer from a completion: the text that is compared with the gold answer."""

import re

from vocagno.evaluation.normalizing import normalized

NO_CHOICE = "placeholder"
"""Stands in for the letter if a completion chooses none; it never equals a gold answer."""

_CHOICE = re.compile(r"answer is \(?([a-e])")
_NUMBER = re.compile(r"-?\d*\.?\d+")


def extracted(completion: str, *, choice: bool) -> str:
    """The answer of a completion, normalised.

    Args:
        choice: whether the question is multiple choice; the answer is then A to E or `NO_CHOICE`.
    """
    if choice:
        return _letter(completion)
    answer = re.sub(r"\n\s*", "", answer_part(completion))
    return normalized(answer.removeprefix(":").removesuffix(".").removesuffix("/"))


def _letter(completion: str) -> str:
    """The first letter after "answer is". As in the harness, "the answer is below" gives B."""
    own = completion.split("Problem:", 1)[0].replace("choice is", "answer is").lower()
    found = _CHOICE.search(own)
    return found[1].upper() if found else NO_CHOICE


def answer_part(completion: str) -> str:
    """The part of a completion that states the answer, by the first rule that applies."""
    if "final answer is $" in completion and "$. I hope" in completion:
        return completion.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    for opening, answer in (
        ("boxed", _in_box),
        ("he answer is", str.strip),
        ("final answer is", str.strip),
    ):
        _, found, behind = completion.rpartition(opening)
        if found:
            return answer(behind)
    numbers = _NUMBER.findall(completion.replace(",", ""))
    return numbers[-1] if numbers else ""


def _in_box(behind: str) -> str:
    """The content of the balanced braces that begin a text, or the text before its next `$`."""
    if not behind.startswith("{"):
        return behind.split("$", 1)[0].strip()
    depth = 0
    for index, character in enumerate(behind):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return behind[1:index]
    return behind[1:]
