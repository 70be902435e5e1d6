"""Our alignment inside the installed TRL: equal where its own is right, and right beyond."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from examples import load_example
from families import TEXTS

pytestmark = pytest.mark.slow


@pytest.fixture
def example(monkeypatch):
    module = load_example("trl_gold")
    loss, utils = module.gold_trainer.ULDLoss, module.utils
    # `install` changes TRL for good; this takes it back.
    monkeypatch.setattr(loss, "_align_by_byte_offsets", loss._align_by_byte_offsets)
    for one in (module.gold_trainer, utils):
        for name in ("encode_with_byte_offsets", "is_byte_level_tokenizer"):
            monkeypatch.setattr(one, name, getattr(utils, name), raising=False)
    return module


def test_both_agree_on_what_both_support(example, tokenizers):
    theirs = example.gold_trainer.ULDLoss._align_by_byte_offsets
    encode = example.utils.encode_with_byte_offsets
    pair = tokenizers["byte-level"], tokenizers["byte-level-nfc"]
    for text in TEXTS[:6]:
        sides = [encode(backend, [text])[0] for backend in pair]
        ours = [example.encode(backend, [text])[0] for backend in pair]
        assert ours == sides
        spans = [offsets for _, offsets in sides]
        assert example.align(*spans) == theirs(*spans)


def test_what_theirs_refuses(example, tokenizers):
    llama = tokenizers["llama"]
    with pytest.raises(NotImplementedError, match="not ByteLevel"):
        example.utils.encode_with_byte_offsets(llama, ["Text"])
    example.install()
    for text in [*TEXTS[:6], "cafe\u0301 e\u0301e\u0301"]:
        ((_, own),) = example.gold_trainer.encode_with_byte_offsets(llama, [text])
        ((_, other),) = example.gold_trainer.encode_with_byte_offsets(
            tokenizers["byte-level-nfc"], [text]
        )
        groups = example.gold_trainer.ULDLoss._align_by_byte_offsets(own, other)
        for rows, spans in zip(groups, (own, other), strict=True):
            assert [row for group in rows for row in group if spans[row][0] < spans[row][1]] == [
                row for row, (start, end) in enumerate(spans) if start < end
            ]
        for mine, theirs in zip(*groups, strict=True):
            assert max(own[row][1] for row in mine) == max(other[row][1] for row in theirs)
