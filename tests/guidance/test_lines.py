"""Lines of text that are noise to a teacher: by brute force, and as training weights tokens."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vocagno.guidance.lines import judge_lines, line_starts


def brute_force(spans, losses, starts, max_loss):
    """One decision for each line, token by token; `spans` share no bytes."""
    decisions = [False] * len(starts)
    for line, start in enumerate(starts):
        stop = [*starts[1:], 10**9][line]
        tokens = zip(spans, losses, strict=True)
        begun = [(b - a, x) for (a, b), x in tokens if start <= a < stop]
        tokens = [(size, loss) for size, loss in begun if size and np.isfinite(loss)]
        dropped = 0
        for number, (size, _) in enumerate(tokens):
            rest = tokens[:number] + tokens[number + 1 :]
            mean = (sum(x for _, x in rest) + 8) / (sum(n for n, _ in rest) + 8)
            dropped += size * bool(rest and mean > max_loss)
        decisions[line] = dropped > sum(size for size, _ in tokens) / 2
        if line and not [size for size, _ in begun if size]:
            decisions[line] = decisions[line - 1]
    return decisions


@st.composite
def scored_lines(draw):
    """Tokens of up to four bytes and gaps between them, their losses in quarters of a nat, so that
    sums are exact, and lines that begin anywhere."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=14))
    losses = [draw(st.one_of(st.just(np.nan), st.integers(0, 60))) / 4 for _ in sizes]
    spans, at = [], 0
    for gap, size in sizes:
        spans.append((at + gap, at + gap + size))
        at += gap + size
    starts = [0, *sorted(draw(st.sets(st.integers(1, max(1, at)), max_size=5)))]
    return spans, losses, starts


@given(scored_lines(), st.sampled_from([0.5, 1.0, 2.0, 3.0]))
@example(([(0, 3)], [60.0], [0]), 2.0)  # nothing speaks against a token with a line to itself
@example(([(0, 2), (2, 5), (5, 6)], [4.0, 60.0, 1.0], [0, 3, 5]), 1.0)  # a token over two breaks
def test_the_lines_are_those_of_a_brute_force_search(scored, max_loss):
    spans, losses, starts = scored
    arrays = np.array(spans, np.int32).reshape(-1, 2), np.array(losses, np.float16)
    judged = judge_lines(*arrays, np.array(starts), max_loss)
    assert judged.is_noise.tolist() == brute_force(spans, losses, starts, max_loss)
    is_counted = np.isfinite(arrays[1]) & (arrays[0][:, 0] < arrays[0][:, 1])
    assert judged.nats.sum() == arrays[1][is_counted].sum()
    assert judged.num_bytes.sum() == np.diff(arrays[0])[is_counted].sum()


@given(st.text("a\n\ré😊"), st.integers(0, 3))
def test_lines_end_in_line_feeds_alone(text, prompt):
    data = text.encode()
    prompt = min(prompt, len(data))
    starts = line_starts(data, prompt).tolist()
    parts = [data[a:b] for a, b in pairwise([*starts, len(data)])]
    assert b"".join(parts) == data[prompt:]
    assert all(part.find(b"\n") in (-1, len(part) - 1) and part for part in parts)


def judged(tokens, max_loss=2.0, starts=None):
    """The decisions about a text that is given as its tokens and their losses."""
    texts = [text.encode() for text, _ in tokens]
    stops = np.cumsum([len(text) for text in texts])
    spans = np.stack([np.append(0, stops[:-1]), stops], 1)
    starts = line_starts(b"".join(texts)) if starts is None else np.array(starts)
    return judge_lines(spans, np.array([loss for _, loss in tokens]), starts, max_loss)


def test_an_empty_line_goes_with_the_token_that_ends_it():
    noise = [("zq", 20.0), ("xv", 20.0)]
    assert judged([*noise, ("\n\n", 1.0), ("ok", 0.1)]).is_noise.tolist() == [True, True, False]
    assert judged([*noise, ("\n", 1.0), ("\n", 1.0), ("ok", 0.1)]).is_noise.tolist() == [
        True,
        False,
        False,
    ]


def test_a_hard_word_counts_against_its_neighbours_and_not_against_itself():
    tokens = [("Anna", 1.0), (" Przybyszewska", 90.0), (" wrote", 1.0), (" of", 1.0), (" it", 1.0)]
    lines = judged(tokens)
    assert (lines.nats.sum() + 8) / (lines.num_bytes.sum() + 8) > 2
    # Training drops all but the hard word, which is less than half of the first line.
    assert lines.is_noise.tolist() == [True]
    assert judged([("Anna", 1.0), (" Przybyszewska", 90.0), (" x", 1.0)]).is_noise.tolist() == [
        False
    ]


def test_a_limit_below_1_drops_short_lines_that_are_known():
    """`GuidanceConfig.warning` says so."""
    line = [("ab", 0.0), ("c\n", 0.0)]
    assert judged(line, 0.7).is_noise.tolist() == [True]
    assert judged(line, 1.0).is_noise.tolist() == [False]


def test_tokens_of_one_character_are_one_unit():
    spans = np.array([[0, 4], [0, 4], [4, 6], [6, 9]])
    lines = judge_lines(spans, np.array([5.0, 7.0, 9.0, 9.0]), np.array([0]), 2.0)
    assert (lines.nats.tolist(), lines.num_bytes.tolist()) == ([30.0], [9])
    lines = judge_lines(spans, np.array([5.0, np.nan, 9.0, 9.0]), np.array([0]), 2.0)
    assert (lines.nats.tolist(), lines.num_bytes.tolist()) == ([18.0], [5])
    assert judge_lines(spans[:0], np.zeros(0), np.array([0]), 2.0).is_noise.tolist() == [False]
    assert judge_lines(spans[:0], np.zeros(0), np.array([], int), 2.0).is_noise.tolist() == []


TEXT = "The sum of 17 and 25 is 42.\nx = 42, y = 7\n\n\n  def solve(a, b):\n    return -b / a\nso\n"
DOCUMENTS = [f"{n}: {TEXT[n:]}{TEXT}" for n in range(24)]


@pytest.fixture
def weigh():
    """Weights of training by the default rule, and losses, of the tokens of documents."""
    pytest.importorskip("torch")
    pytest.importorskip("pyarrow")
    from vocagno import TokenSpans
    from vocagno.config.guidance import GuidanceConfig
    from vocagno.integrations.baked_files import LOSSES, WEIGHTS
    from vocagno.integrations.baking.documents import Baker

    def weigh(tokenizer, store, texts):
        spans, rule = TokenSpans(tokenizer), GuidanceConfig()
        tokens = spans.encode(texts)
        streams, _ = Baker(spans, store, rule, rule).bake(texts, tokens)
        return tokens, streams[WEIGHTS] / 255, streams[LOSSES]

    return weigh


def test_a_line_goes_if_training_drops_more_than_half_of_its_bytes(tmp_path, tokenizers, weigh):
    """With the teacher's tokens, where the rule of tokens and that of lines see the same units."""
    from token_streams import write_losses

    store = write_losses(tmp_path / "scores", tokenizers["byte-level"], DOCUMENTS, unscored=0.02)
    tokens, weights, losses = weigh(tokenizers["byte-level"], store, DOCUMENTS)
    dropped_lines = differing = 0
    for number, text in enumerate(DOCUMENTS):
        scores, place = store.document(number), tokens.text(number)
        starts = line_starts(text.encode())
        lines = judge_lines(scores.spans, scores.nll, starts, 2.0)
        line = np.searchsorted(starts, tokens.spans[place, 0], side="right") - 1
        sizes = np.diff(tokens.spans[place])[:, 0] * np.isfinite(losses[place])
        total = np.bincount(line, sizes, len(starts))
        dropped = np.bincount(line, sizes * (weights[place] == 0), len(starts))
        begun = np.bincount(line, minlength=len(starts)) > 0
        np.testing.assert_array_equal(lines.is_noise[begun], (2 * dropped > total)[begun])
        dropped_lines += lines.is_noise.sum()
        differing += np.where(lines.is_noise, total - dropped, dropped).sum()
    assert dropped_lines > 50
    assert differing < 0.1 * sum(map(len, DOCUMENTS))


@pytest.mark.parametrize("student", ["byte-level", "llama", "metaspace-never"])
def test_students_with_other_tokens_learn_nothing_of_dropped_lines(
    tmp_path, tokenizers, weigh, student
):
    from noisy_texts import NOISY, without_noise, write_line_losses

    texts = [text for text in NOISY if text]
    store = write_line_losses(tmp_path / "scores", tokenizers["byte-level"], texts)
    tokens, weights, losses = weigh(tokenizers[student], store, texts)
    is_on_noise = np.zeros(len(weights), bool)
    for number, text in enumerate(texts):
        data, scores, place = text.encode(), store.document(number), tokens.text(number)
        starts = line_starts(data)
        lines = judge_lines(scores.spans, scores.nll, starts, 2.0)
        parts = data.splitlines(keepends=True)
        rest = b"".join(part for part, gone in zip(parts, lines.is_noise, strict=True) if not gone)
        assert rest.decode() == without_noise(text)
        line = np.searchsorted(starts, tokens.spans[place, 0], side="right") - 1
        is_on_noise[place] = lines.is_noise[line]
    has_loss = np.isfinite(losses)
    assert has_loss.mean() > 0.8
    np.testing.assert_array_equal(weights[has_loss] == 0, is_on_noise[has_loss])
