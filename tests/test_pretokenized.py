"""Documents kept as ids alone: their text, their spans, and two corpora of the same documents."""

import numpy as np
import pytest

import vocagno
from conftest import HARD_TEXTS, LOSSLESS, TEXTS, shared, shared_texts
from vocagno import TokenizerError, TokenSpans, spans_of_same_texts

ALL_TEXTS = TEXTS[:6] + HARD_TEXTS
KEPT = [text for text in ALL_TEXTS if not any(x in text for x in ("<s>", "<unk>", "<0x", "▁"))]
"""What ids can tell: not whether a `▁` was a space, or a special token stood in the text."""
AMBIGUOUS = ("metaspace-always", "metaspace-first", "byte-level-prefix-space")
"""Put a space before a text where there is none: "a" and " a" are the same ids."""


def same_but_for_a_leading_space(found, text):
    return found == text or (text.startswith(" ") and found == text[1:])


@pytest.mark.parametrize("family", LOSSLESS)
def test_ids_tell_the_text(tokenizers, family):
    spans = TokenSpans(tokenizers[family])
    texts = KEPT
    tokens = spans.encode(texts)
    assert tokens.proved.all()
    found = spans.decode(tokens.ids, tokens.cu_seqlens)
    if family in AMBIGUOUS:
        assert all(map(same_but_for_a_leading_space, found, texts))
    else:
        assert found == texts
        again = spans.from_ids(tokens.ids, tokens.cu_seqlens)
        np.testing.assert_array_equal(again.spans, tokens.spans)
    given = spans.from_ids(tokens.ids, tokens.cu_seqlens, texts=texts)
    np.testing.assert_array_equal(given.spans, tokens.spans)


def test_special_tokens_round_a_document_have_empty_spans(tokenizers):
    spans = TokenSpans(tokenizers["llama"])
    bare = spans.encode(["ab"])
    ids = [1, *bare.ids, 2]  # BOS, EOS
    found = spans.from_ids(ids)
    assert spans.decode(ids) == ["ab"]
    assert found.spans[[0, -1]].tolist() == [[0, 0], [2, 2]]
    np.testing.assert_array_equal(found.spans[1:-1], bare.spans)


def test_ids_of_another_text_are_not_proved(tokenizers):
    spans = TokenSpans(tokenizers["byte-level"])
    ids = spans.encode(["one", "two"])
    found = spans.from_ids(ids.ids, ids.cu_seqlens, texts=["one", "too"])
    assert found.proved.tolist() == [True, False]
    assert not found.spans[found.text(1)].any()


@pytest.mark.parametrize("student", LOSSLESS)
@pytest.mark.parametrize("teacher", LOSSLESS)
def test_two_corpora_of_ids_are_aligned_as_their_texts_are(tokenizers, student, teacher):
    sides = TokenSpans(tokenizers[student]), TokenSpans(tokenizers[teacher])
    texts = KEPT
    if student in AMBIGUOUS and teacher in AMBIGUOUS:
        texts = [text for text in texts if not text.startswith(" ")]
    tokens = [side.encode(texts) for side in sides]
    left, right = spans_of_same_texts(
        sides[0], tokens[0].ids, sides[1], tokens[1].ids,
        student_cu_seqlens=tokens[0].cu_seqlens, teacher_cu_seqlens=tokens[1].cu_seqlens,
    )  # fmt: skip
    assert left.proved.all()
    assert right.proved.all()
    np.testing.assert_array_equal(left.spans, tokens[0].spans)
    np.testing.assert_array_equal(right.spans, tokens[1].spans)


def test_documents_that_differ_are_named_or_left_unmapped(tokenizers):
    student, teacher = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    left = student.encode(["first one", "second one", "third"])
    right = teacher.encode(["first one", "second two", "third"])
    arguments = (student, left.ids, teacher, right.ids)
    cu = {"student_cu_seqlens": left.cu_seqlens, "teacher_cu_seqlens": right.cu_seqlens}
    message = r"documents 1 are not the same.*document 1, from character 7.*'one'.*'two'"
    with pytest.raises(TokenizerError, match=message):
        spans_of_same_texts(*arguments, **cu)
    found, other = spans_of_same_texts(*arguments, **cu, strict=False)
    assert found.proved.tolist() == other.proved.tolist() == [True, False, True]
    mapping = vocagno.align(found.spans, other.spans, **cu)
    assert (mapping[found.text(1)] == -1).all()
    assert (mapping[found.text(2)][-1] >= 0).all()


def test_ids_that_do_not_prove_their_own_text(tokenizers):
    """BOS, then "<s>" in plain pieces: against the text it is taken for the literal one."""
    llama, level = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    plain = llama.encode(["<"]).ids.tolist() + [llama.token_id(f"<0x{byte:02X}>") for byte in b"s>"]
    ids, other = [1, *plain], level.encode(["<s>"]).ids
    assert llama.decode(ids) == ["<s>"]
    with pytest.raises(TokenizerError, match=r"are not those of its text '<s>'.*special tokens"):
        spans_of_same_texts(llama, ids, level, other)
    left, right = spans_of_same_texts(llama, ids, level, other, strict=False)
    assert not left.proved.any()
    assert not right.proved.any()
    assert not right.spans.any()


def test_ids_that_are_no_document(tokenizers):
    llama, level = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    with pytest.raises(TokenizerError, match="token 1: id 99999 has no known bytes"):
        level.decode([5, 99_999])
    with pytest.raises(TokenizerError, match="without this tokenizer's dummy prefix"):
        llama.decode(llama.encode(["\n"]).ids[1:])
    smile = level.encode(["\U0001f60a"]).ids
    with pytest.raises(TokenizerError, match="document 1 are cut inside a character"):
        level.decode([*smile, *smile[:-1]], [0, len(smile), 2 * len(smile) - 1])
    with pytest.raises(TokenizerError, match=r"do not tell the text.*keep the texts"):
        TokenSpans(tokenizers["word-piece"]).decode([5])
    with pytest.raises(ValueError, match="expected 1 documents, got 2"):
        level.from_ids(smile, texts=["a", "b"])
    with pytest.raises(ValueError, match="ids: expected 0 to 2147483647, got -1"):
        level.decode([-1])
    with pytest.raises(TypeError, match="ids: expected integers"):
        level.decode([0.5])


def test_a_mark_that_nfc_composed_is_told_as_composed(tokenizers):
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    assert spans.decode(spans.encode(["cafe\u0301"]).ids) == ["caf\u00e9"]


@pytest.mark.parametrize("teacher", ["qwen2.5", "llama-3", "deepseek-llm"])
def test_real_corpora_of_ids(teacher):
    texts = shared_texts("math-valid")[:40]
    sides = [TokenSpans(shared("tokenizers", f"{n}.json.gz")) for n in ("tinyllama", teacher)]
    tokens = [side.encode(texts) for side in sides]
    left, right = spans_of_same_texts(
        sides[0], tokens[0].ids, sides[1], tokens[1].ids,
        student_cu_seqlens=tokens[0].cu_seqlens, teacher_cu_seqlens=tokens[1].cu_seqlens,
    )  # fmt: skip
    np.testing.assert_array_equal(left.spans, tokens[0].spans)
    np.testing.assert_array_equal(right.spans, tokens[1].spans)
