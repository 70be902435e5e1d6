"""Tokens that do not stand for the text at their spans: found, put right, or refused by name."""

import re
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pairs
from altered import Altered
from families import (
    CONTRACTIONS,
    FAMILIES,
    HARD_TEXTS,
    LOSSLESS,
    MISSING_BYTES,
    TEXTS,
    contracting,
    without_letters,
)
from odd_strings import odd_strings
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
    ("text", "pieces"),
    [
        ("x \u0133\u06ed", ["i", "j"]),
        ("x \xbd\u0f87", ["1", "<unk>", "2"]),
        ("x \u2057\u0658", ["\u2032\u2032"] * 2),
    ],
    ids=ascii,
)
def test_t5_and_a_mark_behind_a_character_that_it_takes_apart(text, pieces):
    """It replaces both together, so the last parts get the offset of the mark."""
    found = strings(TokenSpans(shared("tokenizers", "t5-small.json.gz")), text)
    assert found[0] == ("x", "x")
    assert [(piece, held.strip()) for piece, held in found[1:]][: len(pieces)] == [
        (piece, text[2:4]) for piece in pieces
    ]


@given(text=st.text(max_size=20))
@example(text="a\x00b\r\rc\U0001f60a\u1112\x7f")
@example(text="\x00")
def test_bytes_that_a_vocabulary_lacks(tokenizers, text):
    """The spans follow one another, and each token is the text at its span without these bytes."""
    spans = TokenSpans(tokenizers["byte-level-missing"])
    data, tokens = text.encode(), spans.encode([text])
    assert tokens.proved.all() == (len(tokens.ids) > 0 or not text)
    if len(tokens.ids):
        assert [*tokens.spans[:, 0], len(data)] == [0, *tokens.spans[:, 1]]
    for index, (start, end) in zip(tokens.ids, tokens.spans, strict=True):
        assert bytes(b for b in data[start:end] if b not in MISSING_BYTES) == spans.pieces()[index]


def test_ids_without_line_ends_prove_a_text_but_do_not_determine_it():
    spans = TokenSpans(without_letters({"\u010a"}))
    tokens = spans.encode(["a \n b"])
    assert tokens.proved.all()
    assert spans.loses == r"'\n' gives no token"
    with pytest.raises(TokenizerError, match="do not determine the text"):
        spans.decode(tokens.ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The mark is composed; the controls go to the token before them, the line end to the next.
        ("e\u0301\x00\rb", [("\u00e9", "e\u0301\x00"), ("b", "\rb")]),
        # The first byte of the second letter has no token; the third one has two parts.
        (
            "e\u0301\u1e66\u0133",
            [("\u00e9", "e\u0301"), *[("", "\u1e66")] * 2, *[("", "\u0133")] * 2],
        ),
    ],
    ids=ascii,
)
def test_bytes_that_a_vocabulary_lacks_in_a_text_that_is_normalised(tokenizers, text, expected):
    spans = TokenSpans(tokenizers["byte-level-missing-nfc"])
    tokens, data = spans.encode([text]), text.encode()
    pieces = [spans.pieces()[index].decode(errors="ignore") for index in tokens.ids]
    held = [data[start:end].decode() for start, end in tokens.spans]
    assert [*zip(pieces, held, strict=True)] == expected


def is_part_of_a_character(piece):
    return "\ufffd" in piece.decode(errors="replace")


def origins(text):
    """A text with the contractions, and for each of its bytes the bytes that it comes from."""
    several = "|".join(re.escape(text) for text, _ in CONTRACTIONS)
    contracted, found, at = "", [], 0
    for part in re.findall(f"{several}|.", text, re.DOTALL):
        one = dict(CONTRACTIONS).get(part, part)
        found += [(at, at + len(part.encode()))] * len(one.encode())
        contracted, at = contracted + one, at + len(part.encode())
    return contracted, found


@pytest.mark.parametrize("family", LOSSLESS)
def test_what_a_normaliser_contracts_is_placed(tokenizers, family):
    """Where the same tokenizer has it in a text that is contracted before."""
    plain, spans = TokenSpans(tokenizers[family]), TokenSpans(contracting(tokenizers[family]))
    compared = 0
    for text in ["wait... efficient 1/2 of the fire", *odd_strings(300)]:
        contracted, origin = origins(text)
        before = plain.encode([contracted])
        if contracted == text or not before.proved.all():
            continue
        tokens = spans.encode([text])
        pairs.check_side(spans, tokens, [text])
        ids = before.ids.tolist()
        if tokens.ids.tolist() != ids:
            continue  # a space was put before it
        compared += 1
        for index, (start, end), found in zip(
            ids, before.spans, tokens.spans.tolist(), strict=True
        ):
            if start == end:
                continue
            first, stop = origin[start][0], origin[end - 1][1]
            if is_part_of_a_character(plain.pieces()[index]):
                assert first <= found[0] < found[1] <= stop, (text, index)
            else:
                assert found == [first, stop], (text, index)
    assert compared > 40


@pytest.mark.parametrize(
    ("family", "text", "reason"),
    [
        ("byte-level-nfc", "e\u0301 real real real", "Its normalizer changes the text: pass it as"),
        ("word-piece", "a real real real", "Use another release of tokenizers or"),
        (
            "word-piece",
            "\x01a real real real",
            r"'\\x01' gives no token, which moves offsets: remove",
        ),
    ],
)
def test_offsets_without_a_certain_place_are_refused(tokenizers, monkeypatch, family, text, reason):
    """One of three equal words has no token, and the offsets are moved: the error says why."""
    spans = TokenSpans(tokenizers[family])

    def moved(text, ids, offsets):
        if text == "plain":
            return ids, offsets
        end, kept = len(text), slice(max(1, len(ids) - 1))
        return ids[kept], [(min(a + 2, end), min(b + 2, end)) for a, b in offsets[kept]]

    monkeypatch.setattr(spans._offsets, "_tokenizer", Altered(spans._tokenizer, moved))
    _, _, refused = spans._offsets.encode(["plain", text])
    assert [*refused] == [1]
    assert re.search(rf" points at .* is not certain\. {reason}", refused[1])


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
