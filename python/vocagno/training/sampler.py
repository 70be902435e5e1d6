"""Chooses the rows of each step: a pure function of seed, step, process and batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from vocagno.config.options import TrainConfig


class RowOrder:
    """The rows of all samples of one corpus, epoch after epoch.

    Each epoch is a permutation of the rows that depends only on `(seed, epoch, corpus)`.
    """

    def __init__(self, num_rows: int, seed: int, corpus: int = 0) -> None:
        self.num_rows = num_rows
        self.seed = seed
        self.corpus = corpus
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def row(self, sample: int) -> int:
        """The row of a sample, which is numbered from the start of the run."""
        # The permutation of the last epoch is kept, as samples come in order; any other one is made
        # again from the same three numbers, so that nothing has to be saved.
        epoch, place = divmod(sample, self.num_rows)
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch, self.corpus]))
            self._epoch, self._permutation = epoch, generator.permutation(self.num_rows)
        return int(self._permutation[place])


class MixedOrder:
    """The rows of all samples of a run over several corpora, numbered through.

    The corpora take turns in a fixed cycle, each as evenly as its share allows: at any time each of
    C corpora has had its share of the samples to within C / 2 rows.
    """

    def __init__(self, num_rows: Sequence[int], counts: Sequence[int], seed: int) -> None:
        """Args: counts: the rows of each corpus in a cycle (`row_counts`)."""
        self._orders = [RowOrder(rows, seed, corpus) for corpus, rows in enumerate(num_rows)]
        self._first_rows = [0, *accumulate(num_rows)]
        self._counts = list(counts)
        self._cycle, self._before = _cycle(counts)

    def row(self, sample: int) -> int:
        """The row of a sample; rows are numbered through all corpora in their order."""
        cycles, place = divmod(sample, len(self._cycle))
        corpus = int(self._cycle[place])
        # The number of the sample among those of its corpus, which has epochs of its own, in the
        # order that it has in a run without the others.
        of_corpus = cycles * self._counts[corpus] + int(self._before[place])
        return self._first_rows[corpus] + self._orders[corpus].row(of_corpus)


def _cycle(counts: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The corpus of each sample of a cycle, and how many samples of that corpus come before it.

    The n-th of c rows comes at the time (n + 1/2) / c of the cycle; at equal times the first corpus
    comes first.
    """
    corpora = np.repeat(np.arange(len(counts)), counts)
    numbers = np.concatenate([np.arange(count) for count in counts])
    times = (2 * numbers + 1) / np.repeat(counts, counts)  # twice the time; the order is the same
    order = np.lexsort((corpora, times))
    return corpora[order], numbers[order]


@dataclass(frozen=True, eq=False)
class MicroBatches(Sampler[list[int]]):
    """The rows of every micro-batch of one process, from a step on.

    A pure function of (seed, step, process, number of processes, global batch): nothing but the
    step has to be remembered to resume. The rows of a step do not depend on how it is cut up.
    """

    order: RowOrder | MixedOrder
    config: TrainConfig
    first_step: int
    rank: int
    num_processes: int

    def __len__(self) -> int:
        steps = self.config.steps - self.first_step
        return steps * self.config.accumulation(self.num_processes)

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first_step, self.config.steps):
            yield from self.rows_of(step)

    def samples(self) -> Iterator[range]:
        """The samples of every micro-batch that an iteration gives, in its order."""
        for step in range(self.first_step, self.config.steps):
            yield from self.samples_of(step)

    def rows_of(self, step: int) -> Iterator[list[int]]:
        """The rows of each micro-batch of a step."""
        for samples in self.samples_of(step):
            yield [self.order.row(sample) for sample in samples]

    def samples_of(self, step: int) -> Iterator[range]:
        """The numbers of the samples of each micro-batch of a step, counted through the run."""
        rows = self.config.micro_batch
        for turn in range(self.config.accumulation(self.num_processes)):
            # Processes take turns, so a step has the same samples on any number of them.
            before = (turn * self.num_processes + self.rank) * rows
            first = step * self.config.global_batch + before
            yield range(first, first + rows)


class ValidationBatches(Sampler[list[int]]):
    """Every row once, divided among the processes.

    All processes get equally many batches of equally many rows, because they may take a forward
    pass together. The number `num_rows` fills the last batches; it stands for an empty row
    (`RowsWithEmpty`).
    """

    def __init__(self, num_rows: int, rows: int, rank: int, num_processes: int) -> None:
        self._num_rows, self._rows = num_rows, rows
        self._rank, self._num_processes = rank, num_processes

    def __len__(self) -> int:
        return -(-self._num_rows // (self._rows * self._num_processes))

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(len(self)):
            first = (batch * self._num_processes + self._rank) * self._rows
            yield [min(first + place, self._num_rows) for place in range(self._rows)]
