"""The replacement of rLLM's alignment: its formula, for any two tokenizers."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from examples import load_example

example = load_example("rllm_alignment")
REASONING, CONTENT = "17 and 25: naïve 😊 sum", " So it is\n42 = 17 + 25 €."
COMPLETION = f"<think>{REASONING}</think>{CONTENT}<end>"


@pytest.fixture(
    params=[("byte-level", "byte-level-nfc"), ("llama", "byte-level"), ("byte-level", "llama")],
    ids="-".join,
)
def sides(request, tokenizers):
    """Both tokenizers; ids and bytes of each token of the completion."""
    read = []
    for name in request.param:
        ids = tokenizers[name].encode(COMPLETION, add_special_tokens=False).ids
        read.append((tokenizers[name], ids))
    return read


def logprobs(ids, seed):
    return np.log(np.random.default_rng(seed).uniform(0.01, 1, len(ids))).tolist()


def aligned(sides, teacher_logprobs=None, parts=(REASONING, CONTENT)):
    (student, ids), (teacher, teacher_ids) = sides
    teacher_scores = logprobs(teacher_ids, 1) if teacher_logprobs is None else teacher_logprobs
    return example.align_teacher_logprobs(
        ids, student, teacher_ids, teacher, teacher_scores, logprobs(ids, 0), *parts
    )


def part_bytes(tokenizer, ids):
    """For each token, which bytes of which part it has, by a walk over its bytes."""
    pieces = [example.pieces_of(tokenizer)[index] for index in ids]
    text = b"".join(pieces)
    named = {}
    for part in (REASONING, CONTENT):
        start = text.index(part.encode())
        named |= {start + at: (part, at) for at in range(len(part.encode()))}
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return [
        {named[at] for at in range(end - len(piece), end) if at in named}
        for piece, end in zip(pieces, ends, strict=True)
    ]


def test_a_loss_is_divided_among_the_tokens_that_share_it(sides):
    (student_tokenizer, ids), (other, teacher_ids) = sides
    student, teacher = part_bytes(student_tokenizer, ids), part_bytes(other, teacher_ids)
    teacher_logprobs, expected = logprobs(teacher_ids, 1), logprobs(ids, 0)
    for row, text in enumerate(student):
        if met := [at for at, other_text in enumerate(teacher) if text & other_text]:
            uses = [sum(bool(token_bytes & teacher[at]) for token_bytes in student) for at in met]
            expected[row] = sum(teacher_logprobs[at] / n for at, n in zip(met, uses, strict=True))
    np.testing.assert_allclose(aligned(sides), expected, rtol=1e-12)
    assert sum(map(bool, student)) > 20
    whole = sum(value for value, text in zip(teacher_logprobs, teacher, strict=True) if text)
    total = sum(v for v, text in zip(aligned(sides), student, strict=True) if text)
    assert total == pytest.approx(whole)  # every log-probability of the text, and once


def test_tokens_after_a_cut_of_the_teacher_keep_their_own(sides):
    (_, ids), (_, teacher_ids) = sides
    whole, cut = aligned(sides), aligned(sides, logprobs(teacher_ids, 1)[:20])
    first = next(row for row, pair in enumerate(zip(whole, cut, strict=True)) if pair[0] != pair[1])
    assert first > 5
    assert cut[first:] == logprobs(ids, 0)[first:]


def test_a_text_that_is_not_there_gives_no_signal(sides, caplog):
    assert aligned(sides, parts=("", "another answer")) == logprobs(sides[0][1], 0)
    assert "no signal" in caplog.text
    with pytest.raises(ValueError, match="expected text in one of them"):
        aligned(sides, parts=("", ""))


def test_install_replaces_both_names_of_the_function(monkeypatch):
    """Sees a name under which rLLM would still call its own function."""
    inner = SimpleNamespace(align_teacher_logprobs=None)
    distill = SimpleNamespace(align_teacher_logprobs=None, alignment=inner)
    trainer = SimpleNamespace(distill=distill)
    named = {"rllm": SimpleNamespace(trainer=trainer), "rllm.trainer": trainer}
    for name, module in (named | {"rllm.trainer.distill": distill}).items():
        monkeypatch.setitem(sys.modules, name, module)
    example.install()
    assert distill.align_teacher_logprobs is inner.align_teacher_logprobs
    assert inner.align_teacher_logprobs is example.align_teacher_logprobs
