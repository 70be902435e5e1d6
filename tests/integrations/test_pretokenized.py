"""Documents kept as ids alone: their text, their spans, and two corpora of the same documents."""

import numpy as np
import pytest
from tokenizers import AddedToken

import vocagno
from families import HARD_TEXTS, LOSSLESS, TEXTS
from shared_data import shared, shared_texts
from vocagno import TokenizerError, TokenSpans, spans_of_same_texts

ALL_TEXTS = TEXTS[:6] + HARD_TEXTS
KEPT = [text for text in ALL_TEXTS if not any(x in text for x in ("<s>", "<unk>", "<0x", "▁"))]
"""What ids can tell: not whether a `▁` was a space, or a special token stood in the text."""
AMBIGUOUS = ("metaspace-always", "metaspace-first", "byte-level-prefix-space")
"""Put a space before a text where there is none: "a" and " a" are the same ids."""


def same_but_for_a_leading_space(decoded, text):
    return decoded == text or (text.startswith(" ") and decoded == text[1:])


@pytest.mark.parametrize("family", LOSSLESS)
def test_ids_tell_the_text(tokenizers, family):
    spans = TokenSpans(tokenizers[family])
    tokens = spans.encode(KEPT)
    assert tokens.proved.all()
    decoded = spans.decode(tokens.ids, tokens.cu_seqlens)
    if family in AMBIGUOUS:
        assert all(map(same_but_for_a_leading_space, decoded, KEPT))
    else:
        assert decoded == KEPT
        again = spans.from_ids(tokens.ids, tokens.cu_seqlens)
        np.testing.assert_array_equal(again.spans, tokens.spans)
    with_texts = spans.from_ids(tokens.ids, tokens.cu_seqlens, texts=KEPT)
    np.testing.assert_array_equal(with_texts.spans, tokens.spans)


def test_special_tokens_round_a_document_have_empty_spans(tokenizers):
    spans = TokenSpans(tokenizers["llama"])
    bare = spans.encode(["ab"])
    ids = [1, *bare.ids, 2]  # BOS, EOS
    tokens = spans.from_ids(ids)
    assert spans.decode(ids) == ["ab"]
    assert tokens.spans[[0, -1]].tolist() == [[0, 0], [2, 2]]
    np.testing.assert_array_equal(tokens.spans[1:-1], bare.spans)


def test_ids_of_another_text_are_not_proved(tokenizers):
    spans = TokenSpans(tokenizers["byte-level"])
    ids = spans.encode(["one", "two"])
    tokens = spans.from_ids(ids.ids, ids.cu_seqlens, texts=["one", "too"])
    assert tokens.proved.tolist() == [True, False]
    assert not tokens.spans[tokens.text(1)].any()


@pytest.mark.parametrize("student", LOSSLESS)
@pytest.mark.parametrize("teacher", LOSSLESS)
def test_two_corpora_of_ids_are_aligned_as_their_texts_are(tokenizers, student, teacher):
    sides = TokenSpans(tokenizers[student]), TokenSpans(tokenizers[teacher])
    texts = KEPT
    if student in AMBIGUOUS and teacher in AMBIGUOUS:
        texts = [text for text in texts if not text.startswith(" ")]
    tokens, other = (side.encode(texts) for side in sides)
    cu = {"student_cu_seqlens": tokens.cu_seqlens, "teacher_cu_seqlens": other.cu_seqlens}
    left, right = spans_of_same_texts(sides[0], tokens.ids, sides[1], other.ids, **cu)
    assert left.proved.all()
    assert right.proved.all()
    np.testing.assert_array_equal(left.spans, tokens.spans)
    np.testing.assert_array_equal(right.spans, other.spans)


def test_documents_that_differ_are_named_or_left_unmapped(tokenizers):
    student, teacher = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    left = student.encode(["first one", "second one", "third"])
    right = teacher.encode(["first one", "second two", "third"])
    arguments = (student, left.ids, teacher, right.ids)
    cu = {"student_cu_seqlens": left.cu_seqlens, "teacher_cu_seqlens": right.cu_seqlens}
    message = r"documents 1 are not the same.*document 1, from character 7.*'one'.*'two'"
    with pytest.raises(TokenizerError, match=message):
        spans_of_same_texts(*arguments, **cu)
    student_tokens, other = spans_of_same_texts(*arguments, **cu, strict=False)
    assert student_tokens.proved.tolist() == other.proved.tolist() == [True, False, True]
    mapping = vocagno.align(student_tokens.spans, other.spans, **cu)
    assert (mapping[student_tokens.text(1)] == -1).all()
    assert (mapping[student_tokens.text(2)][-1] >= 0).all()


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
    with pytest.raises(TokenizerError, match=r"do not determine the text.*keep the texts"):
        TokenSpans(tokenizers["word-piece"]).decode([5])
    with pytest.raises(ValueError, match="expected 1 documents, got 2"):
        level.from_ids(smile, texts=["a", "b"])
    with pytest.raises(ValueError, match="ids: expected 0 to 2147483647, got -1"):
        level.decode([-1])
    with pytest.raises(TypeError, match="ids: expected integers"):
        level.decode([0.5])


def changed(tokenizer, *tokens):
    """A copy with added tokens."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.add_tokens([token for token in tokens if not token.special])
    copy.add_special_tokens([token for token in tokens if token.special])
    return copy


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("sides", [{"lstrip": True}, {"rstrip": True}])
def test_an_added_token_that_takes_spaces_with_it_does_not_tell_the_text(
    tokenizers, special, sides
):
    token = AddedToken("<x>", special=special, normalized=False, **sides)
    spans = TokenSpans(changed(tokenizers["byte-level"], token))
    assert spans.loses is None
    text = "a <x> \n b"
    tokens = spans.encode(["c", text])
    (side,) = sides
    message = rf"token \d of document 1, '<x>' \(id \d+\), absorbs white space .*\({side}\)"
    for function in (spans.decode, spans.from_ids):
        with pytest.raises(TokenizerError, match=message):
            function(tokens.ids, tokens.cu_seqlens)
    # With their texts they are checked, and the others are told as before.
    assert spans.from_ids(tokens.ids, tokens.cu_seqlens, texts=["c", text]).proved[0]
    assert spans.decode(tokens.ids[tokens.text(0)]) == ["c"]


def test_a_special_token_at_an_end_may_take_what_is_beyond(tokenizers):
    """As `</s>` of Phi-3 does, which ends every document."""
    token = AddedToken("</d>", rstrip=True, special=True, normalized=False)
    spans = TokenSpans(changed(tokenizers["byte-level"], token))
    end, ids = spans.token_id("</d>"), spans.encode(["a b"]).ids.tolist()
    assert spans.decode([*ids, end, end]) == ["a b"]
    with pytest.raises(TokenizerError, match="token 0 of document 0, '</d>'"):
        spans.decode([end, *ids])


def test_an_added_token_of_normalised_text_does_not_tell_it(tokenizers):
    composed, apart = "\u00e9\u00e9", "e\u0301e\u0301"
    spans = TokenSpans(
        changed(tokenizers["byte-level-nfc"], AddedToken(apart, normalized=True, special=False))
    )
    assert spans.loses is None
    ids = spans.encode([f"x{composed}"]).ids
    assert spans.token_id(apart) in ids
    with pytest.raises(TokenizerError, match="stands for any text that is normalised to '\u00e9"):
        spans.decode(ids)


@pytest.mark.parametrize("text", ["use <x> now", "<x> now", "use<x> now", "a <x> <x>", "<x>"])
def test_an_added_token_that_is_found_with_the_space_before_it(tokenizers, text):
    """As transformers adds tokens to Llama's tokenizer: searched for in text with `▁`."""
    token = AddedToken("<x>", normalized=True, special=False)
    spans = TokenSpans(changed(tokenizers["llama"], token))
    tokens = spans.encode([text])
    assert (spans.token_id("<x>") in tokens.ids) == ("use<x>" not in text)
    assert spans.decode(tokens.ids) == [text]
    np.testing.assert_array_equal(spans.from_ids(tokens.ids).spans, tokens.spans)
    level = TokenSpans(tokenizers["byte-level"])
    left, _ = spans_of_same_texts(spans, tokens.ids, level, level.encode([text]).ids)
    np.testing.assert_array_equal(left.spans, tokens.spans)


def test_the_text_of_a_prompt_that_begins_with_a_written_special_token(tokenizers):
    """As chat templates write it, for a tokenizer with a dummy prefix at the first place alone."""
    first, level = TokenSpans(tokenizers["metaspace-first"]), TokenSpans(tokenizers["byte-level"])
    ids = first.encode(["<s>(1) 2 + 2?"]).ids
    assert ids[0] == first.token_id("<s>")
    assert first.decode(ids) == ["(1) 2 + 2?"]
    left, right = spans_of_same_texts(first, ids, level, level.encode(["(1) 2 + 2?"]).ids)
    assert left.proved.all()
    assert left.spans.max() == right.spans.max() == 10
    ends = [first.token_id("</s>"), *first.encode(["so"]).ids]
    assert first.decode(ends) == ["so"]
    assert first.decode(ends, continues=True) == [" so"]
    with pytest.raises(TokenizerError, match="without this tokenizer's dummy prefix"):
        first.decode(ids[1:])


@pytest.fixture(scope="module")
def letters():
    """A BPE of `▁` and letters without bytes: what it lacks is `<unk>`, if there is one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    def build(unknown=None, special=False):
        pieces = ["▁", "\n", *map(chr, range(33, 127)), "<unk>"]
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        if special:
            tokenizer.add_special_tokens(["<unk>"])
        return TokenSpans(tokenizer)

    return build


@pytest.mark.parametrize("special", [False, True])
def test_an_unknown_token_does_not_tell_the_text(letters, special):
    spans = letters("<unk>", special)
    assert spans.loses is None
    assert spans.decode(spans.encode(["the fox"]).ids) == ["the fox"]
    for text in ("the \u65e5\u672c fox", "the \u65e5"):
        with pytest.raises(
            TokenizerError, match=r"token 4 of document 0, '<unk>' .* the vocabulary, so the"
        ):
            spans.from_ids(spans.encode([text]).ids)


def test_characters_that_leave_no_token(letters):
    spans = letters()
    assert spans.loses == "characters outside its vocabulary give no token"
    with pytest.raises(TokenizerError, match="give no token"):
        spans.decode(spans.encode(["the fox"]).ids)


@pytest.mark.parametrize("family", ["llama", "byte-level"])
def test_an_unknown_token_that_never_comes_is_no_obstacle(tokenizers, family):
    """Bytes stand for whatever the vocabulary lacks; the entry may be the end of a text, too."""
    tokenizer = type(tokenizers[family]).from_str(tokenizers[family].to_str())
    if family == "byte-level":
        tokenizer.model.unk_token = "<|endoftext|>"
    spans = TokenSpans(tokenizer)
    unknown = spans._vocabulary.unknown
    assert unknown is not None
    assert spans.loses is None
    ids = spans.encode(["\u65e5\u672c x"]).ids
    assert unknown not in ids
    assert spans.decode([*ids, unknown]) == ["\u65e5\u672c x"]


def test_a_mark_that_nfc_composed_is_told_as_composed(tokenizers):
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    assert spans.decode(spans.encode(["cafe\u0301"]).ids) == ["caf\u00e9"]


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["qwen2.5", "llama-3", "deepseek-llm"])
def test_ids_of_real_tokenizers_give_the_spans_of_their_texts(teacher):
    texts = shared_texts("math-valid")[:40]
    sides = [TokenSpans(shared("tokenizers", f"{n}.json.gz")) for n in ("tinyllama", teacher)]
    tokens, other = (side.encode(texts) for side in sides)
    cu = {"student_cu_seqlens": tokens.cu_seqlens, "teacher_cu_seqlens": other.cu_seqlens}
    left, right = spans_of_same_texts(sides[0], tokens.ids, sides[1], other.ids, **cu)
    np.testing.assert_array_equal(left.spans, tokens.spans)
    np.testing.assert_array_equal(right.spans, other.spans)
