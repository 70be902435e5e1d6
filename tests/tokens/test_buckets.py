"""Buckets of two vocabularies: their definition by hand, and what they promise of distributions,
counted out on toy languages, in which everything is known."""

import gc
import pickle
import weakref
from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vocagno
from families import LOSSLESS, TEXTS, without_unknown_token
from shared_data import real_tokenizer, shared_texts
from vocagno import BucketError, TokenSpans
from vocagno.tokens import buckets as module


def greedy(words):
    """A tokenizer that always takes the longest token: single bytes, and these words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(word.replace(" ", "Ġ") for word in words), "[UNK]"]
    ids = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=10**6))
    tokenizer.model.continuing_subword_prefix = ""
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return TokenSpans(tokenizer)


def of_words(side, bucket):
    """The bucket of each piece."""
    pairs = zip(side.pieces(), bucket.tolist(), strict=True)
    return {piece: number for piece, number in pairs if number >= 0}


def test_buckets_by_hand():
    student = greedy([" un", "til", " until", "de"])
    teacher = greedy([" un", "til", "der", "d"])
    made = vocagno.buckets(student, teacher)
    buckets, other = of_words(student, made.student), of_words(teacher, made.teacher)
    assert buckets[b" until"] == buckets[b" un"] == other[b" un"]  # ` un` may go on to ` until`
    assert buckets[b"til"] == other[b"til"] != buckets[b" un"]
    assert buckets[b"de"] == buckets[b"d"] == other[b"der"] == other[b"d"]
    assert buckets[b" "] == other[b" "] not in (buckets[b" un"], buckets[b"de"])
    assert buckets[b"\xe2"] == other[b"\xe2"]
    for side, bucket in ((student, made.student), (teacher, made.teacher)):
        assert bucket[side.token_id("<end>")] == bucket[side.token_id("[UNK]")] == -1
        assert np.count_nonzero(bucket < 0) == 2 + 13  # 13 bytes are in no UTF-8
    assert made.count == len(made.sizes) == 258 - 13
    assert (made.share, made.dissolved, made.largest) == (1.0, 0, made.sizes[:, 0].max())
    assert sorted(made.sizes.sum(1).tolist())[-2:] == [3, 4]
    assert made.student.dtype == made.teacher.dtype == np.int32


class Toy:
    """Two distributions over the same few strings, as two tokenizers' models know them: the
    probabilities of the next token behind some tokens are those of the strings that start so."""

    def __init__(self, student, teacher, strings, seed=0):
        self.made = vocagno.buckets(student, teacher)
        self.weights = np.random.default_rng(seed).dirichlet(np.ones(len(strings)), 2)
        tokens = [side.encode(strings) for side in (student, teacher)]
        self.ids = [[tuple(text.ids.tolist()) for text in side] for side in tokens]
        self.starting = [defaultdict(list) for _ in tokens]
        for starting, texts in zip(self.starting, self.ids, strict=True):
            for number, ids in enumerate(texts):
                for size in range(len(ids) + 1):
                    starting[ids[:size]].append(number)
        self.contexts = set()
        for number, (of_student, of_teacher) in enumerate(zip(*tokens, strict=True)):
            for at, row in enumerate(vocagno.starts(of_student.spans, of_teacher.spans).tolist()):
                if row >= 0:
                    self.contexts.add((self.ids[0][number][:at], self.ids[1][number][:row]))

    def outcome(self, side, number, context):
        """The bucket of a string's next token; -2 for the end of the text."""
        ids = self.ids[side][number]
        bucket = self.made.teacher if side else self.made.student
        return int(bucket[ids[len(context)]]) if len(ids) > len(context) else -2

    def distribution(self, side, context, weights):
        """Over buckets, and over strings."""
        over_buckets, whole = defaultdict(float), np.zeros(len(weights))
        numbers = self.starting[side][context]
        whole[numbers] = weights[numbers] / weights[numbers].sum()
        for number in numbers:
            over_buckets[self.outcome(side, number, context)] += whole[number]
        return over_buckets, whole

    def unlike(self, contexts):
        """The weight, among the strings that the student takes for possible, of those whose tokens
        on both sides are in different buckets."""
        both = set(self.starting[0][contexts[0]]) & set(self.starting[1][contexts[1]])
        whole = self.distribution(0, contexts[0], self.weights[0])[1]
        return sum(
            whole[number]
            for number in both
            if self.outcome(0, number, contexts[0]) != self.outcome(1, number, contexts[1])
        )


def distance(p, q):
    """Total variation of two dictionaries of probabilities."""
    return sum(abs(p.get(key, 0) - q.get(key, 0)) for key in {*p, *q}) / 2


def divergence(p, q):
    """KL in nats."""
    return sum(value * np.log(value / q[key]) for key, value in p.items() if value > 0)


def check_promises(toy):
    """Of all contexts that both sides share; returns how many are exact, and the others' KL."""
    exact, divergences = 0, []
    for contexts in toy.contexts:
        (q, q_strings), (p, p_strings) = (
            toy.distribution(side, contexts[side], toy.weights[0]) for side in (0, 1)
        )
        strings = dict(enumerate(q_strings)), dict(enumerate(p_strings))
        unlike = toy.unlike(contexts)
        assert distance(p, q) <= distance(*strings) + unlike + 1e-12
        if unlike or (q_strings != p_strings).any():
            divergences.append(divergence(p, q) if q.keys() >= p.keys() else np.inf)
            continue
        exact += 1
        assert divergence(p, q) == pytest.approx(0, abs=1e-12)  # equal models
        p, p_strings = toy.distribution(1, contexts[1], toy.weights[1])
        strings = divergence(dict(enumerate(p_strings)), dict(enumerate(q_strings)))
        assert -1e-12 <= divergence(p, q) <= strings + 1e-12  # and two different ones
    return exact, divergences


ALPHABET = "ab "
words = st.sets(st.text(ALPHABET, min_size=2, max_size=4), max_size=6).map(sorted)


@settings(max_examples=15)
@given(words, words, st.sets(st.text(ALPHABET, max_size=6), min_size=1, max_size=30).map(sorted))
def test_the_tokens_of_tokenizers_that_take_the_longest_are_always_in_one_bucket(
    student_words, teacher_words, strings
):
    toy = Toy(greedy(student_words), greedy(teacher_words), strings)
    check_promises(toy)
    assert not any(toy.unlike(contexts) for contexts in toy.contexts)
    assert toy.made.share == 1


NINE = [*LOSSLESS, "byte-level-nfc", "byte-level-missing"]
BEGINNINGS = ["The sum of ", "x = ", "def solve(a", "Naïve c"]
ENDINGS = [
    *("17", "1.50 €", " = 42", ", b):\n    return", "afé π"),
    *("real x.", "  x", "^2", "rem", "7"),
]


@pytest.mark.parametrize("student", NINE)
def test_the_promises_hold_for_every_pair(tokenizers, student):
    """Where both know of the same strings, they are exact; that is so in most contexts. Elsewhere
    equal models differ by no more than what they know differs."""
    strings = ["".join(parts) for parts in product(BEGINNINGS, ENDINGS)]
    spans = TokenSpans(tokenizers[student])
    for name in NINE:
        exact, divergences = check_promises(Toy(spans, TokenSpans(tokenizers[name]), strings))
        assert exact > 9 * len(divergences)
        assert name != student or not divergences


@pytest.mark.parametrize("name", NINE)
def test_a_tokenizer_and_itself_have_the_same_buckets(tokenizers, name):
    side = TokenSpans(tokenizers[name])
    made = vocagno.buckets(side, side)
    np.testing.assert_array_equal(made.student, made.teacher)
    made.check()
    special = np.flatnonzero(side.is_special(np.arange(side.vocabulary_size)))
    assert (made.student[special] == -1).all()
    tokens = side.encode(["The sum of 17 and 25 is 42,\n  so 😊 x = 42."])
    agreement = made.agreement(tokens, tokens)
    assert agreement.tokens == agreement.covered == agreement.same_bucket > 10


def test_the_other_way_round_is_the_same_partition(tokenizers):
    llama, other = (TokenSpans(tokenizers[name]) for name in ("llama", "byte-level"))
    there, back = vocagno.buckets(llama, other), vocagno.buckets(other, llama)
    assert (there.count, there.shares) == (back.count, back.shares[::-1])
    sizes = (np.unique(pairs, axis=0) for pairs in (there.sizes, back.sizes[:, ::-1]))
    np.testing.assert_array_equal(*sizes)
    for bucket, mirror in ((there.student, back.teacher), (there.teacher, back.student)):
        assert len({*zip(bucket.tolist(), mirror.tolist(), strict=True)}) == len({*bucket.tolist()})
    space, word = llama.token_id("▁"), llama.token_id("▁x")  # no dummy prefix before pieces
    pieces = other.pieces()
    assert there.student[space] == there.teacher[pieces.index(b" ")]
    assert there.student[llama.token_id("x")] == there.teacher[pieces.index(b"x")]
    assert word is None or there.student[word] != there.student[llama.token_id("x")]


@pytest.mark.parametrize("name", [*LOSSLESS, "unigram"])
def test_a_text_that_continues_another_is_read_as_it_is(tokenizers, name):
    """Without a space before it, with its own at its start, and special tokens as text."""
    side = TokenSpans(tokenizers[name])
    tokenizer, pieces = side.continuing_tokenizer(), side.pieces()
    for text in ["sum", " sum", "  x", *(["\n", "<s>", "é<|endoftext|>"] * (name in LOSSLESS))]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(pieces[index] for index in ids) == text.encode()
        assert not side.is_special(ids).any()


def test_a_tokenizer_that_cannot_read_all(tokenizers):
    """No unknown token: pieces that it cannot read begin with none of its own, or with one."""
    narrow, wide = TokenSpans(without_unknown_token("é", "π")), TokenSpans(tokenizers["llama"])
    made = vocagno.buckets(narrow, wide)
    assert (made.student[[narrow.token_id(token) for token in ("the", "x")]] >= 0).all()
    assert made.teacher[wide.token_id("<0x01>")] == -1
    after = [
        id for id, piece in enumerate(wide.text_pieces()) if piece and set(piece) & {*"éπ".encode()}
    ]
    before = np.full(len(after), narrow.token_id("x"))
    assert module.Boundaries(narrow, wide).can_follow(before, np.array(after)).all()
    assert made.boundaries is None  # it changes texts
    with pytest.raises(BucketError, match=r"of the ids with text [\d.]+% of the student's"):
        made.check()


def test_components_that_are_too_large_are_no_buckets(tokenizers):
    sides = [TokenSpans(tokenizers[name]) for name in ("llama", "byte-level")]
    whole, cut = vocagno.buckets(*sides), vocagno.buckets(*sides, max_size=1)
    assert (whole.largest, whole.dissolved) == (whole.sizes[:, 0].max(), 0)
    assert cut.largest == whole.largest > 1
    assert cut.dissolved == np.count_nonzero(whole.sizes[:, 0] > 1) == whole.count - cut.count
    assert cut.sizes[:, 0].tolist() == [1] * cut.count
    whole.check()
    words = f"max_size=1 of the student's, the largest {cut.largest} "
    with pytest.raises(BucketError, match=words):
        cut.check()
    cut.check(least=0.1)
    for wrong in (0, -3):
        with pytest.raises(ValueError, match="max_size: expected 1 to"):
            vocagno.buckets(*sides, max_size=wrong)


def test_a_teacher_may_have_any_number_of_ids_in_a_bucket():
    """A student of bytes under a teacher of words: the bucket of the space has all words. What a
    step costs are the student's ids, of which it has one. The limit was once one of both sides."""
    words = [f" {a}{b}{c}" for a, b, c in product("abcdefgh", repeat=3)]
    sides = greedy([]), greedy(words)
    made = vocagno.buckets(*sides, max_size=1)
    made.check()
    assert (made.dissolved, made.largest, made.share) == (0, 1, 1.0)
    assert made.sizes.max(0).tolist() == [1, len(words) + 1]
    assert module.MAX_SIZE > 40_970  # ids of Gemma 3 in one bucket under GPT-2
    with pytest.raises(BucketError, match=r"1 sets of ids are no buckets, .*largest 513 \(vocagno"):
        vocagno.buckets(*sides[::-1], max_size=512).check()


@pytest.mark.parametrize("name", ["llama", "byte-level"])
def test_what_the_student_would_have_in_one_token_cannot_follow(tokenizers, name, monkeypatch):
    """The parts of a token, where its text is read as this token; not the tokens of a text."""
    side = TokenSpans(tokenizers[name])
    pieces, tokenizer = side.text_pieces(), side.continuing_tokenizer()
    ids = {piece: index for index, piece in enumerate(pieces) if piece}
    parts = []
    for piece, index in ids.items():
        if not piece.isascii():
            continue
        if tokenizer.encode(piece.decode(), add_special_tokens=False).ids == [index]:
            cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
            parts += [(ids[a], ids[b]) for a, b in cuts if a in ids and b in ids if not b.isspace()]
    assert len(parts) > 100
    before, after = np.array(parts).T
    boundaries = pickle.loads(pickle.dumps(module.Boundaries(side, side)))
    unused = pickle.dumps(boundaries)
    assert not boundaries.can_follow(before, after).any()
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 3)  # what is forgotten is found again
    assert not boundaries.can_follow(before[::-1], after[::-1]).any()
    tokens = side.encode(TEXTS).ids.astype(np.int64)
    assert boundaries.can_follow(tokens[:-1], tokens[1:]).mean() > 0.95
    assert pickle.dumps(boundaries) == unused
    none = np.array([-1, side.vocabulary_size, 1 << 24])
    assert boundaries.can_follow(np.full(3, before[0]), none).all()
    assert boundaries.can_follow(none, np.full(3, before[0])).all()


def test_buckets_do_not_hold_the_teachers_tokenizer(tokenizers, tmp_path):
    """One of 262,144 ids would take 160 MB of a run that has no more use for it."""
    student = TokenSpans(tokenizers["byte-level"])
    for _ in ("made", "read from the cache"):
        teacher = TokenSpans(tokenizers["llama"])
        held = weakref.ref(teacher)
        made = vocagno.buckets(student, teacher, cache=tmp_path)
        assert made.boundaries is not None
        del teacher
        gc.collect()
        assert held() is None


def test_a_file_is_found_and_another_one_refused(tokenizers, tmp_path, monkeypatch):
    sides = [TokenSpans(tokenizers[name]) for name in ("llama", "byte-level")]
    made = vocagno.buckets(*sides, cache=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_compute_buckets", lambda *_: pytest.fail("made again"))
        cached = vocagno.buckets(*sides, cache=tmp_path / "cache")
    assert isinstance(cached.boundaries, module.Boundaries)
    for name in made.__dataclass_fields__.keys() - {"boundaries"}:
        np.testing.assert_array_equal(getattr(cached, name), getattr(made, name))
    vocagno.buckets(*sides, max_size=3, cache=tmp_path / "cache")
    vocagno.buckets(*sides[::-1], cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 3
    with pytest.raises(BucketError, match="another student tokenizer"):
        module.Buckets.load(file, sides[1], sides[1])
    with pytest.raises(BucketError, match=r"another teacher tokenizer.*vocagno\.buckets"):
        module.Buckets.load(file, sides[0], sides[0])
    with pytest.raises(FileNotFoundError):
        module.Buckets.load(tmp_path / "none", *sides)


def test_a_damaged_file_is_refused_or_the_same(tokenizers, tmp_path):
    sides = [TokenSpans(tokenizers[name]) for name in ("llama", "byte-level")]
    made, file = vocagno.buckets(*sides), tmp_path / "a.npz"
    made.save(file)
    data = file.read_bytes()
    refused = 0
    damaged = [data[:at] for at in range(0, len(data), len(data) // 40)]
    damaged += [
        data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        for at in range(0, len(data), 23)
    ]
    for content in [*damaged, b"[]", np.arange(3).tobytes()]:
        file.write_bytes(content)
        try:
            loaded = module.Buckets.load(file, *sides)
        except BucketError as error:
            assert "damaged" in str(error)  # noqa: PT017
            refused += 1
        else:
            np.testing.assert_array_equal(loaded.student, made.student)
            np.testing.assert_array_equal(loaded.teacher, made.teacher)
    assert refused > len(damaged) / 2


@pytest.mark.slow
def test_real_tokenizers_on_real_text():
    """The share of shared starts, and of tokens in one bucket there; T5 and BERT are refused."""
    texts = shared_texts("math-valid")[::4]
    names = ("tinyllama", "mistral-v0.1", "gpt2", "t5-small", "bert-base-uncased")
    sides = {name: real_tokenizer(name) for name in names}
    tokens = {name: side.encode(texts) for name, side in sides.items()}
    covered_shares = {("tinyllama", "mistral-v0.1"): 0.985, ("gpt2", "tinyllama"): 0.895}
    for (student, teacher), covered in covered_shares.items():
        made = vocagno.buckets(sides[student], sides[teacher])
        made.check()
        agreement = made.agreement(tokens[student], tokens[teacher])
        assert agreement.covered / agreement.tokens == pytest.approx(covered, abs=0.01)
        assert 0.985 < agreement.same_bucket / agreement.covered < 0.9999
    for student, teacher in (("gpt2", "t5-small"), ("bert-base-uncased", "gpt2")):
        with pytest.raises(BucketError, match="tokenizers that change the text"):
            vocagno.buckets(sides[student], sides[teacher]).check()
