"""Thirty-three inputs that aligners get wrong, each by its name.

Texts go through all ordered pairs of the tokenizers trained here (spans cover them, only
lone dummy prefixes are empty, the mapping is the oracle's); what a case is about is told by hand.

Other cases are elsewhere: 5 and 26 in `test_tokenizer_checks.py`, 22, 29 and 30 in `alignment`,
24 (offsets that are trimmed, prefix spaces) in `test_token_spans.py`, 25 (words in place of texts)
in `test_id_texts.py`, 28 in `models/test_losses.py`, 31 in `training/test_main.py`.
"""

import numpy as np
import pytest

import pairs
import vocagno
from chaos import repeats
from drawn_spans import row_boundaries
from vocagno import Reason, SpanError, TokenSpans


@pytest.fixture(scope="module")
def families(tokenizers):
    return {name: TokenSpans(tokenizer) for name, tokenizer in tokenizers.items()}


@pytest.fixture(scope="module")
def everywhere(families):
    """Checks texts under all ordered pairs."""

    def check(*texts):
        for student in families.values():
            for teacher in families.values():
                pairs.check_pair(student, teacher, list(texts))

    return check


def strings(spans, text):
    """Tokens of a text with their spans."""
    tokens = spans.encode([text])
    pieces = [spans.token(int(index)) for index in tokens.ids]
    return list(zip(pieces, map(tuple, tokens.spans.tolist()), strict=True))


STUDENT = [[0, 4], [4, 9], [9, 15]]
TEACHER = [[0, 3], [3, 6], [6, 9], [9, 10], [10, 13], [13, 15]]
EXPECTED = [[0, 2], [1, 3], [3, 6]]


def test_01_eos_at_the_end_with_an_empty_offset():
    assert vocagno.align(STUDENT, [*TEACHER, [0, 0]]).tolist() == EXPECTED


def test_02_padding_on_either_side():
    padding = [[0, 0]] * 6
    assert vocagno.align(STUDENT, TEACHER + padding).tolist() == EXPECTED
    left = vocagno.align(STUDENT, padding + TEACHER)
    assert (left - 6).tolist() == EXPECTED


def test_03_specials_in_the_middle_of_a_packed_row():
    """Documents are rows of a batch; as one text their offsets step back, and are refused."""
    specials = [[0, 0], [0, 0]]
    student, teacher = STUDENT + specials + STUDENT, TEACHER + specials + TEACHER
    with pytest.raises(SpanError, match="row 0, token 8"):
        vocagno.align(student, teacher)
    mapping = vocagno.align(student, teacher, **row_boundaries([0, 4, 8], [0, 7, 14]))
    second = [[first + 8, stop + 8] for first, stop in EXPECTED]
    assert mapping.tolist() == [*EXPECTED, [-1, -1], [-1, -1], *second]


def test_04_bos_on_one_side_only(tokenizers):
    sides = tokenizers["llama"], tokenizers["byte-level"]
    aligned = vocagno.align_text(*sides, "one two", special_tokens=True)
    assert aligned.student.tokens[0] == "<s>"
    assert aligned.reasons[0] == Reason.SPECIAL
    with_text = aligned.student.spans[:, 0] < aligned.student.spans[:, 1]
    assert (aligned.reasons[with_text] == Reason.MAPPED).all()
    other = vocagno.align_text(*sides[::-1], "one two", special_tokens=True)
    assert (other.mapping[:, 0] >= 1).all()  # no token gets the teacher's BOS


def test_06_byte_fallback(families, everywhere):
    everywhere("\U0001f60a hi", "\U0001f60a", "a\U0001f60ab")
    llama = strings(families["llama"], "\U0001f60a")
    assert [span for _, span in llama] == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    aligned = vocagno.align_text(families["llama"], families["byte-level"], "\U0001f60a")
    assert (aligned.mapping[1:, 0] >= 0).all()


def test_07_a_dummy_prefix_before_a_split_character(families, everywhere):
    everywhere("∑", "∑ x² ≤ ∞", "²")
    tokens = strings(families["llama"], "∑")
    assert tokens[0] == ("▁", (0, 0))
    assert [span for _, span in tokens[1:]] == [(0, 1), (1, 2), (2, 3)]


def test_08_nested_spans(everywhere):
    """A space and the first bytes of a character in one token, the rest in the next."""
    everywhere(" 𝒜", " ∞", "x 𝒜𝒜")
    assert vocagno.align([[6, 7], [7, 8]], [[6, 8], [7, 8]]).tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize("text", ["cafe\u0301 nai\u0308ve", "e\u0301\n"], ids=ascii)
def test_09_a_mark_that_nfc_composes(families, everywhere, text):
    everywhere(text)
    nfc = families["byte-level-nfc"].encode([text])
    assert not nfc.proved.any()
    aligned = vocagno.align_text(families["byte-level"], families["byte-level-nfc"], text)
    assert (aligned.reasons == Reason.MAPPED).all()


def test_10_hangul_from_its_parts(families, everywhere):
    text = "\u1112\u1161\u11ab"
    everywhere(text, f"a {text}{text} b")
    aligned = vocagno.align_text(families["llama"], families["byte-level-nfc"], text)
    assert aligned.counts["hole"] == aligned.counts["truncated"] == 0


def test_11_combining_sequences(everywhere):
    everywhere("e\u0301e\u0301e\u0301", "a\u0301\u0323b", "\u0928\u093c", "Erdo\u030bs", "\u0301")


def test_12_composed_and_decomposed_are_two_texts(families):
    composed, apart = "\u00e9", "e\u0301"
    spans = families["byte-level"]
    ids = [spans.encode([text]).ids for text in (composed, apart)]
    with pytest.raises(vocagno.TokenizerError, match="not the same text"):
        vocagno.spans_of_same_texts(spans, ids[0], spans, ids[1])
    assert families["byte-level-nfc"].describe().normalizer == "NFC"
    assert spans.describe().normalizer is None


def test_13_compatibility_forms(families, everywhere):
    everywhere("ﬁ①", "２０００", "…", "\ufdfa", "\u00b4", "x\u00b4y")
    tokens = strings(families["unigram"], "ﬁ")  # two characters out of one
    assert {span for token, span in tokens if token != "▁"} == {(0, 3)}


def test_14_tabs_line_ends_and_blank_lines(everywhere):
    everywhere("a\tb\n\n  c", "\r\nx", "\n", "\t\t", "a \n b", "x\u2028y\u0085z")


def test_15_underscores_and_spaces_before_punctuation(families, everywhere):
    text = "snake_case _x = a , b"
    everywhere(text, " _ , ")
    for token, (start, end) in strings(families["byte-level"], text):
        assert text[start:end] == token.replace("\u0120", " ")


def test_16_blanks_at_the_ends_or_alone_and_nothing(families, everywhere):
    everywhere("  leading", "trail  ", " ", "  ", "", "\n\n", "   x   ")
    everywhere("")
    assert vocagno.align([], []).shape == (0, 2)
    assert vocagno.align([], TEACHER).shape == (0, 2)
    assert vocagno.align(STUDENT, []).tolist() == [[-1, -1]] * 3
    everywhere()  # an empty batch


def test_17_literal_special_strings(families, everywhere):
    everywhere("<s>hi</s>", "x<s>y", "<s>", "<unk>", "<|endoftext|>a", "[UNK]", "<0x0A>")
    aligned = vocagno.align_text(families["llama"], families["byte-level"], "<s>hi")
    assert aligned.student.tokens[0] == "<s>"
    assert aligned.student.spans[0].tolist() == [0, 3]
    assert aligned.reasons[0] == Reason.MAPPED


def test_18_added_tokens_with_other_names_or_plain_letters(tokenizers, everywhere):
    tokenizer = type(tokenizers["byte-level"]).from_str(tokenizers["byte-level"].to_str())
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>"])
    tokenizer.add_tokens(["ø", "ö", "ú"])
    spans = TokenSpans(tokenizer)
    text = "<｜begin▁of▁sentence｜>søt öl, ú<｜begin▁of▁sentence｜>"
    for other in tokenizers.values():
        pairs.check_pair(spans, TokenSpans(other), [text])
    marker, size = len("<｜begin▁of▁sentence｜>".encode()), len(text.encode())
    tokens = strings(spans, text)
    assert tokens[0] == ("<｜begin▁of▁sentence｜>", (0, marker))
    assert tokens[-1] == ("<｜begin▁of▁sentence｜>", (size - marker, size))
    assert strings(spans, "søt")[1] == ("ø", (1, 3))


def test_19_joined_emoji_flags_controls_and_odd_characters(families, everywhere):
    everywhere(
        "\U0001f469\u200d\U0001f52c",
        "\U0001f1e9\U0001f1ea",
        "\u2764\ufe0f",
        "\x00\x10a",
        "\ufffd",
        "\ufeffx",
        "\U000e0001\ufdd0\U0010ffff",
        "\u202eabc\u202c",
        "\ue000",
    )
    with pytest.raises(vocagno.TextError, match=r"texts\[1\].*lone surrogate"):
        families["llama"].encode(["a", "\ud83d"])


def test_20_digits_apart_or_together(everywhere):
    everywhere("201 1100 3.14159", "1" * 50)
    apart, together = [[0, 1], [1, 2], [2, 3]], [[0, 3]]
    losses = np.array([0.5, 2.0, 1.0])
    assert vocagno.align(apart, together).tolist() == [[0, 1]] * 3
    mapping = vocagno.align(together, apart)
    reduced = [float(vocagno.reduce(losses, mapping, how)[0]) for how in ("max", "mean", "sum")]
    assert reduced == [2.0, float(np.float32(3.5 / 3)), 3.5]


def test_21_long_tokens_over_many():
    """One teacher token over a thousand student tokens: each of them gets its loss."""
    student = [[i, i + 1] for i in range(1_000)]
    mapping = vocagno.align(student, [[0, 1_000]])
    assert (mapping == [0, 1]).all()
    assert (vocagno.reduce([1.5], mapping, "sum") == 1.5).all()


@pytest.mark.slow
@pytest.mark.parametrize("character", ["a", " ", "\u65e5"], ids=ascii)
def test_a_megabyte_of_one_character(families, character):
    """A quarter of one; all of it under `make chaos`."""
    text = character * (repeats(1_000_000, 250_000) // len(character.encode()))
    for name in ("llama", "byte-level", "byte-level-trimmed", "unigram", "word-piece"):
        pairs.check_pair(families["llama"], families[name], [text])


def test_23_a_cut_inside_a_character(families):
    """Ids cut inside a character have no text; nothing is made of them."""
    spans = families["byte-level"]
    ids = spans.encode(["\U0001f60a"]).ids[:-1]
    with pytest.raises(vocagno.TokenizerError, match="cut inside a character"):
        spans.decode(ids)


@pytest.mark.parametrize("text", ["0 1 " * 150, "\\frac{a}{b} " * 60, "the line\n" * 1_000])
def test_27_repetition(families, text):
    for student in ("llama", "word-piece"):
        for teacher in ("byte-level", "unigram"):
            pairs.check_pair(families[student], families[teacher], [text])


def test_32_the_same_vocabulary_is_the_identity(families):
    texts = ["one two three", "caf\u00e9 ∑", "<s>x", "  a"]
    for spans in families.values():
        left, _, mapping = pairs.check_pair(spans, spans, texts)
        rows = np.arange(len(mapping))
        mapped = mapping[:, 0] >= 0
        assert (mapping[mapped, 0] <= rows[mapped]).all()
        assert (mapping[mapped, 1] > rows[mapped]).all()
        tiles = np.append(True, left.spans[1:, 0] == left.spans[:-1, 1])
        alone = mapped & tiles & np.append(tiles[1:], True)
        proved = np.repeat(left.proved, np.diff(left.cu_seqlens))
        assert (mapping[alone & proved] == np.stack([rows, rows + 1], 1)[alone & proved]).all()


@pytest.mark.parametrize(
    ("before", "marks"),
    [
        ("q", "\u0301\u0323"),  # by class: below before above
        ("q", "\u0301\u0323\u0304\u0316"),
        ("xa", "\u0301\u0323"),  # the second one is composed with the letter
        ("a", "\u0327\u0301"),  # likewise, and they stand in order
        ("", "\u00e9\u0323"),  # of the letter's own mark and another one
        ("\u05e9", "\u05bc\u05b8\u05c1"),
    ],
)
def test_33_marks_that_nfc_reorders_are_one_group(families, everywhere, before, marks):
    text = f"one {before}{marks}y {before}{marks}"
    everywhere(text)
    sides = [families[name].encode([text]).spans for name in ("byte-level-nfc", "byte-level")]
    groups = vocagno.groups(*sides)
    held = [
        [(spans[rows, 0].min(), spans[rows, 1].max()) for rows in (slice(*row) for row in ranges)]
        for spans, ranges in zip(sides, (groups.student, groups.teacher), strict=True)
    ]
    assert held[0] == held[1]
    first = len(f"one {before}".encode())
    for start in (first, len(f"one {before}{marks}y {before}".encode())):
        (group,) = (span for span in held[0] if span[0] <= start < span[1])
        assert group[1] >= start + len(marks.encode())
