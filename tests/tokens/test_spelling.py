"""How a new vocabulary is spelled with the tokens of an old one."""

from itertools import pairwise

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from families import FAMILIES, LOSSLESS
from vocagno import TokenSpans
from vocagno.tokens.spelling import spell


def bpe(*words, extra=()):
    """A byte-level BPE with all single bytes, these words, made from left to right, and tokens that
    nothing is merged into."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: index for index, letter in enumerate(letters)}
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in ids:
                ids[word[:end]] = len(ids)
                merges.append((word[: end - 1], word[end - 1]))
    for token in extra:
        ids[token] = len(ids)
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return TokenSpans(tokenizer)


def spelling_of(new, old, token):
    spellings = spell(new, old)
    index = new.token_id(token)
    start, stop = spellings.cu_pieces[index : index + 2]
    return [old.token(i) for i in spellings.old_ids[start:stop].tolist()]


def test_spellings_by_hand():
    old, new = bpe("the", "re"), bpe("there", "abc")
    assert spelling_of(new, old, "there") == ["the", "re"]
    assert spelling_of(new, old, "the") == ["the"]
    assert spelling_of(new, old, "abc") == ["a", "b", "c"]
    assert spelling_of(new, old, "<end>") == []
    spellings = spell(new, old)
    assert spellings.sizes.sum() == len(spellings.old_ids)
    assert (spellings.unspelled, spellings.never_written) == (0, 0)


def test_a_part_of_a_character_is_cut_into_bytes():
    """The first two bytes of a character of three, as a token: no tokenizer is asked for them."""
    first, second, _ = (letter for letter in bpe().tokenizer_copy().encode("\u20ac").tokens)
    assert spelling_of(bpe(first + second), bpe(), first + second) == [first, second]


@pytest.mark.parametrize("new_name", LOSSLESS)
@pytest.mark.parametrize("old_name", LOSSLESS)
def test_the_old_tokens_have_the_bytes_of_the_new_one(new_name, old_name):
    new, old = TokenSpans(FAMILIES[new_name]()), TokenSpans(FAMILIES[old_name]())
    spellings = spell(new, old)
    pieces, old_pieces = new.text_pieces(), old.text_pieces()
    counts = {"spelled": 0, "unspelled": 0, "never_written": 0, "without": 0}
    for piece, (start, stop) in zip(pieces, pairwise(spellings.cu_pieces), strict=True):
        ids = spellings.old_ids[start:stop].tolist()
        if ids:
            assert b"".join(old_pieces[i] for i in ids) == piece
            counts["spelled"] += 1
        else:
            kind = "without" if not piece else "never_written" if pieces.count(piece) > 1 else ""
            counts[kind or "unspelled"] += 1
    assert counts["unspelled"] == spellings.unspelled
    assert counts["never_written"] == spellings.never_written
    assert counts["spelled"] > 300
    if new_name == old_name:
        assert counts["unspelled"] == 0
        assert spellings.sizes.max() == 1


def test_of_tokens_with_one_text_only_the_written_one_is_spelled():
    """A vocabulary with byte fallback has letters twice. The second row would take half of the
    probability of each."""
    tokenizer = FAMILIES["llama"]()
    new, old = TokenSpans(tokenizer), bpe()
    letter, byte = new.token_id("a"), new.token_id("<0x61>")
    assert new.text_pieces()[letter] == new.text_pieces()[byte] == b"a"
    assert tokenizer.encode("ba").ids[-1] == letter
    sizes = spell(new, old).sizes
    assert (sizes[letter], sizes[byte]) == (1, 0)
    identity = spell(new, new)
    assert identity.old_ids.tolist() == [i for i, size in enumerate(identity.sizes) if size]
    assert (identity.sizes[byte], identity.never_written) == (1, 0)
    # From an old vocabulary with both, the row is that of the letter.
    spellings = spell(old, new)
    assert spellings.old_ids[spellings.cu_pieces[old.token_id("a")]] == letter
