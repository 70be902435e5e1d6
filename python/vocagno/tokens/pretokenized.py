"""Spans of two corpora with the same texts, both stored only as token ids."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError

_NAMED = 5
"""Maximum number of documents in an error message."""
_SPACES = re.compile(rb" *")


def spans_of_same_texts(
    student: TokenSpans,
    student_ids: ArrayLike,
    teacher: TokenSpans,
    teacher_ids: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
    strict: bool = True,
) -> tuple[TokenizedTexts, TokenizedTexts]:
    """Spans of B whole documents in the ids of two tokenizers, for `align`.

    The text of a document is decoded from one side's ids and verified with the other's. The
    student's text is tried first, then the teacher's if the teacher's ids do not match. (A
    tokenizer with a dummy prefix gives the same ids for two texts that differ only by a leading
    space.)

    Args:
        student_ids, teacher_ids: (N,) and (M,) integers, concatenated documents in the same order,
            with or without special tokens around them.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) boundaries; default: one document.
        strict: whether documents whose two texts differ are an error. Otherwise they are not
            `proved` and their spans are empty, so none of their tokens is mapped.
    Raises: TokenizerError for such documents (another order, one of them cut or normalised),
        naming them; and as `TokenSpans.decode`. ValueError for unequal numbers of documents.
    """
    texts = student.decode(student_ids, student_cu_seqlens)
    others = texts
    right = teacher.from_ids(teacher_ids, teacher_cu_seqlens, texts=texts)
    if not right.proved.all():
        others = teacher.decode(teacher_ids, teacher_cu_seqlens)
        left = student.from_ids(student_ids, student_cu_seqlens, texts=others)
        for index in np.flatnonzero(~right.proved & left.proved).tolist():
            texts[index] = others[index]
        right = teacher.from_ids(teacher_ids, teacher_cu_seqlens, texts=texts)
    left = student.from_ids(student_ids, student_cu_seqlens, texts=texts)
    bad = np.flatnonzero(~(left.proved & right.proved)).tolist()
    if bad and strict:
        raise _differ(student, teacher, texts, others, bad)
    _unmap(left, right, bad)
    return left, right


def spans_of_same_responses(
    student: TokenSpans,
    student_ids: ArrayLike,
    teacher: TokenSpans,
    teacher_ids: ArrayLike,
    *,
    student_cu_seqlens: ArrayLike | None = None,
    teacher_cu_seqlens: ArrayLike | None = None,
    strict: bool = True,
) -> tuple[TokenizedTexts, TokenizedTexts]:
    """As `spans_of_same_texts`, for texts that may also be the later part of others.

    The ids of a tokenizer with a dummy prefix do not tell whether a space at the start of a text,
    or after an added token, is in the text or is a dummy prefix. It is in the text if the other
    side has it there.
    """
    as_documents = partial(
        spans_of_same_texts,
        student,
        student_ids,
        teacher,
        teacher_ids,
        student_cu_seqlens=student_cu_seqlens,
        teacher_cu_seqlens=teacher_cu_seqlens,
        strict=strict,
    )
    if not (student.has_dummy_prefix or teacher.has_dummy_prefix):
        return as_documents()
    try:
        texts, left, in_left = student.texts_with_dummy_prefixes(student_ids, student_cu_seqlens)
        others, right, in_right = teacher.texts_with_dummy_prefixes(teacher_ids, teacher_cu_seqlens)
    except TokenizerError as error:
        try:  # the ids of one side may be those of the other's text all the same
            return as_documents()
        except TokenizerError:
            raise error from None
    if len(texts) != len(others):
        raise ValueError(
            f"cu_seqlens: {len(texts)} texts of the student and {len(others)} of the teacher"
        )
    bad = []
    for index, (mine, theirs) in enumerate(zip(texts, others, strict=True)):
        if mine == theirs:
            continue
        sides = (mine, left, in_left), (theirs, right, in_right)
        places = [_places(tokens, may_be, index) for _, tokens, may_be in sides]
        dropped = _dummy_prefixes(mine.encode(), places[0], theirs.encode(), places[1])
        texts[index] = _without(mine, left, index, dropped[0])
        others[index] = _without(theirs, right, index, dropped[1])
        is_same = texts[index] == others[index]
        if not is_same and not _is_same_document(student, left, teacher, right, index):
            bad.append(index)
    if bad and strict:
        raise _differ(student, teacher, texts, others, bad)
    _unmap(left, right, bad)
    return left, right


def _places(tokens: TokenizedTexts, may_be: NDArray[np.bool_], index: int) -> list[int]:
    """The bytes of a text that may be dummy prefixes, rising."""
    rows = tokens.text(index)
    places: list[int] = tokens.spans[rows][may_be[rows], 0].tolist()
    return places


def _dummy_prefixes(
    one: bytes, places: list[int], other: bytes, other_places: list[int]
) -> tuple[list[int], list[int]]:
    """Which of the spaces at these places are dummy prefixes: those that the other text, which is
    the same otherwise, has not."""
    found: tuple[list[int], list[int]] = ([], [])
    left, right, beyond = places[::-1], other_places[::-1], len(one) + len(other) + 1
    while left or right:
        # The next place in the text that both are without their dummy prefixes.
        mine = left[-1] - len(found[0]) if left else beyond
        theirs = right[-1] - len(found[1]) if right else beyond
        place = min(mine, theirs)
        more = _spaces(one, place + len(found[0])) - _spaces(other, place + len(found[1]))
        if mine == place:
            at = left.pop()
            found[0].extend([at] if more > 0 else [])
        if theirs == place:
            at = right.pop()
            found[1].extend([at] if more < 0 else [])
    return found


def _spaces(text: bytes, place: int) -> int:
    """The number of spaces from a place on."""
    run = _SPACES.match(text, place)
    return run.end() - place if run else 0


def _without(text: str, tokens: TokenizedTexts, index: int, places: list[int]) -> str:
    """A text without the bytes at these places, which its spans then do not cover."""
    if not places:
        return text
    spans = tokens.spans[tokens.text(index)]
    spans -= np.searchsorted(places, spans).astype(spans.dtype)
    return np.delete(np.frombuffer(text.encode(), np.uint8), places).tobytes().decode()


def _is_same_document(
    student: TokenSpans,
    left: TokenizedTexts,
    teacher: TokenSpans,
    right: TokenizedTexts,
    index: int,
) -> bool:
    """Whether a text is a whole document that only the ids of one side tell: the other's have
    special tokens for what is written in it. Its spans are then those of that document."""
    rows, others = left.text(index), right.text(index)
    try:
        own, other = spans_of_same_texts(
            student, left.ids[rows], teacher, right.ids[others], strict=False
        )
    except TokenizerError:
        return False
    if not own.proved.all():
        return False
    left.spans[rows], right.spans[others] = own.spans, other.spans
    return True


def _unmap(left: TokenizedTexts, right: TokenizedTexts, documents: list[int]) -> None:
    for index in documents:
        for side in (left, right):
            side.spans[side.text(index)] = 0
            side.proved[index] = False


def _differ(
    student: TokenSpans,
    teacher: TokenSpans,
    texts: list[str],
    others: list[str],
    documents: list[int],
) -> TokenizerError:
    first = documents[0]
    mine, theirs = texts[first], others[first]
    at = next(
        (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
        min(len(mine), len(theirs)),
    )
    if mine == theirs:  # a special token outside the text that is also in the text
        return TokenizerError(
            f"document {first}: ids of {student.name} or {teacher.name} are not those of its text "
            f"{mine[:40]!r}; drop the special tokens around the documents, or keep their texts"
        )
    more = f" and {len(documents) - _NAMED} more" if len(documents) > _NAMED else ""
    return TokenizerError(
        f"documents {', '.join(map(str, documents[:_NAMED]))}{more} are not the same text on both "
        f"sides: in document {first}, from character {at}, {student.name} has "
        f"{mine[at : at + 20]!r} and {teacher.name} {theirs[at : at + 20]!r}. Is the order the "
        "same, is a document cut, does one side normalise? With strict=False they stay unmapped"
    )
