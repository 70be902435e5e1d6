"""Which rows a step trains on: nothing but seed and step decides it."""

from collections import Counter

import pytest

pytest.importorskip("torch")

from vocagno.config.options import TrainConfig, row_counts
from vocagno.errors import ConfigError
from vocagno.training.sampler import MicroBatches, MixedOrder, RowOrder, ValidationBatches


def train_config(**options):
    return TrainConfig(**({"steps": 5, "global_batch": 8, "micro_batch": 2} | options))


def test_the_rows_of_a_step_do_not_depend_on_how_it_is_cut_up():
    layouts = [(1, 8), (1, 1), (2, 4), (4, 2), (2, 1)]
    steps = []
    for processes, micro in layouts:
        config = train_config(micro_batch=micro)
        dealt = [
            list(MicroBatches(RowOrder(13, 7), config, 0, rank, processes))
            for rank in range(processes)
        ]
        turns = config.accumulation(processes)
        steps.append(
            [
                sorted(
                    row
                    for batches in dealt
                    for batch in batches[s * turns : (s + 1) * turns]
                    for row in batch
                )
                for s in range(config.steps)
            ]
        )
    assert all(other == steps[0] for other in steps)


def test_an_epoch_is_a_permutation_and_nothing_is_dropped():
    order = RowOrder(13, 7)
    samples = [order.row(i) for i in range(39)]
    for epoch in range(3):
        assert sorted(samples[13 * epoch : 13 * (epoch + 1)]) == list(range(13))
    assert samples[:13] != samples[13:26]
    assert [RowOrder(13, 7).row(20), RowOrder(13, 8).row(20)] != [order.row(21)] * 2
    assert RowOrder(13, 7).row(20) == samples[20]


def test_going_on_gives_the_batches_that_were_left():
    config = train_config()
    whole = list(MicroBatches(RowOrder(13, 7), config, 0, 1, 2))
    assert list(MicroBatches(RowOrder(13, 7), config, 3, 1, 2)) == whole[3 * 2 :]


def test_validation_reads_every_row_once():
    """In as many batches of as many rows on each process; what is left over reads the empty row."""
    for num_rows, rows, processes in ((13, 3, 2), (12, 3, 2), (1, 4, 3), (7, 1, 1)):
        of_each = [list(ValidationBatches(num_rows, rows, r, processes)) for r in range(processes)]
        assert len({len(batches) for batches in of_each}) == 1
        assert all(
            len(batches) == len(ValidationBatches(num_rows, rows, 0, processes))
            for batches in of_each
        )
        read = [row for batches in of_each for batch in batches for row in batch]
        assert all(len(batch) == rows for batches in of_each for batch in batches)
        assert sorted(row for row in read if row < num_rows) == list(range(num_rows))
        assert {row for row in read if row >= num_rows} <= {num_rows}


def test_corpora_take_turns_by_their_weights():
    """At any time each has had its share; the rows of each are those it has alone, in order."""
    sizes = [13, 5, 40]
    counts = list(row_counts({"a": 0.6, "b": 0.25, "c": 0.15}).values())
    assert counts == [12, 5, 3]
    order, alone = MixedOrder(sizes, counts, 7), [RowOrder(n, 7, c) for c, n in enumerate(sizes)]
    first_rows, seen = [0, 13, 18], Counter()
    for sample in range(500):
        row = order.row(sample)
        corpus = max(c for c in range(3) if first_rows[c] <= row)
        assert row - first_rows[corpus] == alone[corpus].row(seen[corpus])
        seen[corpus] += 1
        shares = [(sample + 1) * count / 20 for count in counts]
        assert all(abs(seen[c] - shares[c]) <= 1.5 for c in range(3))
    assert [seen[c] for c in range(3)] == [300, 125, 75]


def test_the_order_of_a_mixture_needs_no_history():
    counts = [5, 3]
    whole = [MixedOrder([4, 9], counts, 1).row(sample) for sample in range(50)]
    fresh = MixedOrder([4, 9], counts, 1)
    assert [fresh.row(sample) for sample in (49, 3, 20, 0)] == [whole[n] for n in (49, 3, 20, 0)]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0, "b": 0.0}, "the weight of b must be positive, got 0.0"),
        ({"a": -1.0}, "the weight of a must be positive"),
        ({"a": float("nan")}, "the weight of a must be positive"),
        ({"a": float("inf")}, "the weight of a must be positive"),
        ({}, "names no corpus"),
        ({"a": 0.333333333, "b": 0.666666667}, "round them"),
    ],
)
def test_weights_that_make_no_mixture_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        row_counts(weights)


def test_weights_are_a_ratio():
    assert row_counts({"a": 70, "b": 20, "c": 10}) == row_counts({"a": 0.7, "b": 0.2, "c": 0.1})
    assert row_counts({"a": 1e-5, "b": 0.99999}) == {"a": 1, "b": 99_999}
