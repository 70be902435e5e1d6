"""Candidates: what is coded comes back, codes are near, the most likely ids are those of a sort."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.errors import InputError
from vocagno.teacher import candidate_frames, candidates
from vocagno.teacher.candidate_frames import candidates_in, decode, encode, frames_of
from vocagno.teacher.candidates import (
    NONE,
    Candidates,
    code_candidates,
    codes_of,
    device_codes_of,
    probabilities_of,
)
from vocagno.teacher.sampling import most_likely, sample_


def drawn(num_tokens, count, num_ids, seed=0, missing=0.2):
    """Ids in no order, codes that rise along a row, and places without any."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, num_ids, (num_tokens, count)).astype(np.int32)
    codes = np.sort(draw.integers(0, NONE, ids.shape), 1).astype(np.uint8)
    is_none = draw.random(ids.shape) < missing
    ids[is_none], codes[is_none] = -1, NONE
    return Candidates(draw.integers(0, num_ids, num_tokens).astype(np.int32), ids, codes)


def assert_same(coded, expected):
    assert coded.is_sampled == expected.is_sampled
    assert (coded.entropy is None) == (expected.entropy is None)
    for name in ("tokens", "ids", "codes", *([] if coded.entropy is None else ["entropy"])):
        array, expected_array = getattr(coded, name), getattr(expected, name)
        assert array.dtype == expected_array.dtype
        np.testing.assert_array_equal(array, expected_array)


@pytest.mark.parametrize("num_ids", [3, 1 << 16, (1 << 16) + 1, 1 << 24])
@pytest.mark.parametrize("num_tokens", [0, 1, 300])
@pytest.mark.parametrize("count", [1, 16, 64])
def test_what_is_encoded_comes_back(num_tokens, count, num_ids):
    token_candidates = drawn(num_tokens, count, num_ids)
    token_candidates.tokens[:1] = num_ids - 1
    data = encode(token_candidates)
    assert data[0] == (num_tokens > 0 and num_ids > 1 << 16)
    assert_same(decode(data, num_tokens, count), token_candidates)
    assert_same(decode(np.frombuffer(data, np.uint8), num_tokens, count), token_candidates)


@pytest.mark.parametrize("change", [(-1, 3), (1 << 24, 3), (5, NONE)])
def test_an_id_out_of_range_or_without_a_code_is_not_encoded(change):
    token_candidates = drawn(4, 2, 100, missing=0)
    token_candidates.ids[1, 1], token_candidates.codes[1, 1] = change
    with pytest.raises(ValueError, match="an id is out of range, or has no code"):
        encode(token_candidates)


def test_a_part_decodes_the_frames_that_it_needs(monkeypatch):
    monkeypatch.setattr(candidate_frames, "BLOCK_TOKENS", 10)
    token_candidates = drawn(35, 3, 70_000)
    frames = frames_of(token_candidates)
    assert len(frames) == 4
    joined = np.frombuffer(b"".join(frames), np.uint8)
    sizes = np.array(list(map(len, frames)), np.int32)
    sizes_read, decode_ = [], candidate_frames.decode

    def noted(data, num_tokens, count):
        sizes_read.append(num_tokens)
        return decode_(data, num_tokens, count)

    monkeypatch.setattr(candidate_frames, "decode", noted)
    for start in range(36):
        for stop in range(start, 36):
            rows = slice(start, stop)
            assert_same(candidates_in(joined, sizes, 35, 3, rows), token_candidates[rows])
    sizes_read.clear()
    candidates_in(joined, sizes, 35, 3, slice(18, 21))
    assert sizes_read == [10, 10]
    assert frames_of(token_candidates[:0]) == []


def test_codes_are_as_near_as_the_docstring_says():
    """Half a step of sixteen nats times a square; below, one code."""
    nats = np.concatenate([np.linspace(0, 16, 100_001), -np.log([0.9, 0.37]), [16.5, 60.0]])
    ids = np.zeros((len(nats), 1), np.int32)
    probabilities = Candidates(ids[:, 0], ids, codes_of(-nats)[:, None]).probabilities[:, 0]
    far = np.abs(np.log(probabilities) + np.minimum(nats, 16))
    assert (far <= 4 * np.sqrt(nats) / 254 + 4 / 254**2 + 1e-6).all()
    assert far.max() <= np.log(1.065)
    assert (far[-4:-2] <= (0.0052, 0.0158)).all()
    np.testing.assert_array_equal(
        codes_of(np.array([-np.inf, np.nan, np.inf, 0.05])), [255] * 3 + [0]
    )


def test_codes_of_a_device_are_those_of_the_host():
    """At the edges between two codes, too, and one step of float32 to each side."""
    edges = candidates._BETWEEN
    near = [np.nextafter(edges, np.float32(to)) for to in (0, 99)]
    drawn_ones = np.random.default_rng(0).gamma(1, 4, 10_000).astype(np.float32)
    odd = np.array([0, -1e-7, np.inf, -np.inf, np.nan, 1e30], np.float32)
    log_p = -np.concatenate([edges, *near, drawn_ones, odd])
    host_codes = codes_of(log_p)
    assert (np.diff(np.sort(host_codes[: len(edges)])) == 1).all()
    np.testing.assert_array_equal(device_codes_of(torch.from_numpy(log_p)).numpy(), host_codes)
    codes = host_codes[: len(host_codes) // 8 * 8].reshape(-1, 8)
    for is_sampled in (False, True):
        coded = Candidates(codes[:, 0].astype(np.int32), codes.astype(np.int32), codes, is_sampled)
        of_device = probabilities_of(torch.from_numpy(codes), is_sampled=is_sampled).numpy()
        np.testing.assert_allclose(of_device, coded.probabilities, rtol=1e-6)


def test_only_a_sum_above_one_is_divided():
    codes = np.array([[0, 0], [40, NONE], [NONE, NONE]], np.uint8)
    probabilities = Candidates(np.zeros(3, np.int32), codes.astype(np.int32), codes).probabilities
    np.testing.assert_allclose(
        probabilities, [[0.5, 0.5], [np.exp(-16 * (40 / 254) ** 2), 0], [0, 0]], 1e-6
    )


@pytest.mark.parametrize("sums", [0.98, 1.03])
def test_sampled_candidates_stand_for_all_ids(sums):
    """Eight draws of 1/8 each decode to 0.98; a row without any candidate stays empty."""
    log_p = np.log(np.array([[0.5, 0.25, 0.125, 0.125], [0.25] * 4]) * sums)
    codes = np.concatenate([codes_of(log_p), np.full((1, 4), NONE, np.uint8)])
    ids = np.tile(np.arange(4, dtype=np.int32), (3, 1))
    whole = Candidates(np.zeros(3, np.int32), ids, codes, is_sampled=True)
    sampled = whole.probabilities.sum(1)
    np.testing.assert_allclose(sampled, [1, 1, 0], atol=1e-6)
    parts = [whole[:1], whole[1:], Candidates.none(0, 4)]
    np.testing.assert_array_equal(Candidates.concatenate(parts).probabilities, whole.probabilities)
    with pytest.raises(ValueError, match="those of some tokens are sampled or have entropies"):
        Candidates.concatenate([whole, Candidates(whole.tokens, ids, codes)])


@pytest.mark.parametrize("num_ids", [1, 5, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("count", [1, 7, 64, 80])
def test_the_most_likely_ids_are_those_of_a_sort(num_ids, count):
    """Of equal logits the smaller id comes first; few values make many of them."""
    draw = torch.Generator().manual_seed(num_ids)
    few = torch.randint(-3, 4, (9, num_ids), generator=draw).float()
    few[few == 0] *= -1  # negative zeros
    few[1] = -torch.inf
    few[2, ::2] = -torch.inf
    many = torch.randn(9, num_ids, generator=draw)
    wide = torch.randn(9, num_ids + 3, generator=draw)[:, :num_ids]  # a head with ids to spare
    for logits_CV in (few, many, wide, many[:0]):
        top_logits, ids = most_likely(logits_CV, count)
        order = np.argsort(-logits_CV.numpy(), axis=1, kind="stable")[:, :count].astype(np.int32)
        missing = ((0, 0), (0, count - order.shape[1]))
        expected = np.take_along_axis(logits_CV.numpy(), order.astype(np.int64), 1)
        np.testing.assert_array_equal(ids.numpy(), np.pad(order, missing, constant_values=-1))
        assert ids.dtype == torch.int32
        np.testing.assert_array_equal(
            top_logits.numpy(), np.pad(expected, missing, constant_values=-np.inf)
        )


def sampled(logits_CV, count, uniform_C):
    """Candidates drawn from the softmax of logits, which are kept."""
    top_C1 = logits_CV.amax(1, keepdim=True)
    exponentials_CV = (logits_CV - top_C1).exp()
    return sample_(exponentials_CV, top_C1, most_likely(logits_CV, count), uniform_C)


@pytest.mark.parametrize(("num_ids", "count"), [(300, 8), (64, 3), (130, 4), (5, 8), (70, 1)])
def test_samples_are_right_on_average_with_the_least_variance(num_ids, count):
    """Each sample is a whole distribution. The threshold is that of a search by hand: with it the
    chances of all ids sum to K, and the variance is that of the drawn ones."""
    logits_CV = 3 * torch.randn(5, num_ids, generator=torch.Generator().manual_seed(0))
    logits_CV[0, 4:] = logits_CV[1, :-4] = -torch.inf
    logits_CV[2], logits_CV[3, 0] = 0.0, 30.0
    expected = logits_CV.double().softmax(1)
    mean, variance, tries = torch.zeros_like(expected), torch.zeros_like(expected), 500
    for number in range(tries):
        uniform_C = torch.full((5,), (number + 0.5) / tries)
        logits_CK, ids_CK = sampled(logits_CV, count, uniform_C)
        mass_CK = (logits_CK.double() - logits_CV.double().logsumexp(1, keepdim=True)).exp()
        torch.testing.assert_close(mass_CK.sum(1), mass_CK.new_ones(5), atol=1e-5, rtol=0)
        assert torch.equal(ids_CK < 0, mass_CK == 0)
        estimate = torch.zeros_like(mean).scatter_add_(1, ids_CK.clamp_min(0).long(), mass_CK)
        mean += estimate / tries
        variance += (estimate - expected) ** 2 / tries
    torch.testing.assert_close(mean, expected, atol=1 / tries, rtol=0)
    for row, p in enumerate(expected.numpy()):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if (p / middle).clip(0, 1).sum() > count else (low, middle)
        least = (p * (high - p).clip(0)).sum() if (p > 0).sum() > count else 0.0
        assert variance[row].sum() == pytest.approx(least, rel=0.02, abs=1e-3)
    for bad in (torch.nan, -torch.inf):
        logits_CV = torch.full((5, num_ids), bad)
        assert not sampled(logits_CV, count, uniform_C)[0].isfinite().any()


IDS = np.array([[7, 2, 9, 2], [4, 99, 1, -1]])
LOG_P = np.log([[0.2, 0.4, 0.2, 0.4], [0.5, 0.3, 0.1, 1.0]])
LOG_P[1, 3] = -np.inf


def test_given_candidates_are_put_in_order():
    """The real token may be there twice; ids that pad the model, or of probability 0, are none."""
    ids, codes = code_candidates(IDS, LOG_P, 3, 50, ValueError)
    assert ids.tolist() == [[2, 7, 9], [4, 1, -1]]
    expected = codes_of(np.log([[0.4, 0.2, 0.2], [0.5, 0.1, 1]]))
    expected[1, 2] = NONE
    np.testing.assert_array_equal(codes, expected)
    log_p = LOG_P.copy()
    log_p[0, 0] = -9999.0  # of vLLM's server
    assert code_candidates(IDS, log_p, 3, 50, ValueError)[0][0].tolist() == [2, 9, -1]
    few = code_candidates(np.array([[1, 0]]), np.log([[0.3, 0.6]]), 5, 2, ValueError)
    assert few[0].tolist() == [[0, 1, -1, -1, -1]]
    assert few[1][0, 2:].tolist() == [NONE] * 3


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        ((0, 0), np.nan, "log-probability of nan; expected at most 0"),
        ((1, 2), 0.5, "log-probability of 0.5; expected at most 0"),
        ((0, 2), np.log(0.5), "probabilities sum to 1.100"),
        ((1, 0), None, "gives 2 candidates of a token instead of 3"),
    ],
)
def test_what_is_no_distribution_is_refused(place, change, words):
    ids, log_p = IDS.copy(), LOG_P.copy()
    if change is None:
        ids[place] = -1
    else:
        log_p[place] = change
    with pytest.raises(RefusedError, match=words):
        code_candidates(ids, log_p, 3, 50, RefusedError)


class RefusedError(ValueError):
    pass


def test_a_row_of_less_than_half_the_mass_stays_as_it_is():
    """Ids that pad the head have the rest, of which no candidate is known."""
    codes = codes_of(np.log(np.array([[0.2, 0.1]])))
    ids = np.array([[0, 1]], np.int32)
    row = Candidates(np.zeros(1, np.int32), ids, codes, is_sampled=True)
    np.testing.assert_allclose(row.probabilities, [[0.2, 0.1]], rtol=0.05)
    of_device = probabilities_of(torch.from_numpy(codes), is_sampled=True)
    np.testing.assert_allclose(of_device, row.probabilities, rtol=1e-6)


@pytest.mark.parametrize("entropy", [[9.0, 0.1], [-1.0, 0.1], [1.0], [np.inf, 1.0]])
def test_what_is_no_entropy_of_the_ids_is_refused(entropy):
    """Ten ids have at most 2.3 nats; bits would be more."""
    with pytest.raises(InputError, match=r"gives entropies of shape .* to 2.30259 nats"):
        Candidates.of(**OF, entropy=entropy)
    nats = Candidates.of(**OF, entropy=[2.3, np.nan]).nats_of_entropy
    np.testing.assert_allclose(nats, [2.3, np.nan], atol=0.03)


@pytest.mark.parametrize("above", [0.0, 0.05, 0.099])
def test_a_log_probability_slightly_above_zero_is_rounding(above):
    """An engine of low precision gives a sure token a little more than 1, as it may for a loss."""
    ids, codes = code_candidates(
        np.array([[7, 3]]), np.array([[above, -12.0]]), 2, 50, RefusedError
    )
    assert (ids.tolist(), codes[0, 0]) == ([[7, 3]], 0)


def test_an_id_beyond_all_vocabularies_is_refused():
    with pytest.raises(RefusedError, match=r"gives a candidate 16777216; expected ids below"):
        code_candidates(np.array([[1 << 24]]), np.array([[-1.0]]), 1, None, RefusedError)


OF = {
    "tokens": np.array([5, 0]),
    "ids": np.array([[3, 9, 4], [1, 8, -1]], np.int16),
    "log_p": np.array([[-3.0, -0.5, -2.0], [-1.0, -np.inf, -np.inf]], np.float32),
    "num_ids": 10,
}


def test_candidates_of_arrays():
    token_candidates = Candidates.of(**OF)
    assert token_candidates.ids.tolist() == [[9, 4, 3], [1, -1, -1]]
    expected = codes_of(np.array([[-0.5, -2, -3], [-1, -np.inf, -np.inf]]))
    np.testing.assert_array_equal(token_candidates.codes, expected)
    assert_same(decode(encode(token_candidates), 2, 3), token_candidates)
    empty = {"tokens": np.empty(0, int), "ids": np.empty((0, 3), int), "log_p": np.empty((0, 3))}
    assert_same(Candidates.of(**empty, num_ids=10), Candidates.none(0, 3))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("log_p", OF["log_p"] / 10, "probabilities sum to 2.5"),
        ("log_p", np.where(np.isinf(OF["log_p"]), -4, OF["log_p"]), "id -1 with a probability"),
        ("log_p", OF["log_p"][:, :2], r"of shape \(2,\), \(2, 3\) and \(2, 2\); expected \(M,\)"),
        ("num_ids", 9, "gives ids from -1 to 9; expected ids from -1 to 8"),
        ("ids", OF["ids"] - 1, "gives ids from -2 to 8"),
        ("ids", OF["ids"] * 1.0, "gives ids of type float64; expected integers"),
        ("ids", np.array([[3, 3, 4], [1, 8, -1]]), "an id twice for one token"),
        ("ids", OF["ids"].ravel(), r"of shape \(2,\), \(6,\)"),
        ("tokens", np.array([5, -1]), "gives tokens from -1 to 5; expected ids from 0 to 9"),
        ("tokens", np.array([5, 10]), "gives tokens from 5 to 10"),
        ("tokens", np.array([5]), r"of shape \(1,\), \(2, 3\)"),
    ],
)
def test_arrays_that_are_no_candidates_are_refused(name, value, words):
    with pytest.raises(InputError, match=f"Candidates.of: the caller .*({words})"):
        Candidates.of(**OF | {name: value})
