"""Candidates of a teacher as probabilities of buckets, against loops over tokens."""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vocagno
from families import HARD_TEXTS, TEXTS
from vocagno import BucketError, TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import cut_rows, join_documents
from vocagno.errors import ConfigError, GuidanceError
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import Collator
from vocagno.guidance.pieces import (
    ScoresInOrder,
    SeveralTeachers,
    read_pieces,
    stored_targets,
)
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores

DOCUMENTS = [*TEXTS[:6], *HARD_TEXTS, "".join(TEXTS[:4])]
DISTILL = GuidanceConfig(method="distill", distill_where="all")
PAIRS = [
    ("llama", "byte-level"),
    pytest.param("byte-level", "metaspace-first", marks=pytest.mark.slow),
    pytest.param("metaspace-never", "byte-level-prefix-space", marks=pytest.mark.slow),
    pytest.param("byte-level", "byte-level", marks=pytest.mark.slow),
]


@pytest.fixture
def sides(tokenizers):
    return {name: TokenSpans(tokenizer) for name, tokenizer in tokenizers.items()}


def packed(spans):
    """Rows of 23 tokens, which hold several documents or parts of one."""
    stream = join_documents(spans.encode(DOCUMENTS), 0, spans.prefix_ids, 0)
    return cut_rows(stream, 23)


def drawn(spans, count, seed):
    """Scores of the documents with drawn candidates: some ids of none of the tokenizer, places and
    tokens without any, a document without scores, and real tokens that the tables do not know."""
    rng, tokens, documents = np.random.default_rng(seed), spans.encode(DOCUMENTS), []
    for index in range(len(DOCUMENTS)):
        if index == 2:
            documents.append(DocumentScores.none("not scored"))
            continue
        place = tokens.text(index)
        real, size = tokens.ids[place].copy(), place.stop - place.start
        real[rng.random(size) < 0.05] = spans.vocabulary_size + 3
        ids = rng.integers(0, spans.vocabulary_size + 9, (size, count)).astype(np.int32)
        ids[:, 1:][rng.random((size, count - 1)) < 0.3] = -1
        ids[rng.random(size) < 0.1] = -1
        codes = np.where(ids < 0, 255, rng.integers(0, 120, ids.shape)).astype(np.uint8)
        nll = rng.exponential(1, size).astype(np.float16)
        candidates = Candidates(real.astype(np.int32), ids, codes)
        documents.append(DocumentScores(tokens.spans[place], nll, candidates=candidates))
    return documents


def starting(spans):
    """The token that starts at each byte."""
    token_at, end = {}, 0
    for index, (first, stop) in enumerate(spans.tolist()):
        if first < stop:
            if first >= end:
                token_at[first] = index
            end = max(end, stop)
    return token_at


def looked_up(table, index):
    return int(table[index]) if 0 <= index < len(table) else -1


def ends_between(student, before, text):
    """Whether a token of the student's ends after `before`, in its text and this one."""
    first = student.text_pieces()[before]
    if not first or not text:
        return True
    try:
        joined = (first + text).decode()
    except UnicodeDecodeError:
        return True
    for longer in (joined, joined + "x") if text.isspace() else (joined,):
        ids = student.continuing_tokenizer().encode(longer, add_special_tokens=False).ids
        pieces = [student.text_pieces()[token] or b"" for token in ids]
        sizes = [len(b"".join(pieces[:count])) for count in range(1, len(pieces) + 1)]
        if sizes[-1] != len(longer.encode()) or len(first) in sizes:
            return True
    return False


def by_loops(rows, documents, of, student, teacher):
    """Of each token of the rows: the row of the teacher's token in its document, or -1, and the
    probability of each bucket."""
    texts, can_follow = teacher.text_pieces(), cache(partial(ends_between, student))
    for row in rows:
        begin = 0
        for document, count in zip(row.documents, row.num_tokens.tolist(), strict=True):
            spans, ids = row.spans[begin : begin + count], row.ids[begin : begin + count]
            begin += count
            scores = documents[document]
            byte_of, token_at = {at: i for i, at in starting(spans).items()}, starting(scores.spans)
            for index in range(count):
                other = token_at.get(byte_of.get(index), -1)
                student_bucket = looked_up(of.student, int(ids[index]))
                if other < 0 or student_bucket != looked_up(
                    of.teacher, int(scores.candidates.tokens[other])
                ):
                    other = -1
                if other < 0 or student_bucket < 0:
                    yield -1, {}
                    continue
                codes = scores.candidates.codes[other].tolist()
                masses = [0.0 if n == 255 else math.exp(-16 * (n / 254) ** 2) for n in codes]
                masses = [p / max(1.0, sum(masses)) for p in masses]
                sums, left = {}, 1.0
                for candidate, p in zip(scores.candidates.ids[other].tolist(), masses, strict=True):
                    text = texts[candidate] if 0 <= candidate < len(texts) else None
                    is_real = candidate == scores.candidates.tokens[other]
                    is_asked = index and p >= 0.002 and not is_real
                    if is_asked and not can_follow(int(ids[index - 1]), text):
                        left -= p
                    elif (bucket := looked_up(of.teacher, candidate)) >= 0:
                        sums[bucket] = sums.get(bucket, 0.0) + p
                yield other, {b: p / left for b, p in sums.items() if left >= 0.1}


def check(targets, columns, first, expected):
    """The buckets of some columns, each once, and their sums; how many tokens have some."""
    numbers, masses = targets.bucket_nS[:, columns], targets.mass_nS[:, columns]
    assert (numbers.dtype, masses.dtype) == (torch.int32, torch.float32)
    assert len(numbers) == len(expected)
    for bucket_S, mass_S, (_, sums) in zip(
        numbers.tolist(), masses.tolist(), expected, strict=True
    ):
        mass_of_bucket = {b - first: p for b, p in zip(bucket_S, mass_S, strict=True) if b >= 0}
        assert len(mass_of_bucket) == sum(b >= 0 for b in bucket_S)
        assert mass_of_bucket == pytest.approx(sums, rel=1e-6)
        assert all(p == 0 for b, p in zip(bucket_S, mass_S, strict=True) if b < 0)
    return sum(bool(sums) for _, sums in expected)


def over_buckets(rows, scores, targets):
    sides = read_pieces(rows, scores)
    return stored_targets(rows, sides, scores, targets, needs_entropy=DISTILL.needs_entropy)


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_sums_over_buckets_are_those_of_a_loop(sides, student, teacher):
    of = vocagno.buckets(sides[student], sides[teacher])
    targets = BucketTargets(of, 7)
    rows, documents = packed(sides[student]), drawn(sides[teacher], 7, seed=1)
    expected = list(by_loops(rows, documents, of, sides[student], sides[teacher]))
    row_targets = over_buckets(rows, ScoresInOrder(documents), targets)
    compared = check(row_targets, slice(0, 7), 0, expected)
    assert 0.3 < compared / len(expected) < 0.95
    assert any(len(row.num_tokens) > 2 for row in rows)
    assert any(1 < len(sums) < 7 for _, sums in expected)
    # On rows of two dimensions, as a live teacher gives them.
    teacher_rows = np.array([row for row, _ in expected if row >= 0][:6]).reshape(2, 3)
    candidates = documents[-1].candidates
    teacher_rows = torch.from_numpy(np.where(teacher_rows < len(candidates.ids), teacher_rows, -1))
    triples = torch.stack([teacher_rows, *torch.randint(300, (2, *teacher_rows.shape))], -1)
    columns = candidates.ids, candidates.probabilities, candidates.nats_of_entropy
    tensors = tuple(map(torch.from_numpy, columns))
    flat, square = targets.at(triples.flatten(0, 1), *tensors), targets.at(triples, *tensors)
    assert square.bucket_nS.shape == (2, 3, 7)
    assert torch.equal(square.mass_nS.flatten(0, 1), flat.mass_nS)


def test_a_token_that_followed_is_kept_where_others_could_not(sides):
    student, teacher = sides["llama"], sides["byte-level"]
    of = vocagno.buckets(student, teacher)
    texts = enumerate(teacher.text_pieces())
    asked = (i for i, text in texts if text and not text.isspace() and of.teacher[i] >= 0)
    before = student.encode(["a"]).ids.tolist()[-1]
    token = next(i for i in asked if not ends_between(student, before, teacher.text_pieces()[i]))
    rows = torch.tensor([[0, token, before], [0, token + 1, before]])
    target = BucketTargets(of, 1).at(rows, torch.tensor([[token]]), torch.ones(1, 1), torch.ones(1))
    assert target.bucket_nS.tolist() == [[of.teacher[token]], [-1]]
    assert target.mass_nS.tolist() == [[1.0], [0.0]]


@pytest.mark.slow
def test_columns_and_shares_of_several_teachers(sides):
    names, counts = ["byte-level", "metaspace-first"], [4, 2]
    student, both = sides["llama"], [vocagno.buckets(sides["llama"], sides[name]) for name in names]
    targets = BucketTargets(both, counts, [3, 1])
    assert (targets.table.places, targets.table.shares) == (counts, (0.75, 0.25))
    rows, stores = packed(student), [drawn(sides[names[i]], counts[i], i) for i in range(2)]
    scores = SeveralTeachers([ScoresInOrder(store) for store in stores])
    over = over_buckets(rows, scores, targets)
    first = [0, both[0].count]
    for number, columns in enumerate((slice(0, 4), slice(4, 6))):
        expected = list(by_loops(rows, stores[number], both[number], student, sides[names[number]]))
        assert check(over, columns, first[number], expected) > 100
    sizes = [np.bincount(pair.student[pair.student >= 0]) for pair in both]
    assert targets.table.begins.tolist() == [0, *np.concatenate(sizes).cumsum().tolist()]
    for bucket in (0, 5, first[1] - 1, first[1], first[1] + 9):
        number = int(bucket >= first[1])
        begin, end = targets.table.begins[bucket : bucket + 2].tolist()
        ids = np.flatnonzero(both[number].student == bucket - first[number])
        assert targets.table.members[begin:end].tolist() == ids.tolist()
    for teacher_scores in (scores, ScoresInOrder(stores[0])):
        wrong = targets if teacher_scores is not scores else BucketTargets(both[0], 4)
        with pytest.raises(GuidanceError, match=r"buckets of [12] teachers, scores of [12]"):
            over_buckets(rows, teacher_scores, wrong)


def test_numbers_of_members_are_known_to_the_host(sides):
    of = vocagno.buckets(sides["llama"], sides["byte-level"])
    targets, rows = BucketTargets(of, 5), packed(sides["llama"])
    scores = ScoresInOrder(drawn(sides["byte-level"], 5, 2))
    data = DataConfig(train="", seq_len=23, isolate=True)
    batch = Collator(scores, DISTILL, data, targets=targets)(rows)
    bucket, labels = batch.candidates, batch.labels
    assert (bucket[labels == -100] == -1).all()
    assert (batch.candidate_mass[bucket < 0] == 0).all()
    sizes = np.append(of.sizes[:, 0], 0)[bucket.numpy()].sum(-1).flatten()
    assert batch.members_before.tolist() == [0, *sizes.cumsum().tolist()]
    place, ids = targets.table.ids(bucket[3], None)
    expected = [
        (at, member)
        for at, number in enumerate(bucket[3].flatten().tolist())
        for member in (np.flatnonzero(of.student == number).tolist() if number >= 0 else [])
    ]
    assert list(zip(place.tolist(), ids.tolist(), strict=True)) == expected != []


def test_a_key_tells_tables_apart(sides):
    of = vocagno.buckets(sides["llama"], sides["byte-level"])
    other = vocagno.buckets(sides["llama"], sides["metaspace-first"])
    cases = [(of, 4), (of, 5), (other, 4), ([of, other], [4, 4]), ([of, other], [4, 4], [1, 2])]
    keys = [BucketTargets(*case).table.key for case in cases]
    assert len({*keys}) == len(cases)
    assert BucketTargets([of, other], [4, 4], [2.0, 2.0]).table.key == keys[3]


def test_what_cannot_be_compared_is_refused(sides):
    """Candidates of another number, buckets of other tokenizers and useless pairs are named before
    anything trains."""
    llama, byte_level = sides["llama"], sides["byte-level"]
    of = vocagno.buckets(llama, byte_level)
    for arguments, message in (
        ((of, 0), "the scores have no candidates; score with `--candidates`"),
        (([of, of], [4, 0]), "the scores have no candidates"),
        (([of, of], [4, 4], [1, 0]), r"shares: expected numbers above 0, got \[1, 0\]"),
        (([of, of], [4, 4], [1, math.nan]), "shares: expected numbers above 0"),
        (([of, of], 4), "buckets of 2 teachers, candidates of 1 and 1 shares; give one for each"),
        (([], []), "buckets of 0 teachers"),
        (([of, vocagno.buckets(byte_level, llama)], [4, 4]), "are of several student tokenizers"),
    ):
        with pytest.raises(ConfigError, match=message):
            BucketTargets(*arguments)
    with pytest.raises(BucketError, match=r"^of the ids with text .* are in a bucket"):
        BucketTargets(vocagno.buckets(llama, sides["word-piece"]), 4)
    with pytest.raises(BucketError, match=r"more than max_size=1 of the student's"):
        BucketTargets(vocagno.buckets(llama, byte_level, max_size=1), 4)

    targets, data = BucketTargets(of, 4), DataConfig(train="", seq_len=23)
    documents, rows = drawn(byte_level, 4, 0), packed(llama)
    scores = ScoresInOrder(documents)
    with pytest.raises(ConfigError, match=r"^targets: guidance.method: distill needs BucketTa"):
        Collator(scores, DISTILL, data)
    with pytest.raises(ConfigError, match=r"^targets: guidance.method: alm needs none"):
        Collator(scores, GuidanceConfig(method="alm"), data, targets=targets)
    Collator(None, DISTILL, data)(rows[:2])  # of held-out text
    without = ScoresInOrder([replace(document, candidates=None) for document in documents])
    for wrong, number in ((without, 4), (scores, 5)):
        collator = Collator(wrong, DISTILL, data, targets=BucketTargets(of, number))
        with pytest.raises(GuidanceError, match=f"needs scores with {number} candidates of each"):
            collator(rows)
