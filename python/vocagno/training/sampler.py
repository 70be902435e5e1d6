"""Which rows each step trains on: a pure function of seed, step, process and batch."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from vocagno.config.run import TrainConfig


class RowOrder:
    """The rows of all samples of a run: each epoch a permutation of `(seed, epoch)`, end to end."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows = num_rows
        self.seed = seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def row(self, sample: int) -> int:
        """The row of the `sample`-th sample since the start of the run."""
        epoch, place = divmod(sample, self.num_rows)
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch, self._permutation = epoch, generator.permutation(self.num_rows)
        return int(self._permutation[place])


class MicroBatches(Sampler[list[int]]):
    """The rows of every micro-batch of one process, from a step on.

    A pure function of (seed, step, process, number of processes, global batch): nothing but the
    step has to be remembered to resume. The rows of a step do not depend on how it is cut up.
    """

    def __init__(
        self, order: RowOrder, config: TrainConfig, first_step: int, rank: int, num_processes: int
    ) -> None:
        self.order = order
        self.config = config
        self.first_step = first_step
        self.rank = rank
        self.num_processes = num_processes
        self.accumulation: int = config.accumulation(num_processes)

    def __len__(self) -> int:
        return (self.config.steps - self.first_step) * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first_step, self.config.steps):
            yield from self.rows_of(step)

    def samples(self) -> Iterator[range]:
        """What `samples_of` gives, for all that is iterated over."""
        for step in range(self.first_step, self.config.steps):
            yield from self.samples_of(step)

    def rows_of(self, step: int) -> Iterator[list[int]]:
        """The rows of each micro-batch of a step."""
        for samples in self.samples_of(step):
            yield [self.order.row(sample) for sample in samples]

    def samples_of(self, step: int) -> Iterator[range]:
        """The numbers, in the run, of the samples of each micro-batch of a step."""
        rows = self.config.micro_batch
        for turn in range(self.accumulation):
            before = (turn * self.num_processes + self.rank) * rows
            first = step * self.config.global_batch + before
            yield range(first, first + rows)


class ValidationBatches(Sampler[list[int]]):
    """Every row once, dealt out to the processes; all get as many batches of as many rows, since a
    forward pass may be one that they take together. What is left over is `num_rows` (`WithEmpty`).
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
