"""Tokens that do not stand for the text at their spans: found, put right, or refused by name."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pairs
from altered import Altered
from families import FAMILIES, HARD_TEXTS, LOSSLESS, TEXTS
from shared_data import shared
from vocagno import TokenizerError, TokenSpans, align_text


def strings(spans, text):
    """Tokens of a text that stand for more than blanks, each with the text at its span."""
    tokens, data = spans.encode([text]), text.encode()
    pieces = [spans.pieces()[index].decode().strip() for index in tokens.ids]
    held = [data[start:end].decode() for start, end in tokens.spans]
    return [(piece, text) for piece, text in zip(pieces, held, strict=True) if piece]


def deleting(characters):
    """A `Precompiled` normaliser that deletes single bytes: a double array of darts-clone."""
    from tokenizers import normalizers

    units = [0] * 1024
    units[0] = 256 << 10
    for byte in characters:
        units[256 + byte] = 768 << 10 | 1 << 8 | byte
        units[512 + byte] = 1 << 31  # a leaf: the empty string at 0
    trie = struct.pack(f"<{len(units)}I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"\0")


@pytest.fixture(scope="module")
def unigram():
    """As SentencePiece's are converted: a `Precompiled` normaliser before a Unigram."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = deleting(b"\x01\x02\x03")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, "the quick brown fox " * 20], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def without_controls():
    """A ByteLevel vocabulary that lacks the bytes 00, 01 and F1, and has no unknown token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = set(pre_tokenizers.ByteLevel.alphabet()) - {"\u0100", "\u0101", "\u00f1"}
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=sorted(letters), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.mark.parametrize("start", ["\x01", "\x01\x02\x03", "\x01" * 300])
def test_characters_that_a_normaliser_deletes_at_the_start(unigram, start):
    """`tokenizers` moves all offsets of the document by as many characters."""
    text = f"{start}the quick brown fox"
    offsets = unigram.encode(text).offsets
    assert offsets[0][1] <= len(start)  # it still does
    assert offsets[-1][1] == len(text) - len(start)
    spans = TokenSpans(unigram)
    for piece, held in strings(spans, text):
        assert piece in held.strip(" \x01\x02\x03")
    aligned = align_text(spans, spans, text)
    assert aligned.coverage == 1


def test_t5_and_controls_at_the_start():
    spans = TokenSpans(shared("tokenizers", "t5-small.json.gz"))
    for start in ("\x01\x02\x03", "\x0b", "\x1b", "\x7f\x7f"):
        found = strings(spans, f"{start}The quick brown fox")
        held = [text.strip(f" {start}") for _, text in found]
        assert held == [piece for piece, _ in found] == ["The", "quick", "brown", "fox"]


@pytest.mark.parametrize(
    "text", ["x \x01(+=*) y", "a\x00)=;(b", "\x01\x01)=(;", "x\x00 \x00(+)=\x01;"]
)
def test_bytes_that_a_vocabulary_lacks(without_controls, text):
    """`tokenizers` moves the offsets up to the end of the pre-token."""
    spans = TokenSpans(without_controls)
    data, tokens = text.encode(), spans.encode([text])
    pairs.check_side(spans, tokens, [text])
    for index, (start, end) in zip(tokens.ids, tokens.spans, strict=True):
        assert spans.pieces()[index].strip() in data[start:end]


def test_what_cannot_be_put_right_is_refused_by_name(without_controls):
    spans = TokenSpans(without_controls)
    message = (
        r"texts\[1\], which begins with 'a\\U00050000\)=;b': the offset of token \d, '\)' .* points"
        r" at '\\U00050000' \(bytes 1 to 5\), but the token is at byte 5\. Remove control"
    )
    with pytest.raises(TokenizerError, match=message):
        spans.encode(["a", "a\U00050000)=;b"])


def test_moved_offsets_are_refused_where_they_are_needed(tokenizers, monkeypatch):
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    moved = Altered(
        spans._tokenizer,
        lambda text, ids, o: (ids, [(min(a + 2, len(text)), min(b + 2, len(text))) for a, b in o]),
    )
    monkeypatch.setattr(spans._offsets, "_tokenizer", moved)
    with pytest.raises(TokenizerError, match=r"texts\[1\], which begins with 'cafe.* points at"):
        spans.encode(["proved", "cafe\u0301 of Jos\u00e9"])


def places_of(spans, tokens, moved, index, text):
    """What is found out about a text whose spans are `moved`."""
    ids = tokens.ids[tokens.text(index)]
    boundaries = np.array([0, len(ids)], np.int64)
    found = spans._offsets._places.disagreeing(ids, moved, boundaries, [text]).get(0, [])
    return found, spans._offsets._places.misplaced(ids, moved, text, found)


@pytest.mark.parametrize("family", [*LOSSLESS, "byte-level-nfc"])
def test_any_shift_of_a_whole_text_is_seen(tokenizers, family):
    spans = TokenSpans(tokenizers[family])
    tokens = spans.encode(TEXTS[:6])
    assert tokens.proved.all()
    for index, text in enumerate(TEXTS[:6]):
        right = tokens.spans[tokens.text(index)]
        assert places_of(spans, tokens, right, index, text) == ([], None)
        for by in (-20, -7, -3, -2, -1, 1, 2, 3, 7, 20):
            moved = np.clip(right + by, 0, len(text.encode())).astype(np.int32)
            assert places_of(spans, tokens, moved, index, text)[1] is not None, (text, by)


@pytest.mark.parametrize("family", ["metaspace-never", "byte-level", "byte-level-trimmed"])
def test_any_shift_within_a_word_is_seen(tokenizers, family):
    spans = TokenSpans(tokenizers[family])
    tokens = spans.encode(TEXTS[:6])
    pieces, seen = spans.pieces(), 0
    for index, text in enumerate(TEXTS[:6]):
        right = tokens.spans[tokens.text(index)]
        ids = tokens.ids[tokens.text(index)].tolist()
        word = np.cumsum([pieces[i].startswith(b" ") for i in ids])
        for rows in (np.flatnonzero(word == number) for number in np.unique(word)):
            moved, (start, end) = right.copy(), (right[rows[0], 0], right[rows[-1], 1])
            moved[rows] = np.clip(right[rows] - 1, start, end)
            moved[rows[-1], 1] = end  # closed: what is left over goes to the last token
            if (moved == right).all():
                continue
            seen += 1
            assert places_of(spans, tokens, moved, index, text)[1] is not None, (text, rows)
    assert seen > 2


NORMALIZERS = {
    "nfkc": lambda n, r: n.NFKC(),
    "nfkd": lambda n, r: n.NFKD(),
    "lower": lambda n, r: n.Lowercase(),
    "accents": lambda n, r: n.Sequence([n.NFD(), n.StripAccents()]),
    "bert": lambda n, r: n.BertNormalizer(),
    "quotes": lambda n, r: n.Sequence([n.Replace("``", '"'), n.Replace("''", '"'), n.NFKD()]),
    "words": lambda n, r: n.Sequence([n.Replace("the", "zz top"), n.Replace(r(r"\d+"), "0")]),
    "letters": lambda n, r: n.Sequence([n.Replace(a, b) for a, b in ("ax", "ey", "iz")]),
    "by its left": lambda n, r: n.Replace(r("(?<=a)b"), "hello"),
    "blanks": lambda n, r: n.Sequence([n.Replace(r(r"\s+"), " "), n.Strip()]),
    "case as a letter": lambda n, r: n.Replace(r("(?=[A-Z])"), "U"),
    "case as a mark": lambda n, r: n.Replace(r("(?=[A-Z])"), "\ue000"),
    "case as a word": lambda n, r: n.Replace(r("(?=[A-Z])"), "<up>"),
}
"""What normalisers do to text: letters are folded, replaced, put in."""


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_a_normaliser_is_no_shift(tokenizers, kind):
    """Under any of them a tokenizer is accepted, and so is every text."""
    from tokenizers import Regex, normalizers

    tokenizer = type(tokenizers["llama"]).from_str(tokenizers["llama"].to_str())
    own = NORMALIZERS[kind](normalizers, Regex)
    tokenizer.normalizer = normalizers.Sequence([own, tokenizer.normalizer])
    spans = TokenSpans(tokenizer)
    texts = [*TEXTS[:6], *HARD_TEXTS, "Babe ab the THE Cab <up> <U> ``q''", "UPPER \ue000 aB"]
    pairs.check_side(spans, spans.encode(texts), texts)


@given(
    texts=st.lists(st.text(max_size=30), max_size=4),
    family=st.sampled_from(sorted(FAMILIES)),
)
def test_no_text_is_refused(tokenizers, texts, family):
    """By offsets, also where ids would do."""
    pairs.by_offsets(TokenSpans(tokenizers[family]), texts or ["a"])


def test_case_as_marks(tokenizers):
    """The marks share text or have none; the words are where they stand."""
    from tokenizers import Regex, normalizers

    tokenizer = type(tokenizers["llama"]).from_str(tokenizers["llama"].to_str())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex("(?=[A-Z])"), "<up>"), tokenizer.normalizer]
    )
    spans = TokenSpans(tokenizer)
    text = "The sum Of Let"
    tokens = spans.encode([text])
    pairs.check_side(spans, tokens, [text])
    for piece, held in strings(spans, text):
        assert piece in held or set(piece) <= set("<up>")
