"""A tokenizer described: what its tokenizer.json says, and where its spans come from."""

import json

import pytest

from vocagno import TokenSpans


@pytest.mark.parametrize(
    ("family", "path", "dummy", "normalizer"),
    [
        ("llama", "ids", "prepend", "Prepend, Replace"),
        ("metaspace-first", "ids", "metaspace_first", None),
        ("byte-level-nfc", "ids", "none", "NFC"),
        ("word-piece", "offsets", "none", "BertNormalizer"),
        ("unigram", "offsets", "metaspace", "NFKC"),
    ],
)
def test_describe_says_how_spans_are_found(tokenizers, family, path, dummy, normalizer):
    described = TokenSpans(tokenizers[family]).describe()
    assert (described.path, described.dummy_prefix) == (path, dummy)
    assert described.normalizer == normalizer
    assert (described.loses is None) == (path == "ids")
    json.dumps(described.as_dict())
    assert f"dummy prefix         {'none' if dummy == 'none' else 'a space'}" in str(described)
    if family == "llama":
        assert described.pre_tokenizer is None
        assert described.byte_fallback
        assert (described.prefix, described.suffix) == (["<s>"], [])
        assert described.special_tokens == ["<unk>", "<s>", "</s>"]
