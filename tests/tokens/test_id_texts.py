"""What texts are taken, and what is done with their tokens."""

import numpy as np
import pytest

from vocagno import TokenizedTexts, TokenSpans

STRINGS = ["one two", "", "caf\u00e9 \u2211", "x"]


@pytest.fixture(scope="module")
def spans(tokenizers):
    return TokenSpans(tokenizers["llama"])


@pytest.fixture(scope="module")
def tokens(spans):
    return spans.encode(STRINGS)


def same(left, right):
    fields = ("ids", "spans", "cu_seqlens", "proved")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in fields)


def test_an_index_gives_the_tokens_of_one_text(spans, tokens):
    for index, text in enumerate(STRINGS):
        assert same(tokens[index], spans.encode([text]))
        assert same(tokens[index - len(STRINGS)], tokens[np.int64(index)])
        assert tokens.text(index - len(STRINGS)) == tokens.text(index)
    assert np.shares_memory(tokens[0].ids, tokens.ids)
    assert [len(encoded.ids) for encoded in tokens] == np.diff(tokens.cu_seqlens).tolist()


@pytest.mark.parametrize("index", [4, -5, 10**30])
def test_an_index_outside(tokens, index):
    for look_up in (tokens.text, tokens.__getitem__):
        with pytest.raises(IndexError, match=f"index {index}: expected one of 4 texts"):
            look_up(index)


def test_consecutive_texts_by_a_slice(spans, tokens):
    for chosen in (slice(1, 3), slice(None), slice(-2, None), slice(3, 1), slice(9, None)):
        assert same(tokens[chosen], spans.encode(STRINGS[chosen]))
    with pytest.raises(ValueError, match="step 1, got step 2"):
        tokens[::2]
    with pytest.raises(TypeError, match="expected an integer or a slice, got str"):
        tokens["0"]


def test_texts_one_after_the_other(tokens):
    parts = [tokens[:1], tokens[1:1], tokens[1:]]
    assert same(TokenizedTexts.concatenate(parts), tokens)
    nothing = TokenizedTexts.concatenate([])
    assert (len(nothing), nothing.spans.shape) == (0, (0, 2))
    assert [nothing.ids.dtype, nothing.cu_seqlens.dtype] == [np.int32, np.int64]


def test_batches_of_tokens_are_compared_by_identity(tokens):
    same_object = tokens
    assert tokens == same_object
    assert tokens != tokens[:]
    assert len({tokens, tokens[:]}) == 2


def test_arrays_of_strings(spans, tokens):
    """Sees a kind of array whose items are read as other texts, a null that becomes a text, and one
    string that is read letter by letter."""
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    arrays = [
        np.array(STRINGS),
        np.array(STRINGS, object),
        pd.Series(STRINGS),
        tuple(STRINGS),
        pa.array(STRINGS),
        pa.array(STRINGS, pa.large_string()),
        pa.array(STRINGS, pa.string_view()),
        pa.chunked_array([STRINGS[:1], STRINGS[1:]]),
        [pa.scalar(text) for text in STRINGS],
        pa.array(STRINGS).dictionary_encode(),
        iter(STRINGS),
    ]
    for array in arrays:
        assert same(spans.encode(array), tokens)
    with pytest.raises(TypeError, match=r"texts\[1\]: expected a string, got NoneType"):
        spans.encode(pa.array(["a", None]))
    with pytest.raises(TypeError, match=r"texts\[1\]: expected a string, got (float|NAType)"):
        spans.encode(pd.Series(["a", None]))
    with pytest.raises(TypeError, match="expected a list of strings, got one string"):
        spans.encode(pa.scalar("a"))
    for text, kind in ((b"a", "bytes"), (["pre", "tokenized"], "list")):
        with pytest.raises(TypeError, match=rf"texts\[0\]: expected a string, got {kind}"):
            spans.encode([text])
    assert spans.from_ids(tokens.ids, tokens.cu_seqlens, texts=pa.array(STRINGS)).proved.all()
