"""A teacher's log-probabilities of sampled tokens: sums are exact, and what differs is refused."""

import itertools
import time
from itertools import pairwise

import numpy as np
import pytest

import vocagno
from families import FAMILIES, HARD_TEXTS, TEXTS
from shared_data import REAL_TOKENIZERS, shared, shared_texts
from vocagno import TokenizerError, TokenSpans
from vocagno.errors import InputError


def oracle(
    tokens, other, student_logprobs, teacher_logprobs, *, both_have_prefixes=False, special=None
):
    """Group by group, from the definition. Dummy prefixes of both sides are the same space.
    `special`: which tokens of both sides are."""
    sides = [tokens.spans, other.spans]
    if both_have_prefixes:
        sides = [np.concatenate([[[0, spans[0, 1] + 1]], spans[1:] + 1]) for spans in sides]
    groups = vocagno.groups(*sides)
    expected = np.full(len(tokens.ids), np.nan)
    for (a, b), (c, d) in zip(groups.student.tolist(), groups.teacher.tolist(), strict=True):
        # A dummy prefix before a group belongs to it.
        rows = range(a - (a > 0 and sides[0][a - 1, 0] == sides[0][a - 1, 1]), b)
        c -= c > 0 and sides[1][c - 1, 0] == sides[1][c - 1, 1]
        if special and len({*special[0][a:b], *special[1][c:d]}) > 1:
            continue
        total = sum(teacher_logprobs[c:d])
        whole = sum(student_logprobs[row] for row in rows)
        for row in rows:
            part = student_logprobs[row] / whole if whole else 1 / len(rows)
            expected[row] = total * part
    return expected


def drawn(rng, count):
    return -rng.exponential(1, count)


def of_texts(student, teacher):
    """Boundaries of the texts of both sides, as options."""
    return {"student_cu_seqlens": student, "teacher_cu_seqlens": teacher}


@pytest.mark.parametrize(("student", "teacher"), [*itertools.product(FAMILIES, repeat=2)])
def test_credits_are_their_definition(tokenizers, student, teacher):
    rng = np.random.default_rng(0)
    small, large = TokenSpans(tokenizers[student]), TokenSpans(tokenizers[teacher])
    compared = 0
    for text in TEXTS[:8]:
        tokens, other = small.encode([text]), large.encode([text])
        if not (tokens.proved.all() and other.proved.all()):
            continue  # ids that do not tell their text are refused, see below
        logprobs, teacher_logprobs = drawn(rng, len(tokens.ids)), drawn(rng, len(other.ids))
        try:
            credits = vocagno.credit(
                small, tokens.ids, large, other.ids, teacher_logprobs, student_logprobs=logprobs
            )
        except TokenizerError:
            continue
        both = {"both_have_prefixes": small.has_dummy_prefix and large.has_dummy_prefix}
        np.testing.assert_allclose(
            credits, oracle(tokens, other, logprobs, teacher_logprobs, **both), rtol=1e-9
        )
        even = vocagno.credit(small, tokens.ids, large, other.ids, teacher_logprobs)
        ones = -np.ones(len(tokens.ids))
        np.testing.assert_allclose(even, oracle(tokens, other, ones, teacher_logprobs, **both))
        compared += 1
    if small.loses is None and large.loses is None:
        assert compared == 8


@pytest.fixture(scope="module")
def real():
    return {name: TokenSpans(shared("tokenizers", f"{name}.json.gz")) for name in REAL_TOKENIZERS}


@pytest.mark.slow
@pytest.mark.parametrize("student", REAL_TOKENIZERS)
def test_sums_are_exact_on_all_pairs(real, student):
    """To 1e-5 nats a document of real text, wherever both sides' ids tell it."""
    rng = np.random.default_rng(0)
    small, compared = real[student], 0
    texts = [(text, small.encode([text])) for text in shared_texts("math-valid")[:5]]
    for name, large in real.items():
        for text, tokens in texts:
            other = large.encode([text])
            teacher_logprobs, logprobs = drawn(rng, len(other.ids)), drawn(rng, len(tokens.ids))
            try:
                credits = vocagno.credit(
                    small, tokens.ids, large, other.ids, teacher_logprobs, student_logprobs=logprobs
                )
            except TokenizerError:
                assert not (tokens.proved.all() and other.proved.all()) or lossy(student, name)
                continue
            assert abs(np.nansum(credits) - teacher_logprobs.sum()) < 1e-5
            assert np.isfinite(credits).all()
            compared += 1
    if not lossy(student, student):
        assert compared > 30


def lossy(*names):
    """Whether a tokenizer changes the text, so that its ids cannot tell it."""
    return bool({"bert-base-uncased", "t5-small"} & set(names))


PROMPT = "Ana has 12 apples."


def sampled_after(spans, prompt, response):
    """The ids of a response after its prompt, which have no dummy prefix of their own."""
    both, start = spans.encode([prompt + response]), len(prompt.encode())
    first = int(np.searchsorted(both.spans[:, 1], start, side="right"))
    assert both.spans[first, 0] == start
    return both.ids[first:]


@pytest.mark.parametrize("response", [" Bo has 3.", "Bo has 3.", "  Bo", " "])
@pytest.mark.parametrize("student", ["llama", "byte-level"])
@pytest.mark.parametrize("teacher", ["llama", "byte-level"])
def test_responses_need_no_prompt_before_them(tokenizers, student, teacher, response):
    """Whether a space at the start is in the text or a dummy prefix is what the other side says."""
    small, large = TokenSpans(tokenizers[student]), TokenSpans(tokenizers[teacher])
    ids = sampled_after(small, PROMPT, response)
    assert small.decode(ids, continues=True) == [response]
    for other in (sampled_after(large, PROMPT, response), large.encode([response]).ids):
        logprobs = drawn(np.random.default_rng(7), len(other))
        credits = vocagno.credit(small, ids, large, other, logprobs)
        assert credits.sum() == pytest.approx(logprobs.sum(), abs=1e-9)
        arguments = small, np.tile(ids, 2), large, np.tile(other, 2), np.tile(logprobs, 2)
        boundaries = of_texts(np.arange(3) * len(ids), np.arange(3) * len(other))
        twice = vocagno.credit(*arguments, **boundaries)
        np.testing.assert_array_equal(twice, np.tile(credits, 2))


WRITTEN = ["a</s>b", "Old price <s>5</s> now 4", " <s>hi", "x <s> y"]


@pytest.mark.parametrize("student", ["llama", "byte-level"])
@pytest.mark.parametrize("text", [*WRITTEN, *HARD_TEXTS])
def test_hard_texts_are_credited_whole_or_refused(tokenizers, student, text):
    """Of special tokens written in a text the other side's ids tell what is written. They are not
    compared with its letters."""
    names = student, "byte-level" if student == "llama" else "llama"
    small, large = (TokenSpans(tokenizers[name]) for name in names)
    tokens, other = small.encode([text]), large.encode([text])
    logprobs = drawn(np.random.default_rng(9), len(other.ids))
    try:
        credits = vocagno.credit(small, tokens.ids, large, other.ids, logprobs)
    except TokenizerError:
        assert text not in WRITTEN
        return
    special = small.is_special(tokens.ids), large.is_special(other.ids)
    if text.strip():
        expected = oracle(tokens, other, -np.ones(len(tokens.ids)), logprobs, special=special)
        np.testing.assert_allclose(credits, expected)
    if text in WRITTEN:
        assert np.isnan(credits[special[0]]).all()
        assert np.isfinite(credits).any()


def test_a_special_token_inside_a_response(tokenizers):
    """After it a dummy prefix stands again."""
    small = TokenSpans(tokenizers["llama"])
    ids = [*sampled_after(small, PROMPT, " 19"), small.token_id("</s>"), *small.encode(["So"]).ids]
    assert small.decode(ids, continues=True) == [" 19So"]


def test_texts_that_differ_are_named_with_the_place(tokenizers):
    small, large = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    student_ids, other = small.encode(["Ana has 3"]).ids, large.encode(["Ana has 4"])
    logprobs = -np.ones(len(other.ids))
    with pytest.raises(TokenizerError, match=r"from character 8, .* has '3' and .* '4'"):
        vocagno.credit(small, student_ids, large, other.ids, logprobs)
    with pytest.raises(TokenizerError, match=r"from character 8, .* has '4' and .* '3'"):
        vocagno.credit(large, other.ids, small, student_ids, -np.ones(len(student_ids)))
    cut = small.encode(["∑"]).ids[:-1]
    response = sampled_after(small, PROMPT, "Bo")
    ids, ends = np.concatenate([response, cut]), [0, len(response), len(response) + len(cut)]
    other = large.encode(["Bo", "x"])
    arguments = small, ids, large, other.ids, -np.ones(len(other.ids))
    with pytest.raises(TokenizerError, match=r"documents 1 .* character 0, .* has .* and .* 'x'"):
        vocagno.credit(*arguments, **of_texts(ends, other.cu_seqlens))


def test_a_batch_of_responses_and_whole_texts(tokenizers):
    small, large = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    texts = [" 19 of them", "of them", "a whole text", "another"]
    sequences = [sampled_after(small, PROMPT, text) for text in texts[:2]]
    sequences += [small.encode([text]).ids for text in texts[2:]]
    other = large.encode([*texts[:3], "something else"])
    ends = np.cumsum([0, *map(len, sequences)])
    logprobs = drawn(np.random.default_rng(8), len(other.ids))
    arguments = small, np.concatenate(sequences), large, other.ids, logprobs
    boundaries = of_texts(ends, other.cu_seqlens)
    with pytest.raises(TokenizerError, match="documents 3 are not the same text on both sides"):
        vocagno.credit(*arguments, **boundaries)
    credits = vocagno.credit(*arguments, **boundaries, strict=False)
    for index in range(3):
        total = logprobs[other.text(index)].sum()
        assert credits[ends[index] : ends[index + 1]].sum() == pytest.approx(total)
    assert np.isnan(credits[ends[3] :]).all()
    boundaries["student_cu_seqlens"] = [0, ends[-1]]
    with pytest.raises(ValueError, match="1 texts of the student and 4 of the teacher"):
        vocagno.credit(*arguments, **boundaries)


@pytest.mark.parametrize("text", ["12 + 7 = 19", ""])
def test_the_end_of_a_text_is_compared_with_the_end(tokenizers, text):
    """Special tokens have no text. One at the end of both sides is the same event."""
    small, large = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    ends = small.token_id("</s>"), large.token_id("<|endoftext|>")
    student_ids, other = small.encode([text]).ids, large.encode([text]).ids
    logprobs = drawn(np.random.default_rng(2), len(other) + 1)
    credits = vocagno.credit(small, [*student_ids, ends[0]], large, [*other, ends[1]], logprobs)
    assert credits[-1] == logprobs[-1]
    assert credits.sum() == pytest.approx(logprobs.sum())
    credits = vocagno.credit(small, [*student_ids, ends[0]], large, other, logprobs[:-1])
    assert np.isnan(credits[-1])
    assert np.nansum(credits) == pytest.approx(logprobs[:-1].sum())


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("student", ["llama", "metaspace-always", "metaspace-first"])
def test_a_sampled_space_after_an_added_token(tokenizers, student, special):
    """Only the other side tells that it is text, and no dummy prefix: so it is of `</think>`, and
    of a special token that the text does not show."""
    from tokenizers import AddedToken

    tokenizer = type(tokenizers[student]).from_str(tokenizers[student].to_str())
    tokenizer.add_tokens([AddedToken("</think>", normalized=False)])
    small, large = TokenSpans(tokenizer), TokenSpans(tokenizers["byte-level"])
    token = "</s>" if special else "</think>"
    before, after = sampled_after(small, PROMPT, " 19."), sampled_after(small, PROMPT, " So a b")
    ids = [*before, small.token_id(token), *after]
    student_logprobs, is_text = drawn(np.random.default_rng(12), len(ids)), np.ones(len(ids), bool)
    is_text[len(before)] = not special
    shown = "" if special else token
    for text in (f"19.{shown} So a b", f" 19.{shown} So a b"):
        other = large.encode([text]).ids
        teacher_logprobs = drawn(np.random.default_rng(11), len(other))
        credits = vocagno.credit(small, ids, large, other, teacher_logprobs)
        assert credits[is_text].sum() == pytest.approx(teacher_logprobs.sum())
        assert np.isnan(credits[~is_text]).all()
        turned = vocagno.credit(large, other, small, ids, student_logprobs)
        assert turned.sum() == pytest.approx(student_logprobs[is_text].sum())
    other = large.encode([f"19.{shown}So a b"]).ids
    if student == "metaspace-first":  # it puts no dummy prefix there
        with pytest.raises(TokenizerError, match=r"from character (3|11),"):
            vocagno.credit(small, ids, large, other, -np.ones(len(other)))
    else:
        credits = vocagno.credit(small, ids, large, other, -np.ones(len(other)))
        assert np.nansum(credits) == pytest.approx(-len(other))


def test_batches_are_their_texts(tokenizers):
    rng = np.random.default_rng(3)
    small, large = TokenSpans(tokenizers["byte-level"]), TokenSpans(tokenizers["llama"])
    texts = ["one", "", "two words", TEXTS[0]]
    tokens, other = small.encode(texts), large.encode(texts)
    teacher_logprobs, logprobs = drawn(rng, len(other.ids)), drawn(rng, len(tokens.ids))
    arguments = small, tokens.ids, large, other.ids, teacher_logprobs
    boundaries = of_texts(tokens.cu_seqlens, other.cu_seqlens)
    together = vocagno.credit(*arguments, student_logprobs=logprobs, **boundaries)
    for number in range(len(texts)):
        rows, rest = tokens.text(number), other.text(number)
        arguments = small, tokens.ids[rows], large, other.ids[rest], teacher_logprobs[rest]
        alone = vocagno.credit(*arguments, student_logprobs=logprobs[rows])
        np.testing.assert_allclose(together[rows], alone)


def test_what_is_missing_is_missing_for_its_group_only(tokenizers):
    small, large = TokenSpans(tokenizers["byte-level"]), TokenSpans(tokenizers["llama"])
    text = TEXTS[0]
    tokens, other = small.encode([text]), large.encode([text])
    for hole in (np.nan, -np.inf):
        logprobs = drawn(np.random.default_rng(4), len(other.ids))
        logprobs[0] = hole
        credits = vocagno.credit(small, tokens.ids, large, other.ids, logprobs)
        first = vocagno.groups(tokens.spans, other.spans).student[0]
        assert np.isnan(credits).nonzero()[0].tolist() == list(range(*first))
    nothing = np.ma.masked_all(len(other.ids))
    assert np.isnan(vocagno.credit(small, tokens.ids, large, other.ids, nothing)).all()


def test_a_student_that_was_sure_of_a_group_gets_even_parts(tokenizers):
    small, large = TokenSpans(tokenizers["byte-level"]), TokenSpans(tokenizers["llama"])
    tokens, other = small.encode([TEXTS[0]]), large.encode([TEXTS[0]])
    logprobs = drawn(np.random.default_rng(5), len(other.ids))
    arguments = small, tokens.ids, large, other.ids, logprobs
    sure = vocagno.credit(*arguments, student_logprobs=np.zeros(len(tokens.ids)))
    np.testing.assert_allclose(sure, vocagno.credit(*arguments))


def test_credit_names_the_argument_that_is_wrong(tokenizers):
    small, large = TokenSpans(tokenizers["byte-level"]), TokenSpans(tokenizers["llama"])
    student_ids, other = small.encode(["a text"]).ids, large.encode(["a text"]).ids
    with pytest.raises(ValueError, match="teacher_logprobs: expected one for each of"):
        vocagno.credit(small, student_ids, large, other, [-1.0])
    arguments = small, student_ids, large, other, -np.ones(len(other))
    with pytest.raises(ValueError, match="student_logprobs: 1 is no log-probability"):
        vocagno.credit(*arguments, student_logprobs=np.ones(len(student_ids)))
    with pytest.raises(InputError, match=r"only: expected .same_ends., or None.*got 'same_end'"):
        vocagno.credit(*arguments, only="same_end")


def in_random_pieces(rng, spans, text):
    """Ids of any tokens with these bytes, as a student may sample them."""
    special = spans.is_special(np.arange(spans.vocabulary_size))
    pieces = {piece: i for i, piece in enumerate(spans.pieces()) if piece and not special[i]}
    ids = []
    while text:
        size = next(size for size in range(rng.integers(1, 7), 0, -1) if text[:size] in pieces)
        ids.append(pieces[text[:size]])
        text = text[size:]
    return ids


def defined(tokens, other, logprobs, same, only):
    """Credits by their definition, dealt out evenly. A token of either side is its length in bytes
    and whether it is special; the first `same` bytes are those of both sides."""
    sides = []
    for side in (tokens, other):
        ends = np.cumsum([0, *(length for length, _ in side)]).tolist()
        sides.append([(*at, of[1]) for at, of in zip(pairwise(ends), side, strict=True)])
    cuts = {0, *(end for _, end, _ in sides[0])} & {0, *(end for _, end, _ in sides[1])}
    credits, total = np.full(len(tokens), np.nan), 0.0
    for first, stop in pairwise(sorted(cut for cut in cuts if cut <= same)):
        student_rows, teacher_rows = (
            [i for i, (a, b, _) in enumerate(side) if first <= a < b <= stop] for side in sides
        )
        kinds = {sides[0][i][2] for i in student_rows} | {sides[1][i][2] for i in teacher_rows}
        if len(kinds) == 1 and (only is None or len(student_rows) == len(teacher_rows) == 1):
            credits[student_rows] = logprobs[teacher_rows].sum() / len(student_rows)
            total += logprobs[teacher_rows].sum()
    return credits, total


BITS = ["a", "12", " ", "the ", "\n", "=", "é", "≈", "🦖", "<", "3 ", "of"]
REPLACED = "\ufffd".encode()


@pytest.mark.parametrize("only", [None, "same_ends"])
@pytest.mark.parametrize(
    "ending", ["none", "of both", "of one", "in letters", "cut", "replaced", "bytes", "inside"]
)
@pytest.mark.parametrize("student", ["byte-level", "metaspace-never"])
def test_credits_of_random_tokens_are_their_definition(tokenizers, student, ending, only):
    """Random pieces of a text on both sides, also cut inside a character: the credits add up to the
    teacher's sum, and no part of it goes to a token of other text."""
    rng = np.random.default_rng(0)
    names = student, "metaspace-never" if student == "byte-level" else "byte-level"
    small, large = (TokenSpans(tokenizers[name]) for name in names)
    sides, ends = (small, large), [{"byte-level": "<|endoftext|>"}.get(n, "</s>") for n in names]
    for _ in range(40):
        text = "".join(rng.choice(BITS, rng.integers(1, 12))).encode()
        texts = {  # what the student has sampled and what the teacher has read
            "in letters": (text, text + ends[0].encode()),
            "cut": (text + b"\xf0\x9f", text),
            "replaced": (text + b"\xe2\x89", text + REPLACED),
            "bytes": (text + "≈".encode() + b"\xf0", text + REPLACED * 4),
            "inside": (text + b"\xf0\x9f" + text, text + REPLACED + text),
        }.get(ending, (text, text))
        ids = [in_random_pieces(rng, side, of) for side, of in zip(sides, texts, strict=True)]
        tokens = [
            [(len(side.pieces()[i]), False) for i in of]
            for side, of in zip(sides, ids, strict=True)
        ]
        has_end = ending in ("of both", "of one", "in letters"), ending == "of both"
        for side, of, end, has in zip(sides, ids, ends, has_end, strict=True):
            of += [side.token_id(end)] * has
        logprobs = drawn(rng, len(ids[1]))
        if has_end[0]:
            tokens[0].append((len(ends[0]) if ending == "in letters" else 0, True))
        if has_end[1]:
            tokens[1].append((0, True))
        same = len(texts[1]) if ending == "in letters" else len(text)
        expected, total = defined(*tokens, logprobs, same, only)
        if ending == "of both":
            expected[-1], total = logprobs[-1], total + logprobs[-1]
        credits = vocagno.credit(small, ids[0], large, ids[1], logprobs, only=only)
        np.testing.assert_allclose(credits, expected)
        assert np.nansum(credits) == pytest.approx(total)


def test_one_response_never_loses_the_others(tokenizers):
    """Ids beyond the vocabulary (a head has some to spare), a cut, another text."""
    small, large = TokenSpans(tokenizers["llama"]), TokenSpans(tokenizers["byte-level"])
    good, cut = small.encode([TEXTS[0], "a∑"])
    sequences = [good.ids, [*good.ids, 10**6], cut.ids[:-1], small.encode(["another"]).ids]
    other = large.encode([TEXTS[0], TEXTS[0], "a", "text"])
    logprobs = drawn(np.random.default_rng(13), len(other.ids))
    arguments = small, np.concatenate(sequences), large, other.ids, logprobs
    boundaries = of_texts(np.cumsum([0, *map(len, sequences)]), other.cu_seqlens)
    credits = vocagno.credit(*arguments, **boundaries, strict=False)
    first, unknown, after_cut, another = np.split(credits, boundaries["student_cu_seqlens"][1:-1])
    alone = vocagno.credit(small, good.ids, large, other[0].ids, logprobs[other.text(0)])
    np.testing.assert_array_equal(first, alone)
    assert np.isnan([*unknown, *another]).all()
    np.testing.assert_array_equal(after_cut, [*logprobs[other.text(2)], np.nan, np.nan])
    with pytest.raises(TokenizerError, match="id 1000000 has no known bytes"):
        vocagno.credit(*arguments, **boundaries)
    with pytest.raises(ValueError, match="cu_seqlens"):  # no fault of a response
        vocagno.credit(*arguments, student_cu_seqlens=[0, 5, 3], strict=False)
    words = TokenSpans(tokenizers["word-piece"])
    with pytest.raises(TokenizerError, match="do not determine the text"):
        vocagno.credit(words, [5], large, [5], [-1.0], strict=False)


def test_two_thousand_tokens_take_less_than_a_generated_token(tokenizers):
    """A millisecond is generous: it takes some hundred microseconds."""
    small, large = TokenSpans(tokenizers["byte-level"]), TokenSpans(tokenizers["llama"])
    text = "".join(TEXTS) * 3
    student_ids = small.encode([text]).ids
    other = large.encode([text]).ids
    logprobs, taken = drawn(np.random.default_rng(7), len(other)), []
    for _ in range(10):
        began = time.perf_counter()
        vocagno.credit(small, student_ids, large, other, logprobs)
        taken.append(time.perf_counter() - began)
    assert min(taken) / len(student_ids) < 5e-6
