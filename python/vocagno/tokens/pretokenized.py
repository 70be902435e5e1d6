"""Two corpora of the same documents, kept as token ids alone: spans of both in one text."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from vocagno.tokens.token_spans import TokenizedTexts, TokenSpans
from vocagno.tokens.tokenizer_files import TokenizerError

_NAMED = 5
"""Documents that an error names."""


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
    """Spans of B whole documents that two tokenizers made ids of, for `align`.

    One side's ids tell the text of a document, the other's are proved against it: first the
    student's text, then, for documents that the teacher's ids do not give, the teacher's (of two
    texts that differ by a leading space alone, a tokenizer with a dummy prefix makes the same ids).

    Args:
        student_ids, teacher_ids: (N,) and (M,) integers, documents one after the other, special
            tokens round them or not; documents in the same order.
        student_cu_seqlens, teacher_cu_seqlens: (B + 1,) boundaries; default: one document.
        strict: whether documents whose ids tell two texts are an error; else they are not `proved`
            and their spans are empty, so that nothing in them is mapped.
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
    if mine == theirs:  # a special token beside the text that also stands in it
        return TokenizerError(
            f"document {first}: ids of {student.name} or {teacher.name} are not those of its text "
            f"{mine[:40]!r}; drop the special tokens round the documents, or keep their texts"
        )
    more = f" and {len(documents) - _NAMED} more" if len(documents) > _NAMED else ""
    return TokenizerError(
        f"documents {', '.join(map(str, documents[:_NAMED]))}{more} are not the same text on both "
        f"sides: in document {first}, from character {at}, {student.name} has "
        f"{mine[at : at + 20]!r} and {teacher.name} {theirs[at : at + 20]!r}. Is the order the "
        "same, is a document cut, does one side normalise? With strict=False they stay unmapped"
    )
