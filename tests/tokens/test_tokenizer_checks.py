"""Tokenizers that must not be trusted: refused by name, probe and remedy."""

import gzip
import json
import re
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pairs
from altered import Altered, backwards, ends_at_its_start, moved_by
from families import (
    CONTRACTIONS,
    HARD_TEXTS,
    LOSSLESS,
    MISSING_BYTES,
    TEXTS,
    contracting,
    train_unigram,
    without_letters,
)
from folders import LFS_POINTER, LFS_WORDS
from odd_strings import odd_strings
from shared_data import real_tokenizer
from vocagno import TokenizerError, TokenSpans, align_text
from vocagno.tokens import tokenizer_files as tokenizer_source
from vocagno.tokens.tokenizer_checks import PLAIN_PROBES, TokenPlaces, check_tokenizer


def check(tokenizers, family, alter):
    spans = TokenSpans(tokenizers[family])
    altered, vocabulary = Altered(tokenizers[family], alter), spans._vocabulary
    places = TokenPlaces(altered, vocabulary, spans._table)
    check_tokenizer(altered, vocabulary, places, "the tokenizer")


@pytest.fixture
def misdeclared(tokenizers, tmp_path):
    """A byte-level tokenizer that is declared to be Llama's, as DeepSeekMath's is."""
    tokenizers["byte-level"].save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizerFast"}')
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def test_what_old_transformers_make_of_a_tokenizer_is_refused(misdeclared):
    """Releases before 5.22 give it Llama's pre-tokenizer. `make test-floor` has such a release."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from vocagno.errors import ConfigError
    from vocagno.models.own_tokenizers import transformers_tokenizer
    from vocagno.tokens.student_tokenizer import StudentTokenizer

    loaded = transformers.AutoTokenizer.from_pretrained(misdeclared)
    spans = TokenSpans.from_pretrained(str(misdeclared))  # it reads the file itself
    own_ids = [spans.encode([probe]).ids.tolist() for probe in PLAIN_PROBES]
    assert own_ids == [
        TokenSpans(misdeclared / "tokenizer.json").encode([p]).ids.tolist() for p in PLAIN_PROBES
    ]
    student = StudentTokenizer(spans, str(misdeclared), spans.token(0), 0)
    is_old = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 22)
    loaded_ids = [loaded(probe, add_special_tokens=False)["input_ids"] for probe in PLAIN_PROBES]
    assert (loaded_ids != own_ids) == is_old
    if is_old:
        words = r"transformers before 5\.22 loads some tokenizers"
        with pytest.raises(TokenizerError, match=words):
            TokenSpans(loaded)
        words = r"student\.tokenizer: transformers .* use transformers"
        with pytest.raises(ConfigError, match=words):
            transformers_tokenizer(student)
    else:
        assert TokenSpans(loaded).encode([PLAIN_PROBES[0]]).ids.tolist() == own_ids[0]
        assert transformers_tokenizer(student)(PLAIN_PROBES[0])["input_ids"] == own_ids[0]


EMPTY = r"the tokenizer: on 'Sample input' \d+ tokens .* empty offsets.*token 0.*>=0\.22\.1"


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        # Llama-3 before tokenizers 0.20.1: 'Sample input' at (0, 0), (6, 6).
        (ends_at_its_start, EMPTY),
        (moved_by(1), r"on 'Sample input' the offset of token .* points at"),
        (backwards, r"token 1 at .* comes after"),
        (lambda text, ids, o: (ids, [(0, 99), *o[1:]]), r"token 0 has the offset \(0, 99\)"),
        (lambda text, ids, o: (ids[1:], o[1:]), "on 'Sample input' the tokens are 'ample input'"),
    ],
    ids=["zero width", "shifted", "backwards", "outside", "lost text"],
)
def test_a_tokenizer_with_wrong_offsets_is_refused(tokenizers, alter, message):
    with pytest.raises(TokenizerError, match=message):
        check(tokenizers, "byte-level", alter)


def test_some_zero_width_offsets_of_blanks_are_fine(tokenizers):
    """Trimmed runs of spaces, as in Pythia's."""
    blank = {" ", "\n", "  ", "   "}

    def trimmed(text, ids, offsets):
        return ids, [(b, b) if text[a:b] in blank else (a, b) for a, b in offsets]

    check(tokenizers, "byte-level", trimmed)


def test_a_tokenizer_that_loses_spaces_is_refused():
    """As transformers 5 before 5.22 loads DeepSeek's: no token holds a space any more."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = {**{chr(code): code - 33 for code in range(33, 127)}, "\u0120": 94, "\u010a": 95}
    pieces |= {f"\u0120{chr(code)}": code - 33 + 96 for code in range(33, 127)}
    tokenizer = Tokenizer(models.BPE(pieces, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(TokenizerError, match=r"loses the spaces of 'Sample input'.*5\.22"):
        TokenSpans(tokenizer)


def test_a_tokenizer_with_dropout_is_refused(tokenizers):
    tokenizer = type(tokenizers["byte-level"]).from_str(tokenizers["byte-level"].to_str())
    tokenizer.model.dropout = 0.9
    with pytest.raises(TokenizerError, match=r"once as .* switch its dropout off"):
        TokenSpans(tokenizer)


def test_what_has_no_offsets_is_refused():
    class SlowTokenizer:
        is_fast = False

    class MistralCommonBackend:
        name_or_path = "mistral-folder"

    with pytest.raises(TokenizerError, match=r"SlowTokenizer gives no offsets.*tokenizer\.json"):
        TokenSpans(SlowTokenizer())
    with pytest.raises(TokenizerError, match=r"mistral-folder: mistral-common.*tokenizer\.json"):
        TokenSpans(MistralCommonBackend())
    with pytest.raises(TokenizerError, match="int gives no offsets"):
        TokenSpans(7)
    transformers = pytest.importorskip("transformers")
    with pytest.raises(TokenizerError, match=r"ByT5Tokenizer gives no offsets.*slow"):
        TokenSpans(transformers.ByT5Tokenizer())


def test_files_that_are_no_tokenizer(tokenizers, tmp_path):
    """Each file is named with its path; several once ended in the words of a parser."""
    whole = tokenizers["byte-level"].to_str().encode()
    files = {
        "missing.json": (None, "no such file"),
        "cut.json": (whole[:2000], "not a `tokenizers` definition"),
        "empty.json": (b"", "not a `tokenizers` definition"),
        "list.json": (b"[1, 2]", "not a `tokenizers` definition"),
        "object.json": (b"{}", "not a `tokenizers` definition"),
        "model.json": (b'{"model": {"type": "BPE"}}', "not a `tokenizers` definition"),
        "picture.png": (b"\x89PNG\r\n\x1a\n", "not a tokenizer.json"),
        "weights.gguf": (b"GGUF\3\0\0\0\xff", "a GGUF file; name the tokenizer.json"),
        "pointer.json": (LFS_POINTER, LFS_WORDS),
        "pointer.json.gz": (LFS_POINTER, LFS_WORDS),
        "cut.json.gz": (gzip.compress(whole)[:500], "not a tokenizer.json"),
        "broken.json.gz": (b"\x1f\x8b" + bytes(40), "not a tokenizer.json"),
    }
    for name, (content, message) in files.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TokenizerError, match=message) as error:
            TokenSpans(path)
        assert str(path) in str(error.value)
    with pytest.raises(TokenizerError, match=r"a folder of GGUF files; name the tokenizer\.json"):
        TokenSpans.from_pretrained(str(tmp_path))
    (tmp_path / "folder").mkdir()
    with pytest.raises(TokenizerError, match=r"folder: no tokenizer\.json in this folder"):
        TokenSpans(tmp_path / "folder")
    (tmp_path / "folder" / "tokenizer.json").write_bytes(LFS_POINTER)
    with pytest.raises(TokenizerError, match=f"tokenizer.json: {LFS_WORDS}"):
        TokenSpans.from_pretrained(str(tmp_path / "folder"))


def test_an_id_far_beyond_the_others_is_refused_before_memory_is_taken(tokenizers, tmp_path):
    spec = json.loads(tokenizers["byte-level"].to_str())
    spec["model"]["vocab"][next(iter(spec["model"]["vocab"]))] = 4_000_000_000
    path, words = tmp_path / "tokenizer.json", r"its largest id is 4000000000, but it has \d+ tok"
    path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(TokenizerError, match=words):
        TokenSpans(path)


def test_ids_may_have_gaps(tokenizers):
    """Vocabularies are padded, and added tokens stand behind the padding."""
    spec = json.loads(tokenizers["byte-level"].to_str())
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": 200_000, "content": "<late>"})
    spec["model"]["vocab"]["<late>"] = 200_000
    spans = TokenSpans(type(tokenizers["byte-level"]).from_str(json.dumps(spec)))
    assert spans.vocabulary_size == 200_001
    assert spans.decode(spans.encode(["a b"]).ids) == ["a b"]


def test_a_file_that_grows_when_unpacked_is_refused(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_source, "_LARGEST", 2**20)
    packed, plain = tmp_path / "t.json.gz", tmp_path / "tokenizer.json"
    packed.write_bytes(gzip.compress(b" " * (2**20 + 1)))
    plain.write_bytes(b" " * (2**20 + 1))
    for path, words in ((packed, "1 MiB after decompression"), (plain, "1 MiB$")):
        with pytest.raises(TokenizerError, match=f"{path.name}: not .* more than {words}"):
            TokenSpans(path)


def test_the_vocabulary_is_cut_out_wherever_it_may_stand(tokenizers):
    """A token may look like its key; of a Unigram it is not the last."""
    for family in ("byte-level", "word-piece", "unigram"):
        tokenizer = type(tokenizers[family]).from_str(tokenizers[family].to_str())
        tokenizer.add_tokens([',"vocab":{', "}}"])
        whole = json.loads(tokenizer.to_str())
        if family != "unigram":
            del whole["model"]["vocab"]
            whole["model"].pop("merges", None)
        assert tokenizer_source.without_vocabulary(tokenizer.to_str()) == whole


def test_tokenizers_own_implementations_are_taken(tokenizers):
    from tokenizers.implementations import ByteLevelBPETokenizer

    wrapped = ByteLevelBPETokenizer()
    wrapped._tokenizer = tokenizers["byte-level"]
    spans = TokenSpans(wrapped)
    assert spans.name == "ByteLevelBPETokenizer"
    assert spans.fingerprint == TokenSpans(tokenizers["byte-level"]).fingerprint


def test_special_tokens_round_a_text_without_the_letter_a():
    """A vocabulary of digits; `a` gives no token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = {"[CLS]": 0, "[SEP]": 1, **{digit: 2 + int(digit) for digit in "0123456789"}}
    tokenizer = Tokenizer(models.BPE(pieces, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    assert _around(tokenizer) == ((0,), (1,))
    with pytest.raises(TokenizerError, match=r"neither 'a' nor any piece .* gives a token"):
        _around(_without_tokens(tokenizer))


def _around(tokenizer):
    """What is put round a text; the guard, which wants more of a vocabulary, is omitted."""
    spans = TokenSpans.__new__(TokenSpans)
    spans._tokenizer, spans.name = tokenizer, "digits"
    return spans.prefix_ids, spans.suffix_ids


def _without_tokens(tokenizer):
    from tokenizers import Regex, normalizers

    tokenizer.normalizer = normalizers.Replace(Regex("[0-9]"), "")
    return tokenizer


def test_a_tokenizer_without_an_unknown_token_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers

    unigram = Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)]))
    words = Tokenizer(models.WordLevel({"a": 0}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for tokenizer in (unigram, words):
        with pytest.raises(TokenizerError, match=r"'Sample input'.*be tokenized.*an unknown"):
            TokenSpans(tokenizer)


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
    return train_unigram(deleting(b"\x01\x02\x03"), 150, [*TEXTS, "the quick brown fox " * 20])


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
    first, *tokens = strings(real_tokenizer("t5-small"), text)
    assert first == ("x", "x")
    held = [(piece, held.strip()) for piece, held in tokens]
    assert held[: len(pieces)] == [(piece, text[2:4]) for piece in pieces]


@pytest.mark.slow
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
    contracted, sources, at = "", [], 0
    for part in re.findall(f"{several}|.", text, re.DOTALL):
        character = dict(CONTRACTIONS).get(part, part)
        sources += [(at, at + len(part.encode()))] * len(character.encode())
        contracted, at = contracted + character, at + len(part.encode())
    return contracted, sources


@pytest.mark.slow
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
        for index, (start, end), span in zip(ids, before.spans, tokens.spans.tolist(), strict=True):
            if start == end:
                continue
            first, stop = origin[start][0], origin[end - 1][1]
            if is_part_of_a_character(plain.pieces()[index]):
                assert first <= span[0] < span[1] <= stop, (text, index)
            else:
                assert span == [first, stop], (text, index)
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
    places = spans._offsets._places
    disagreeing = places.disagreeing_in(text, ids, moved)
    return disagreeing, places.compiled.misplaced(ids, moved, text, disagreeing)


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
    normalizer = NORMALIZERS[kind](normalizers, Regex)
    tokenizer.normalizer = normalizers.Sequence([normalizer, tokenizer.normalizer])
    spans = TokenSpans(tokenizer)
    texts = [*TEXTS[:6], *HARD_TEXTS, "Babe ab the THE Cab <up> <U> ``q''", "UPPER \ue000 aB"]
    pairs.check_side(spans, spans.encode(texts), texts)


def test_a_class_that_changes_the_tokenizer_is_not_saved_with_a_model(tokenizers, tmp_path):
    """TinyLlama's folder names LlamaTokenizer, which cuts a leading space in its own way."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from vocagno.models.own_tokenizers import transformers_tokenizer
    from vocagno.tokens.student_tokenizer import student_tokenizer

    folder, saved = tmp_path / "own", tmp_path / "saved"
    folder.mkdir()
    tokenizers["llama"].save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "chat_template": "{{ x }}"}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    student = student_tokenizer(str(folder))
    transformers_tokenizer(student).save_pretrained(saved)
    loaded = transformers.AutoTokenizer.from_pretrained(saved)
    for text in (" and x", "    return x", "a</s>b", "Plain."):
        ids = student.spans.encode([text]).ids.tolist()
        assert loaded(text, add_special_tokens=False)["input_ids"] == ids
    assert (loaded.eos_token, loaded.chat_template) == ("</s>", "{{ x }}")
