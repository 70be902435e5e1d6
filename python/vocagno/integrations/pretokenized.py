"""Finds the spans of two corpora with the same texts, both stored only as token ids."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.mapping import groups
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans, as_documents
from vocagno.tokens.tokenizer_files import TokenizerError

_MOST_NAMED = 5
"""The most documents that an error message names."""
_SPACES = re.compile(rb" *")
_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, decoded by "surrogateescape"."""
_ALL = np.iinfo(np.int64).max
"""A number of equal bytes that stands for the whole text, whatever its size is."""


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
    """Finds the spans of B whole documents in the ids of two tokenizers, for `align`.

    The text of a document is decoded from one side's ids and verified with the other's. The
    student's text is tried first, then the teacher's if the teacher's ids do not match. (A
    tokenizer with a dummy prefix gives the same ids for two texts that differ only by a leading
    space.)

    Args:
        student_ids, teacher_ids: (N,) and (M,) integers, concatenated documents in the same order,
            with or without special tokens around them.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) boundaries; default: one document.
        strict: True makes documents whose two texts differ an error. Otherwise they are not
            `proved` and their spans are empty, so none of their tokens is mapped.
    Raises: TokenizerError for such documents, which it names (another order, one of them cut or
        normalised), and for ids that `TokenSpans.decode` refuses; ValueError for unequal numbers
        of documents.
    """
    texts = student.decode(student_ids, student_cu_seqlens)
    teacher_texts = texts
    right = teacher.from_ids(teacher_ids, teacher_cu_seqlens, texts=texts)
    if not right.proved.all():
        teacher_texts = teacher.decode(teacher_ids, teacher_cu_seqlens)
        left = student.from_ids(student_ids, student_cu_seqlens, texts=teacher_texts)
        for index in np.flatnonzero(~right.proved & left.proved).tolist():
            texts[index] = teacher_texts[index]
        right = teacher.from_ids(teacher_ids, teacher_cu_seqlens, texts=texts)
    left = student.from_ids(student_ids, student_cu_seqlens, texts=texts)
    bad = np.flatnonzero(~(left.proved & right.proved)).tolist()
    if bad and strict:
        raise _difference(student, teacher, texts, teacher_texts, bad)
    for index in bad:
        for side in (left, right):
            # Empty spans map to nothing: the document stays in the batch, and none of its tokens
            # has a loss.
            side.spans[side.text(index)] = 0
            side.proved[index] = False
    return left, right


def spans_of_same_responses(
    student: TokenSpans,
    left: TokenizedTexts,
    teacher: TokenSpans,
    right: TokenizedTexts,
    *,
    strict: bool = True,
) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
    """Finds the spans of texts in the ids of two tokenizers.

    A text may also be the later part of another one, and may be cut inside a character.

    The ids of a tokenizer with a dummy prefix do not tell whether a space at the start of a text,
    or after an added token, is in the text or is a dummy prefix. It is in the text if the other
    side has it there.

    Args: left, right: the texts in the student's and in the teacher's ids (`without_spans`).
    Returns: spans of both sides, and (B,) the number of bytes that both sides of a text have. If
        one side is not UTF-8 from some byte on (a cut), this is the number before that byte, and
        the other side ends there or has U+FFFD. -1 without `strict`: texts that differ, or ids that
        do not determine their text.
    """
    try:
        return _find_spans(student, left, teacher, right, strict=strict)
    except TokenizerError:
        # A tokenizer that loses text is refused for all texts; reading them one by one would not
        # help.
        if strict or student.loses or teacher.loses:
            raise
    boundaries = {"student_cu_seqlens": left.cu_seqlens, "teacher_cu_seqlens": right.cu_seqlens}
    groups(left.spans, right.spans, **boundaries)  # raises if the boundaries were the reason

    def read_one(index: int) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
        try:
            return _find_spans(student, left[index], teacher, right[index], strict=False)
        except TokenizerError:
            return left[index], right[index], np.array([-1])

    # One text after the other, so that only those whose ids determine no text are lost.
    all_left, all_right, same = zip(*map(read_one, range(len(left))), strict=True)
    concatenate = TokenizedTexts.concatenate
    return concatenate(all_left), concatenate(all_right), np.concatenate(same)


def without_spans(ids: ArrayLike, cu_seqlens: ArrayLike | None) -> TokenizedTexts:
    """Makes texts of ids only, with empty spans, from (n,) ids and the boundaries of texts."""
    ids, boundaries = as_documents(ids, cu_seqlens)
    spans, proved = np.zeros((len(ids), 2), np.int32), np.zeros(len(boundaries[1:]), bool)
    return TokenizedTexts(ids, spans, boundaries, proved)


def _find_spans(
    student: TokenSpans,
    student_side: TokenizedTexts,
    teacher: TokenSpans,
    teacher_side: TokenizedTexts,
    *,
    strict: bool,
) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
    """The result of `spans_of_same_responses`; TokenizerError if ids do not determine a text."""
    student_ids, student_cu_seqlens = student_side.ids, student_side.cu_seqlens
    teacher_ids, teacher_cu_seqlens = teacher_side.ids, teacher_side.cu_seqlens
    try:
        texts, left, in_left = student.bytes_with_dummy_prefixes(student_ids, student_cu_seqlens)
        teacher_texts, right, in_right = teacher.bytes_with_dummy_prefixes(
            teacher_ids, teacher_cu_seqlens
        )
    except TokenizerError as error:
        try:  # the ids of one side may be those of the other's text all the same
            left, right = spans_of_same_texts(
                student,
                student_ids,
                teacher,
                teacher_ids,
                student_cu_seqlens=student_cu_seqlens,
                teacher_cu_seqlens=teacher_cu_seqlens,
                strict=strict,
            )
        except TokenizerError:
            raise error from None
        return left, right, np.where(left.proved, _ALL, -1)
    if len(texts) != len(teacher_texts):
        raise ValueError(
            f"cu_seqlens: {len(texts)} texts of the student and {len(teacher_texts)} of the teacher"
        )
    same = np.full(len(texts), _ALL)
    for index, (text, teacher_text) in enumerate(zip(texts, teacher_texts, strict=True)):
        if text == teacher_text:
            continue
        places = _places(left, in_left, index), _places(right, in_right, index)
        dropped = _dummy_prefixes(text, places[0], teacher_text, places[1])
        texts[index] = _without(text, left, index, dropped[0])
        teacher_texts[index] = _without(teacher_text, right, index, dropped[1])
        same[index] = _same_bytes(texts[index], teacher_texts[index])
        if same[index] < 0 and _is_same_document(student, left, teacher, right, index):
            same[index] = _ALL
    bad = np.flatnonzero(same < 0).tolist()
    if bad and strict:
        printable, teacher_printable = (
            [text.decode(errors="replace") for text in side] for side in (texts, teacher_texts)
        )
        raise _difference(student, teacher, printable, teacher_printable, bad)
    return left, right, same


def _same_bytes(text: bytes, teacher_text: bytes) -> int:
    """The number of bytes before the first one that is not UTF-8 on one side.

    The other side must end there or have U+FFFD; -1 if the texts differ otherwise.
    """
    if text == teacher_text:
        return _ALL
    texts = [side.decode(errors="surrogateescape") for side in (text, teacher_text)]
    # "surrogateescape" makes one character of each byte that is not UTF-8: it differs from any
    # character of the other side, and the characters before it can be counted.
    same = texts[0][: _first_difference(*texts)]
    left, right = (side[len(same) :] for side in texts)
    is_cut = all(not rest or _NO_UTF8.match(rest) for rest in (left, right))
    # Byte fallback may replace the whole characters before an incomplete one, too.
    is_replaced = any(
        rest.startswith("\ufffd") and _NO_UTF8.search(cut)
        for rest, cut in ((left, right), (right, left))
    )
    return len(same.encode(errors="surrogateescape")) if is_cut or is_replaced else -1


def _first_difference(text: str, teacher_text: str) -> int:
    """The number of equal characters at the start of two texts."""
    pairs = enumerate(zip(text, teacher_text, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(teacher_text)))


def _places(tokens: TokenizedTexts, may_be_prefix: NDArray[np.bool_], index: int) -> list[int]:
    """The places of the bytes of a text that may be dummy prefixes, ascending."""
    rows = tokens.text(index)
    places: list[int] = tokens.spans[rows][may_be_prefix[rows], 0].tolist()
    return places


def _dummy_prefixes(
    text: bytes, places: list[int], teacher_text: bytes, teacher_places: list[int]
) -> tuple[list[int], list[int]]:
    """The places, on each side, of the spaces that are dummy prefixes.

    These are the spaces that the other text, which is otherwise the same, does not have. Places
    come in ascending order.
    """
    dropped: list[int] = []
    teacher_dropped: list[int] = []
    left, right = places[::-1], teacher_places[::-1]
    beyond = len(text) + len(teacher_text) + 1
    while left or right:
        # Both sides are compared at places in the text that both are without their dummy prefixes.
        next_place = left[-1] - len(dropped) if left else beyond
        next_teacher_place = right[-1] - len(teacher_dropped) if right else beyond
        place = min(next_place, next_teacher_place)
        surplus = _spaces(text, place + len(dropped))
        surplus -= _spaces(teacher_text, place + len(teacher_dropped))
        # A space may be a dummy prefix on both sides at once: then neither has a surplus, and both
        # stay.
        if next_place == place:
            at = left.pop()
            if surplus > 0:
                dropped.append(at)
        if next_teacher_place == place:
            at = right.pop()
            if surplus < 0:
                teacher_dropped.append(at)
    return dropped, teacher_dropped


def _spaces(text: bytes, place: int) -> int:
    """The number of consecutive spaces from a place on."""
    run = _SPACES.match(text, place)
    return run.end() - place if run else 0


def _without(text: bytes, tokens: TokenizedTexts, index: int, places: list[int]) -> bytes:
    """Removes the bytes at these places from a text, and moves its spans accordingly."""
    if not places:
        return text
    spans = tokens.spans[tokens.text(index)]
    # In place, in the caller's array: spans and text lose the same bytes.
    spans -= np.searchsorted(places, spans).astype(spans.dtype)
    return np.delete(np.frombuffer(text, np.uint8), places).tobytes()


def _is_same_document(
    student: TokenSpans,
    left: TokenizedTexts,
    teacher: TokenSpans,
    right: TokenizedTexts,
    index: int,
) -> bool:
    """True if a text is a whole document that only the ids of one side tell.

    The ids of the other side have special tokens for what is written in it. The spans of both sides
    are then set to those of the document.
    """
    rows, teacher_rows = left.text(index), right.text(index)
    try:
        student_document, teacher_document = spans_of_same_texts(
            student, left.ids[rows], teacher, right.ids[teacher_rows], strict=False
        )
    except TokenizerError:
        return False
    if not student_document.proved.all():
        return False
    left.spans[rows] = student_document.spans
    right.spans[teacher_rows] = teacher_document.spans
    return True


def _difference(
    student: TokenSpans,
    teacher: TokenSpans,
    texts: list[str],
    teacher_texts: list[str],
    documents: list[int],
) -> TokenizerError:
    """The error that names the documents whose texts differ, and shows where the first one does."""
    first = documents[0]
    text, teacher_text = texts[first], teacher_texts[first]
    at = _first_difference(text, teacher_text)
    # The texts are equal, and one side's ids are not those of the text: a special token outside
    # the text is also written in it.
    if text == teacher_text:
        return TokenizerError(
            f"document {first}: ids of {student.name} or {teacher.name} are not those of its text "
            f"{text[:40]!r}; drop the special tokens around the documents, or keep their texts"
        )
    names = ", ".join(map(str, documents[:_MOST_NAMED]))
    rest = f" and {len(documents) - _MOST_NAMED} more" if len(documents) > _MOST_NAMED else ""
    return TokenizerError(
        f"documents {names}{rest} are not the same text on both sides: in document {first}, from "
        f"character {at}, {student.name} has {text[at : at + 20]!r} and {teacher.name} "
        f"{teacher_text[at : at + 20]!r}. Is the order the same, is a document cut, does one side "
        "normalise? With strict=False they stay unmapped"
    )
