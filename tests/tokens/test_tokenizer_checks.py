"""Tokenizers that must not be trusted: refused by name, probe and remedy."""

import gzip
import json

import pytest

from altered import Altered
from families import FAMILIES
from shared_data import REAL_TOKENIZERS, shared
from vocagno import TokenizerError, TokenSpans
from vocagno.tokens import tokenizer_files as tokenizer_source
from vocagno.tokens.token_places import TokenPlaces
from vocagno.tokens.tokenizer_checks import HARD_PROBES, PLAIN_PROBES, check_tokenizer


def check(tokenizers, family, alter):
    spans = TokenSpans(tokenizers[family])
    altered, vocabulary = Altered(tokenizers[family], alter), spans._vocabulary
    places = TokenPlaces(altered, vocabulary, spans._table)
    check_tokenizer(altered, vocabulary, places, "the tokenizer")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes(tokenizers, family):
    check(tokenizers, family, lambda text, ids, offsets: (ids, offsets))


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_real_tokenizers_pass(name):
    TokenSpans(shared("tokenizers", f"{name}.json.gz"))


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
    from vocagno.models.loading import transformers_tokenizer
    from vocagno.tokens.student_tokenizer import StudentTokenizer

    loaded = transformers.AutoTokenizer.from_pretrained(misdeclared)
    own = TokenSpans.from_pretrained(str(misdeclared))  # it reads the file itself
    own_ids = [own.encode([probe]).ids.tolist() for probe in PLAIN_PROBES]
    assert own_ids == [
        TokenSpans(misdeclared / "tokenizer.json").encode([p]).ids.tolist() for p in PLAIN_PROBES
    ]
    student = StudentTokenizer(own, str(misdeclared), own.token(0), 0)
    is_old = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 22)
    theirs = [loaded(probe, add_special_tokens=False)["input_ids"] for probe in PLAIN_PROBES]
    assert (theirs != own_ids) == is_old
    if is_old:
        with pytest.raises(
            TokenizerError, match=r"transformers before 5\.22 loads some tokenizers"
        ):
            TokenSpans(loaded)
        with pytest.raises(
            ConfigError, match=r"student\.tokenizer: transformers .* use transformers"
        ):
            transformers_tokenizer(student)
    else:
        assert TokenSpans(loaded).encode([PLAIN_PROBES[0]]).ids.tolist() == own_ids[0]
        assert transformers_tokenizer(student)(PLAIN_PROBES[0])["input_ids"] == own_ids[0]


def test_zero_width_offsets(tokenizers):
    """Llama-3 before tokenizers 0.20.1: 'Sample input' at (0, 0), (6, 6)."""
    message = r"the tokenizer: on 'Sample input' \d+ tokens .* empty offsets.*token 0.*>=0\.22\.1"
    with pytest.raises(TokenizerError, match=message):
        check(tokenizers, "byte-level", lambda text, ids, o: (ids, [(a, a) for a, _ in o]))


def test_some_zero_width_offsets_of_blanks_are_fine(tokenizers):
    """Trimmed runs of spaces, as in Pythia's."""
    blank = {" ", "\n", "  ", "   "}
    check(
        tokenizers,
        "byte-level",
        lambda text, ids, o: (ids, [(b, b) if text[a:b] in blank else (a, b) for a, b in o]),
    )


def test_shifted_offsets(tokenizers):
    def later(text, ids, offsets):
        return ids, [(min(a + 1, len(text)), min(b + 1, len(text))) for a, b in offsets]

    with pytest.raises(TokenizerError, match=r"on 'Sample input' the offset of token .* points at"):
        check(tokenizers, "byte-level", later)


def test_offsets_out_of_order_or_outside(tokenizers):
    with pytest.raises(TokenizerError, match=r"token 1 at .* comes after"):
        check(tokenizers, "byte-level", lambda text, ids, o: (ids, o[::-1]))
    with pytest.raises(TokenizerError, match=r"token 0 has the offset \(0, 99\)"):
        check(tokenizers, "byte-level", lambda text, ids, o: (ids, [(0, 99), *o[1:]]))


def test_lost_text(tokenizers):
    with pytest.raises(TokenizerError, match="on 'Sample input' the tokens are 'ample input'"):
        check(tokenizers, "byte-level", lambda text, ids, o: (ids[1:], o[1:]))


def test_lost_spaces():
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


def test_dropout(tokenizers):
    tokenizer = type(tokenizers["byte-level"]).from_str(tokenizers["byte-level"].to_str())
    tokenizer.model.dropout = 0.9
    with pytest.raises(TokenizerError, match=r"once as .* switch its dropout off"):
        TokenSpans(tokenizer)


def test_a_text_with_zero_width_offsets_is_refused_where_they_are_needed(tokenizers, monkeypatch):
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    collapsed = Altered(spans._tokenizer, lambda text, ids, o: (ids, [(a, a) for a, _ in o]))
    monkeypatch.setattr(spans._offsets, "_tokenizer", collapsed)
    assert spans.encode(["plain"]).proved.all()  # offsets are not needed
    with pytest.raises(TokenizerError, match=r"texts\[0\].*'caf.*empty offsets"):
        spans.encode(["cafe\u0301 x"])


def test_offsets_out_of_order_name_their_text(tokenizers, monkeypatch):
    spans = TokenSpans(tokenizers["byte-level-nfc"])
    altered = Altered(spans._tokenizer, lambda text, ids, o: (ids, o[::-1] if "x" in text else o))
    monkeypatch.setattr(spans._offsets, "_tokenizer", altered)
    with pytest.raises(TokenizerError, match=r"texts\[2\], which begins with 'e\u0301 x'.*order"):
        spans.encode(["proved", "e\u0301", "e\u0301 x"])


def test_what_has_no_offsets_is_refused(tmp_path):
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


def test_a_slow_tokenizer_of_transformers_is_refused(tmp_path):
    pytest.importorskip("transformers")
    from transformers import ByT5Tokenizer

    with pytest.raises(TokenizerError, match=r"ByT5Tokenizer gives no offsets.*slow"):
        TokenSpans(ByT5Tokenizer())


def test_files_that_are_no_tokenizer(tokenizers, tmp_path):
    whole = tokenizers["byte-level"].to_str().encode()
    files = {
        "missing.json": (None, "no such file"),
        "cut.json": (whole[:2000], "not a `tokenizers` definition"),
        "empty.json": (b"", "not a `tokenizers` definition"),
        "list.json": (b"[1, 2]", "not a `tokenizers` definition"),
        "object.json": (b"{}", "not a `tokenizers` definition"),
        "model.json": (b'{"model": {"type": "BPE"}}', "not a `tokenizers` definition"),
        "picture.png": (b"\x89PNG\r\n\x1a\n", "not a tokenizer.json"),
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
    (tmp_path / "folder").mkdir()
    with pytest.raises(TokenizerError, match=r"folder: no tokenizer\.json in this folder"):
        TokenSpans(tmp_path / "folder")


def test_an_id_far_beyond_the_others_is_refused_before_memory_is_taken(tokenizers, tmp_path):
    spec = json.loads(tokenizers["byte-level"].to_str())
    spec["model"]["vocab"][next(iter(spec["model"]["vocab"]))] = 4_000_000_000
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(
        TokenizerError, match=r"its largest id is 4000000000, but it has \d+ tokens"
    ):
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


def test_probes_are_told_apart():
    assert all(probe.isascii() for probe in PLAIN_PROBES)
    assert any(not probe.isascii() for probe in HARD_PROBES)


@pytest.mark.parametrize(
    ("family", "path", "dummy"),
    [
        ("llama", "ids", "prepend"),
        ("metaspace-first", "ids", "metaspace_first"),
        ("byte-level-nfc", "ids", "none"),
        ("word-piece", "offsets", "none"),
        ("unigram", "offsets", "metaspace"),
    ],
)
def test_describe(tokenizers, family, path, dummy):
    described = TokenSpans(tokenizers[family]).describe()
    assert (described.path, described.dummy_prefix) == (path, dummy)
    assert (described.loses is None) == (path == "ids")
    json.dumps(described.as_dict())
    assert f"dummy prefix         {'none' if dummy == 'none' else 'a space'}" in str(described)


def test_describe_names_normalizer_and_specials(tokenizers):
    described = TokenSpans(tokenizers["llama"]).describe()
    assert described.normalizer == "Prepend, Replace"
    assert described.pre_tokenizer is None
    assert described.byte_fallback
    assert (described.prefix, described.suffix) == (["<s>"], [])
    assert described.special_tokens == ["<unk>", "<s>", "</s>"]
    assert TokenSpans(tokenizers["byte-level-nfc"]).describe().normalizer == "NFC"


def test_a_tokenizer_without_an_unknown_token_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers

    unigram = Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)]))
    words = Tokenizer(models.WordLevel({"a": 0}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    for tokenizer in (unigram, words):
        with pytest.raises(TokenizerError, match=r"'Sample input'.*be tokenized.*an unknown"):
            TokenSpans(tokenizer)
