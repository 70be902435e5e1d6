"""Spans from ids, spans from offsets, and that both tell the same."""

import gzip
import json
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pairs
import vocagno
from altered import Altered, backwards, ends_at_its_start, moved_by
from families import FAMILIES, HARD_TEXTS, LOSSLESS, TEXTS, without_unknown_token
from vocagno import TokenSpans
from vocagno.errors import InputError
from vocagno.tokens.tokenizer_files import TokenizerError

ALL_TEXTS = TEXTS[:6] + HARD_TEXTS


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_tokenizer(tokenizers, family):
    tokens = TokenSpans(tokenizers[family]).encode(ALL_TEXTS)
    expected = tokenizers[family].encode_batch(ALL_TEXTS, add_special_tokens=False)
    for index, encoding in enumerate(expected):
        assert tokens.ids[tokens.text(index)].tolist() == encoding.ids


@pytest.mark.parametrize("family", FAMILIES)
def test_spans_cover_hard_texts_and_map_to_every_lossless_tokenizer(tokenizers, family):
    student = TokenSpans(tokenizers[family])
    for name in LOSSLESS:
        pairs.check_pair(student, TokenSpans(tokenizers[name]), ALL_TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_prove_plain_text_and_offsets_give_the_same_spans(tokenizers, family):
    """Offsets that are trimmed, and those of prefix spaces, cover the blanks, too."""
    spans = TokenSpans(tokenizers[family])
    assert spans.encode(TEXTS).proved.all() or family not in LOSSLESS
    texts = [*ALL_TEXTS, "  one   two  ", " x", "a \n b", "\n  \n"]
    closed = pairs.by_offsets(spans, texts)
    pairs.check_side(spans, closed, texts)
    pairs.check_both_ways(spans.encode(texts), closed, texts)


def test_any_source_of_a_tokenizer_gives_the_same_tokens(tokenizers, tmp_path):
    tokenizer = tokenizers["byte-level"]
    plain, packed = tmp_path / "tokenizer.json", tmp_path / "t.json.gz"
    tokenizer.save(str(plain))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = TokenSpans(tokenizer)
    for source in (plain, str(plain), packed, tmp_path):
        spans = TokenSpans(source)
        assert spans.fingerprint == expected.fingerprint
        assert spans.encode(["ab c"]).ids.tolist() == expected.encode(["ab c"]).ids.tolist()


def test_a_folder_without_a_tokenizer_json_is_left_to_transformers(tmp_path, monkeypatch):
    """Of a vocabulary in another form."""
    transformers = pytest.importorskip("transformers")
    asked = []

    def from_pretrained(name):
        asked.append(name)
        raise OSError("nothing there")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(vocagno.TokenizerError, match="cannot load it: OSError: nothing there"):
        TokenSpans.from_pretrained(str(tmp_path))
    assert asked == [str(tmp_path)]
    with pytest.raises(vocagno.TokenizerError, match="no such file"):
        TokenSpans.from_pretrained(str(tmp_path / "missing"))
    assert len(asked) == 1


def test_a_transformers_tokenizer_and_its_truncation(tokenizers):
    transformers = pytest.importorskip("transformers")
    copy = type(tokenizers["llama"]).from_str(tokenizers["llama"].to_str())
    copy.enable_truncation(2)
    copy.enable_padding(length=9)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=copy)
    tokens = TokenSpans(wrapped).encode([TEXTS[0]])
    assert tokens.spans[-1, 1] == len(TEXTS[0].encode())
    assert len(copy.encode(TEXTS[0]).ids) == 9  # the caller's own is as it was


@pytest.mark.slow
@settings(max_examples=400)
@given(
    texts=st.lists(st.text(max_size=40), max_size=4),
    student=st.sampled_from(sorted(FAMILIES)),
    teacher=st.sampled_from(sorted(FAMILIES)),
)
@example(texts=["\u00b4\ufdfa"], student="unigram", teacher="byte-level")
@example(texts=["<s>\u2028 <s>"], student="llama", teacher="metaspace-first")
@example(texts=["\u0130\u0307"], student="word-piece", teacher="byte-level-nfc")
def test_spans_of_any_unicode_text_agree_both_ways(tokenizers, texts, student, teacher):
    """Covered, in order, equal to the oracle, and the same by both ways where ids prove it."""
    left, right = (TokenSpans(tokenizers[name]) for name in (student, teacher))
    tokens, _, _ = pairs.check_pair(left, right, texts)
    pairs.check_both_ways(tokens, pairs.by_offsets(left, texts), texts)


def test_a_name_without_transformers_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(vocagno.TokenizerError, match="on the hub needs transformers: pip install"):
        TokenSpans.from_pretrained("someone/some-model")


def test_tokens_in_place_of_their_spans(tokenizers):
    tokens = TokenSpans(tokenizers["llama"]).encode(["a text"])
    for function in (vocagno.align, vocagno.groups):
        with pytest.raises(TypeError, match=r"student_spans: .* TokenizedTexts; pass its \.spans"):
            function(tokens, tokens)


def test_line_ends_need_no_decoder_and_may_be_special(tokenizers):
    level = tokenizers["byte-level"]
    spans = TokenSpans(level)
    expected = spans.line_ends()
    assert expected[spans.encode(["a\n\nb"]).ids].any()
    without = type(level).from_str(json.dumps({**json.loads(level.to_str()), "decoder": None}))
    np.testing.assert_array_equal(TokenSpans(without).line_ends(), expected)
    without.add_special_tokens(["\n", ";\n\t"])
    spans = TokenSpans(without)
    for text in ("a\nb", "a;\n\tb"):
        assert spans.line_ends()[spans.encode([text]).ids].tolist() == [False, True, False]


def test_ids_that_are_none_are_not_special(tokenizers):
    spans = TokenSpans(tokenizers["llama"])
    assert spans.is_special([spans.token_id("</s>"), 5]).tolist() == [True, False]
    for bad in (-100, spans.vocabulary_size):
        with pytest.raises(InputError, match=rf"id {bad}: expected one from 0 to "):
            spans.is_special(np.array([5, bad], np.int32))


def _two_further_without_the_last(text, ids, offsets):
    return moved_by(2)(text, ids[:-1], offsets[:-1])


@pytest.mark.parametrize(
    ("alter", "cause"),
    [
        (ends_at_its_start, "tokens with text have empty offsets"),
        (backwards, "its offsets are invalid or out of order"),
        (_two_further_without_the_last, "is not certain"),
    ],
)
def test_texts_that_cannot_be_placed_are_left_out_of_a_batch(tokenizers, monkeypatch, alter, cause):
    """The others have the tokens that they have without them."""
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    good = [text for text in ALL_TEXTS if text]
    bad = "e\u0301 real real real"

    def altered(text, ids, offsets):
        return alter(text, ids, offsets) if text == bad else (ids, offsets)

    tokenizer = Altered(spans._tokenizer, altered)
    for part in (spans, spans._offsets):
        monkeypatch.setattr(part, "_tokenizer", tokenizer)
    texts = [bad, *good, bad]
    tokens, refused = spans.try_encode(texts)
    assert [*refused] == [0, len(texts) - 1]
    assert all(cause in reason for reason in refused.values())
    assert not tokens.proved[[0, -1]].any()
    alone = spans.encode(["", *good, ""])
    for name in ("ids", "spans", "cu_seqlens"):
        np.testing.assert_array_equal(getattr(tokens, name), getattr(alone, name))
    with pytest.raises(TokenizerError, match=rf"texts\[0\], which begins with 'e.*{cause}"):
        spans.encode(texts)


def test_texts_that_cannot_be_tokenized_are_left_out_of_a_batch():
    spans = TokenSpans(without_unknown_token("☃"))
    texts = ["a snowman", "☃", "", "a ☃ and", "the end"]
    tokens, refused = spans.try_encode(texts)
    assert [*refused] == [1, 3]
    assert all("cannot be tokenized" in reason for reason in refused.values())
    alone = spans.encode(["a snowman", "", "", "", "the end"])
    np.testing.assert_array_equal(tokens.spans, alone.spans)
    np.testing.assert_array_equal(tokens.cu_seqlens, alone.cu_seqlens)
    with pytest.raises(TokenizerError, match=r"texts\[1\], which begins with '☃': cannot be"):
        spans.encode(iter(texts))
