"""The rule of lines: the loss of neighbours, and the limit that keeps a share of clean text."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import cut_rows, join_documents
from vocagno.errors import ConfigError
from vocagno.guidance import Units, known_weights
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.collator import Collator, limits_needed
from vocagno.guidance.line_rule import (
    SMOOTHING_BYTES,
    kept_share,
    limit_that_keeps,
    rest_of_line_loss,
)
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.score_store import DocumentScores
from vocagno.tokens.token_spans import TokenizedTexts

NEWLINE = 7
LENGTHS = [3, 2, 4, 1, 5, 1, 2, 2]
"""Of the tokens of a document of two lines; ids 0 to 7, of which the last ends a line."""
LOSSES = [np.nan, 4.0, 2.5, 0.5, 9.0, 1.5, 0.25, 1.0]
"""The teacher has the same tokens; its first has no loss."""
IDS = [0, 1, 2, NEWLINE, 3, 4, 5, 6]


def losses(seq_len=20):
    """Of a row that holds the document between BOS and EOS."""
    ends = np.cumsum(LENGTHS)
    spans = np.stack([ends - LENGTHS, ends], axis=1).astype(np.int32)
    ids = np.array(IDS, np.int32)
    tokens = TokenizedTexts(ids, spans, np.array([0, len(ids)]), np.ones(1, bool))
    rows = cut_rows(join_documents(tokens, 0, (8,), 9), seq_len)
    line_ends = np.arange(10) == NEWLINE
    data = DataConfig(train="unused", seq_len=seq_len)
    scores = ScoresInOrder([DocumentScores(spans, np.array(LOSSES, np.float16))])
    return limits_needed(rows, Collator(scores, GuidanceConfig(), data, line_ends))


def test_each_token_has_the_loss_of_the_rest_of_its_line():
    expected = []
    for line in (range(1, 4), range(4, 8)):  # the document's first token has no teacher loss
        for token in line:
            rest = [other for other in line if other != token]
            lost = sum(LOSSES[other] for other in rest) + SMOOTHING_BYTES
            expected.append(lost / (sum(LENGTHS[other] for other in rest) + SMOOTHING_BYTES))
    np.testing.assert_allclose(losses(), expected, rtol=1e-6)


@pytest.mark.parametrize("place", [None, 1, 2, 3])
def test_a_token_without_text_does_not_split_a_group(place):
    """Such a token between two of a group made each half of the group decide about the other."""
    spans = [[0, 2], [2, 5], [5, 6], [6, 8]]
    if place is not None:
        spans.insert(place, [spans[place][0]] * 2)
    spans = np.array(spans, np.int32)
    ids = np.zeros(len(spans), np.int32)
    tokens = TokenizedTexts(ids, spans, np.array([0, len(ids)]), np.ones(1, bool))
    rows = cut_rows(join_documents(tokens, 0, (8,), 9), 20)
    nll = np.array([60.0, 0.5], np.float16)
    scores = ScoresInOrder([DocumentScores(np.array([[0, 6], [6, 8]], np.int32), nll)])
    data = DataConfig(train="unused", seq_len=20)
    collator = Collator(scores, GuidanceConfig(), data, np.zeros(10, bool))
    batch = collator(list(rows))
    assert batch.weight is not None
    weights = batch.weight[0, : len(spans)][spans[:, 0] < spans[:, 1]]
    assert weights.tolist() == [1.0, 1.0, 1.0, 0.0]  # the group of 60 nats is the rest of the last
    expected = [(0.5 + 8) / (2 + 8)] * 3 + [(60 + 8) / (6 + 8)]
    np.testing.assert_allclose(limits_needed(rows, collator), expected, rtol=1e-6)


def test_lines_end_with_their_row_whatever_their_numbers_are():
    """Lines counted from 0 in each row were one line, so that a good row went with a bad one."""
    lines, groups = torch.zeros(2, 2).long(), torch.tensor([[0, 1], [1, 0]])
    units = Units(lines_BT=lines, bytes_BT=torch.full((2, 2), 4), groups_BT=groups)
    loss = torch.tensor([[0.0, 0.0], [50.0, 50.0]])
    weights = known_weights(loss, torch.ones(2, 2).long(), units, GuidanceConfig()).tolist()
    assert weights == [[1.0, 1.0], [0.0, 0.0]]


def test_a_token_without_neighbours_is_never_noise():
    limits = losses(seq_len=2)  # rows of two predicted tokens
    assert np.isneginf(limits).any()
    assert kept_share(-100.0, limits) == np.mean(np.isneginf(limits))


@pytest.mark.parametrize("share", [0.001, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_limit_is_the_least_that_keeps_the_share(share, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.exponential(size=rng.integers(1, 3000)).round(rng.integers(1, 4))
    limit = limit_that_keeps(share, drawn)
    assert kept_share(limit, drawn) >= share
    assert kept_share(limit - 0.01, drawn) < share
    assert float(f"{limit:.2f}") == limit


def test_shares_and_texts_that_say_nothing_are_refused():
    for share in (0.0, -1.0, 1.01, np.nan):
        with pytest.raises(ConfigError, match=r"in \(0, 1\]"):
            limit_that_keeps(share, np.ones(3))
    with pytest.raises(ConfigError, match="no token of the clean text has a teacher loss"):
        limit_that_keeps(0.99, np.empty(0))
    with pytest.raises(ConfigError, match="has no line of more than one token"):
        limit_that_keeps(0.99, np.full(3, -np.inf))
    with pytest.raises(ConfigError, match=r"must be above 0\.5, which every limit .* got 0\.3"):
        limit_that_keeps(0.3, np.array([-np.inf, -np.inf, 1.0, 2.0]))


def test_what_is_no_text_is_no_part_of_a_line():
    """A live teacher of rho1 has losses of EOS and BOS, too, which stored scores have not."""
    lines = torch.tensor([[0, 0, 0, 1, 1, 1]])
    sizes = torch.tensor([[4, 4, -1, -1, 4, 4]])
    config = GuidanceConfig(method="rho1", window_max_loss=2.0)

    def rests(loss_of_special):
        losses = torch.tensor([[4.0, 5.0, loss_of_special, loss_of_special, 6.0, 7.0]])
        labels = torch.zeros(1, 6, dtype=torch.int64)
        batch = GuidedBatch(teacher_loss=losses, labels=labels, line=lines, line_bytes=sizes)
        return rest_of_line_loss(batch, config)

    expected = [(loss + SMOOTHING_BYTES) / (4 + SMOOTHING_BYTES) for loss in (5.0, 4.0, 7.0, 6.0)]
    for loss in (torch.nan, 20.0):
        rest_losses = rests(loss)[sizes > 0]
        torch.testing.assert_close(rest_losses, torch.tensor(expected, dtype=rest_losses.dtype))
