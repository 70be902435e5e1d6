"""Conversations as text, and the places of the answers in the text that a chat template makes.

A student and a teacher with different chat templates read different texts of a conversation. What
they share are the answers: the contents of the assistant's messages, without surrounding white
space. So the teacher's scores of the answers are moved to where the student's text has them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vocagno.data.corpus_files import CorpusError
from vocagno.data.rows import Row
from vocagno.errors import InputError
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores

Messages = Sequence[Mapping[str, Any]]
"""A conversation: mappings with a `role` and a `content`."""

_MARKER = "vocagno-answer-{}-8c1f0e57"
"""The word that stands for an answer while its place in the template is looked up."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """The text that a model reads of a conversation, and the answers in it."""

    text: str
    answers: NDArray[np.int32]
    """(A, 2) half-open bytes of the content of each assistant message, without surrounding white
    space."""


def template_options(examples: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Reads the options of the chat template of each conversation: its columns `tools` (a list, or
    JSON) and `chat_template_kwargs`, by TRL's names, if there are any."""
    options: list[dict[str, Any]] = [{} for _ in examples["messages"]]
    for name in ("chat_template_kwargs", "tools"):
        for number, value in enumerate(examples.get(name, ())):
            if option := _template_option(value, f"example {number} of its batch: `{name}`"):
                options[number] |= {"tools": option} if name == "tools" else dict(option)
    return options


def _template_option(value: Any, where: str) -> Any:
    """Reads the value of an option, which may be JSON. Raises: CorpusError for other text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise CorpusError(
            f"{where} is no JSON for a chat template ({value!r:.60}); remove the column, or fix it"
        ) from error


def conversation(messages: Messages, tokenizer: Any | None, **options: Any) -> Conversation:
    """Makes the text of a conversation, and finds the answers in it.

    Args:
        tokenizer: a tokenizer of transformers with a chat template; None, for a model without a
            template: the text is the contents, with a blank line between them.
        options: of the template (`template_options`).
    Raises: CorpusError for messages without text, and if the template changes an answer.
    """
    contents = [_content(message, number) for number, message in enumerate(messages)]
    answer_numbers = [
        number
        for number, message in enumerate(messages)
        if message.get("role") == "assistant" and contents[number].strip()
    ]
    if tokenizer is not None:
        _template(tokenizer)

    def text_of(contents: Sequence[str]) -> str:
        if tokenizer is None:
            return "\n\n".join(contents)
        pairs = zip(messages, contents, strict=True)
        replaced = [{**message, "content": content} for message, content in pairs]
        return str(tokenizer.apply_chat_template(replaced, tokenize=False, **options))

    # An answer may occur in other messages, too. A marker occurs once and shows where it stands.
    marks = {number: _MARKER.format(place) for place, number in enumerate(answer_numbers)}
    marked = [marks.get(number, content) for number, content in enumerate(contents)]
    text, between = text_of(contents), _between(text_of(marked), len(answer_numbers))
    answers = [contents[number] for number in answer_numbers]
    return Conversation(text, _answers(text, between, answers))


def learnt_tokens(
    messages: Messages, tokenizer: Any, **options: Any
) -> tuple[list[int], NDArray[np.bool_]]:
    """The ids of a conversation; for each, True if the assistant has written it.

    Args: options: of the template (`template_options`).
    Raises: InputError for a chat template that does not mark what the assistant writes.
    """
    # Looked for in the template's source: without the mark, transformers only warns, and its mask
    # says that the assistant has written nothing.
    if not _GENERATION.search(_template(tokenizer)):
        raise InputError(
            f"{tokenizer.name_or_path or 'the student'}: its chat template does not mark what the "
            "assistant writes ({% generation %}), so the tokens to learn are unknown; set a "
            "template that does (TRL's get_training_chat_template has some), or give `prompt` and "
            "`completion`"
        )
    encoded = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        **options,
    )
    return list(encoded["input_ids"]), np.array(encoded["assistant_masks"], bool)


def _template(tokenizer: Any) -> str:
    """The chat template of a tokenizer. Raises: InputError if it has none."""
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:  # no template, or several without a default
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise InputError(
            f"{name}: has no chat template; set `tokenizer.chat_template`, or give `prompt` and "
            "`completion`"
        ) from error


def _content(message: Mapping[str, Any], number: int) -> str:
    """The text of a message. Raises: CorpusError for another content."""
    content = message.get("content")
    if not isinstance(content, str):
        raise CorpusError(
            f"message {number}: expected a `content` of text, got {type(content).__name__}; "
            "images and calls of tools are not supported"
        )
    return content


def _between(text: str, count: int) -> list[str]:
    """The texts that a template writes before, between and after the answers, A + 1 of them."""
    parts = []
    for place in range(count):
        before, marker, text = text.partition(_MARKER.format(place))
        if not marker:
            raise CorpusError(f"answer {place} is not in what the chat template makes of it")
        parts.append(before)
    return [*parts, text]


def _answers(text: str, between: Sequence[str], answers: Sequence[str]) -> NDArray[np.int32]:
    """(A, 2) bytes of the answers, of which templates may remove white space at the ends."""
    spans, at = [], len(between[0])
    begins_the_same = text.startswith(between[0])
    for place, (answer, after) in enumerate(zip(answers, between[1:], strict=True)):
        is_last = place == len(answers) - 1
        # As it is first: a template that keeps white space must not be taken for one that strips
        # it.
        for written in (answer, answer.strip(), answer.lstrip(), answer.rstrip()):
            end = at + len(written)
            # `after` is compared, too: an answer that is the beginning of a longer text is not that
            # answer.
            is_here = begins_the_same and text.startswith(written + after, at)
            if is_here and (not is_last or end + len(after) == len(text)):
                break
        else:
            raise CorpusError(
                f"the chat template changes answer {place}, {answer[:40]!r}, or what is around "
                "it, by what it says, so its place in the text is unknown; use another template, "
                "or `prompt` and `completion`"
            )
        # White space around an answer is omitted on both sides, as one template may strip it.
        first = at + len(written) - len(written.lstrip())
        start = len(text[:first].encode())
        spans.append((start, start + len(written.strip().encode())))
        at = end + len(after)
    return np.array(spans, np.int32).reshape(-1, 2)


def limit_text_to(row: Row, parts: NDArray[np.int32]) -> Row:
    """A row whose tokens cover text only if they share some with one of these parts.

    So the text that templates write does not count as text that the teacher fails to cover.

    Args:
        parts: (P, 2) bytes, in order.
    """
    starts, ends = row.spans.T
    after = np.searchsorted(parts[:, 1], starts, side="right")
    begins = np.append(parts[:, 0], np.iinfo(np.int32).max)[after]
    return replace(row, spans=np.stack([starts, np.where(begins < ends, ends, starts)], 1))


def move_answer_scores(
    scores: DocumentScores, teacher_answers: NDArray[np.int32], student_answers: NDArray[np.int32]
) -> tuple[DocumentScores, NDArray[np.int32]]:
    """Moves the teacher's tokens of the answers to the bytes of the answers in the student's text.

    A token that also covers text around an answer has no loss. The text that the student's template
    writes before an answer becomes one token without a loss. So a token of the student that covers
    a part of it and of an answer is in a group without a loss.

    Args: teacher_answers, student_answers: (A, 2) bytes of the same answers in both texts.
    Returns: the moved scores; (A, 2) the bytes of each answer from the first to the last token that
        covers nothing else.
    """
    spans, losses, before = [np.empty((0, 2), np.int32)], [np.empty(0, np.float16)], 0
    compared = student_answers.copy()
    # Rows in `scores` of the tokens. -1 is the row without candidates that is appended below.
    places = [np.empty(0, np.intp)]
    for number, ((start, end), (begins, ends)) in enumerate(
        zip(teacher_answers.tolist(), student_answers.tolist(), strict=True)
    ):
        spans.append(np.array([[before, begins]], np.int32))
        losses.append(np.full(1, np.nan, np.float16))
        before = ends
        inside = np.clip(scores.spans, start, end)
        shared = np.flatnonzero(inside[:, 0] < inside[:, 1])
        is_whole = (inside[shared] == scores.spans[shared]).all(1)
        spans.append((inside[shared] + (begins - start)).astype(np.int32))
        if is_whole.any():
            compared[number] = spans[-1][is_whole][[0, -1], [0, 1]]
        losses.append(np.where(is_whole, scores.nll[shared], np.float16(np.nan)))
        places += [np.array([-1]), np.where(is_whole, shared, -1)]
    # Tokens stand before the first answer, so none of these is the first of its text.
    nll = np.concatenate(losses)
    candidates = scores.candidates
    if candidates is not None:
        nothing = Candidates.none(
            1,
            candidates.ids.shape[1],
            is_sampled=candidates.is_sampled,
            has_entropy=candidates.entropy is not None,
        )
        candidates = Candidates.concatenate([candidates, nothing])[np.concatenate(places)]
    spans_of_all = np.concatenate(spans)
    moved = replace(scores, spans=spans_of_all, nll=nll, candidates=candidates, first_row=1)
    return moved, compared
