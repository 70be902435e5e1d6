"""Spans of two corpora with the same texts, both stored only as token ids."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocagno.alignment.mapping import groups
from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans, as_documents
from vocagno.tokens.tokenizer_files import TokenizerError

_NAMED = 5
"""Maximum number of documents in an error message."""
_SPACES = re.compile(rb" *")
_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, decoded by "surrogateescape"."""
_ALL = np.iinfo(np.int64).max


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
    for index in bad:
        for side in (left, right):
            side.spans[side.text(index)] = 0
            side.proved[index] = False
    return left, right


def spans_of_same_responses(
    student: TokenSpans,
    own: TokenizedTexts,
    teacher: TokenSpans,
    other: TokenizedTexts,
    *,
    strict: bool = True,
) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
    """Spans of texts in the ids of two tokenizers. A text may also be the later part of another
    one, and may be cut inside a character.

    The ids of a tokenizer with a dummy prefix do not tell whether a space at the start of a text,
    or after an added token, is in the text or is a dummy prefix. It is in the text if the other
    side has it there.

    Args: own, other: the texts of both sides, as `without_spans` gives them.
    Returns: spans of both sides, and (B,) the number of bytes that both sides of a text have. If
        one side is not UTF-8 from some byte on (a cut), this is the number before that byte, and
        the other side ends there or has U+FFFD. -1 without `strict`: texts that differ, or ids that
        do not determine their text.
    """
    try:
        return _read(student, own, teacher, other, strict=strict)
    except TokenizerError:
        if strict or student.loses or teacher.loses:
            raise
    boundaries = {"student_cu_seqlens": own.cu_seqlens, "teacher_cu_seqlens": other.cu_seqlens}
    groups(own.spans, other.spans, **boundaries)  # raises if the boundaries were the reason

    def read_one(index: int) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
        try:
            return _read(student, own[index], teacher, other[index], strict=False)
        except TokenizerError:
            return own[index], other[index], np.array([-1])

    left, right, same = zip(*map(read_one, range(len(own))), strict=True)
    concatenate = TokenizedTexts.concatenate
    return concatenate(left), concatenate(right), np.concatenate(same)


def without_spans(ids: ArrayLike, cu_seqlens: ArrayLike | None) -> TokenizedTexts:
    """Texts of ids only, with empty spans. Args: as of `spans_of_same_texts`."""
    ids, boundaries = as_documents(ids, cu_seqlens)
    spans, proved = np.zeros((len(ids), 2), np.int32), np.zeros(len(boundaries[1:]), bool)
    return TokenizedTexts(ids, spans, boundaries, proved)


def _read(
    student: TokenSpans,
    own: TokenizedTexts,
    teacher: TokenSpans,
    other: TokenizedTexts,
    *,
    strict: bool,
) -> tuple[TokenizedTexts, TokenizedTexts, NDArray[np.int64]]:
    """The result of `spans_of_same_responses`; TokenizerError if ids do not determine a text."""
    ends = own.cu_seqlens, other.cu_seqlens
    try:
        texts, left, in_left = student.bytes_with_dummy_prefixes(own.ids, ends[0])
        others, right, in_right = teacher.bytes_with_dummy_prefixes(other.ids, ends[1])
    except TokenizerError as error:
        try:  # the ids of one side may be those of the other's text all the same
            left, right = spans_of_same_texts(
                student,
                own.ids,
                teacher,
                other.ids,
                student_cu_seqlens=ends[0],
                teacher_cu_seqlens=ends[1],
                strict=strict,
            )
        except TokenizerError:
            raise error from None
        return left, right, np.where(left.proved, _ALL, -1)
    if len(texts) != len(others):
        raise ValueError(
            f"cu_seqlens: {len(texts)} texts of the student and {len(others)} of the teacher"
        )
    same = np.full(len(texts), _ALL)
    for index, (mine, theirs) in enumerate(zip(texts, others, strict=True)):
        if mine == theirs:
            continue
        places = _places(left, in_left, index), _places(right, in_right, index)
        dropped = _dummy_prefixes(mine, places[0], theirs, places[1])
        texts[index] = _without(mine, left, index, dropped[0])
        others[index] = _without(theirs, right, index, dropped[1])
        same[index] = _same_bytes(texts[index], others[index])
        if same[index] < 0 and _is_same_document(student, left, teacher, right, index):
            same[index] = _ALL
    bad = np.flatnonzero(same < 0).tolist()
    if bad and strict:
        shown = [[text.decode(errors="replace") for text in side] for side in (texts, others)]
        raise _differ(student, teacher, shown[0], shown[1], bad)
    return left, right, same


def _same_bytes(one: bytes, other: bytes) -> int:
    """The number of bytes before the first that is not UTF-8 on one side, where the other side ends
    or has U+FFFD; -1 if the texts differ otherwise."""
    if one == other:
        return _ALL
    texts = [text.decode(errors="surrogateescape") for text in (one, other)]
    same = texts[0][: _first_difference(*texts)]
    left, right = (text[len(same) :] for text in texts)
    is_cut = all(not rest or _NO_UTF8.match(rest) for rest in (left, right))
    # Byte fallback may replace the whole characters before an incomplete one, too.
    is_replaced = any(
        rest.startswith("\ufffd") and _NO_UTF8.search(cut)
        for rest, cut in ((left, right), (right, left))
    )
    return len(same.encode(errors="surrogateescape")) if is_cut or is_replaced else -1


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


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


def _without(text: bytes, tokens: TokenizedTexts, index: int, places: list[int]) -> bytes:
    """A text without the bytes at these places, which its spans then do not cover."""
    if not places:
        return text
    spans = tokens.spans[tokens.text(index)]
    spans -= np.searchsorted(places, spans).astype(spans.dtype)
    return np.delete(np.frombuffer(text, np.uint8), places).tobytes()


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


def _differ(
    student: TokenSpans,
    teacher: TokenSpans,
    texts: list[str],
    others: list[str],
    documents: list[int],
) -> TokenizerError:
    first = documents[0]
    mine, theirs = texts[first], others[first]
    at = _first_difference(mine, theirs)
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
