"""A TokenSpans in other hands: copies, threads, and its tokenizer changed."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from families import FAMILIES, HARD_TEXTS, TEXTS
from vocagno import TokenSpans

ALL_TEXTS = TEXTS[:6] + HARD_TEXTS


def clone(tokenizer):
    return type(tokenizer).from_str(tokenizer.to_str())


def check_same(left, right):
    for name in ("ids", "spans", "cu_seqlens", "proved"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_or_copied_tokenizer_encodes_alike(tokenizers, family):
    spans = TokenSpans(tokenizers[family])
    expected = spans.encode(ALL_TEXTS)
    for other in (pickle.loads(pickle.dumps(spans)), copy.deepcopy(spans), copy.copy(spans)):
        assert (other.name, other.fingerprint) == (spans.name, spans.fingerprint)
        assert other.prefix_ids == spans.prefix_ids
        check_same(other.encode(ALL_TEXTS), expected)


def test_a_path_is_not_read_again(tokenizers, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizers["llama"].save(str(path))
    data = pickle.dumps(TokenSpans(path))
    path.unlink()
    assert pickle.loads(data).name == str(path)


def test_special_tokens_read_as_text_stay_so(tokenizers):
    """`encode_special_tokens`, in no tokenizer.json; transformers calls it split_special_tokens."""
    tokenizer = clone(tokenizers["llama"])
    tokenizer.encode_special_tokens = True
    spans = TokenSpans(tokenizer)
    as_text, copied = spans.encode(["<s>"]), spans.tokenizer_copy()
    assert 1 not in as_text.ids
    check_same(pickle.loads(pickle.dumps(spans)).encode(["<s>"]), as_text)
    assert copied.encode("<s>", add_special_tokens=False).ids == as_text.ids.tolist()
    plain = TokenSpans(tokenizers["llama"])
    assert plain.encode(["<s>"]).ids.tolist() == [1]
    assert plain.fingerprint != spans.fingerprint == TokenSpans(tokenizer).fingerprint


def test_what_becomes_of_the_callers_tokenizer_does_not_reach_it(tokenizers):
    from tokenizers import normalizers

    tokenizer = clone(tokenizers["byte-level"])
    spans = TokenSpans(tokenizer)
    expected, fingerprint = spans.encode(ALL_TEXTS), TokenSpans(clone(tokenizer)).fingerprint
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.add_tokens(["sum", "of"])
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.model.dropout = 1.0
    check_same(spans.encode(ALL_TEXTS), expected)
    assert spans.fingerprint == fingerprint
    assert spans.loses is None
    assert spans.token_id("sum") is None


def test_threads_that_share_a_tokenizer_encode_alike(tokenizers):
    """Sees a tokenizer whose state is changed by several calls at the same time."""
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    expected = TokenSpans(tokenizers["byte-level-nfc"]).encode(ALL_TEXTS)
    with ThreadPoolExecutor(8) as threads:
        for tokens in threads.map(spans.encode, [ALL_TEXTS] * 32):
            check_same(tokens, expected)
