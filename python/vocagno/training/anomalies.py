"""Checks finished steps for NaN or infinite losses and gradients, and for spikes, and names the
rows and documents behind them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vocagno.config.train import TrainConfig
from vocagno.data.mixture import MixedRows
from vocagno.errors import GuidanceError
from vocagno.guidance.totals import LossSums
from vocagno.system.collectives import HostSum
from vocagno.training.metrics import StepRecord, Window
from vocagno.training.sampler import MicroBatches

_MOST_SKIPPED = 10
"""Steps in a row that may be skipped."""
_MOST_ROWS = 4
"""Rows of a step that are named: those with the largest losses."""


class Watch:
    """Keeps an eye on a run; every process calls it alike."""

    def __init__(
        self,
        train: TrainConfig,
        batches: MicroBatches,
        rows: MixedRows,
        seq_len: int,
        host_sum: HostSum,
    ) -> None:
        self.train = train
        self.batches = batches
        self.rows = rows
        self.seq_len = seq_len
        self.host_sum = host_sum
        self._skipped = 0  # steps in a row, up to now

    def look(self, window: Window, sums: Tensor, usual_loss: float | None) -> list[dict[str, Any]]:
        """The steps whose loss is a spike: step, loss, and the rows with the largest losses.

        Args:
            sums: `window.sums()` added up over all processes.
            usual_loss: the mean of the window before, if there was one.
        Raises: GuidanceError for a step with a NaN or infinite loss or gradient, unless it was
            skipped; or if too many steps in a row were.
        """
        spikes = []
        for record, loss in self._losses(window, sums):
            norm = float(record.norm)
            self._skipped = self._skipped + 1 if record.is_skipped else 0
            if self._skipped >= _MOST_SKIPPED:
                raise GuidanceError(
                    f"step {record.step + 1}: {self._skipped} steps in a row were skipped "
                    "(optimizer.skip_nonfinite), since none had a finite gradient; lower "
                    "optimizer.lr (in another `output`). The last checkpoint is as it was."
                )
            if record.is_skipped:
                continue
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._refuse(record, loss, norm)
            if usual_loss is not None and loss > self.train.spike_ratio * usual_loss:
                spikes.append({"step": record.step + 1, "loss": loss, "rows": self.largest(record)})
        return spikes

    def largest(self, record: StepRecord) -> list[dict[str, Any]]:
        """The rows of a step with the largest losses, over all processes, worst first."""
        mine = [row for rows in self.batches.rows_of(record.step) for row in rows]
        losses = (torch.cat(record.row_sums) / self.seq_len).tolist()
        found = [self._named(row) | {"loss": loss} for row, loss in zip(mine, losses, strict=True)]
        together = [row for part in self.host_sum.gathered(_worst(found)) for row in part]
        return _worst(together)

    def _named(self, row: int) -> dict[str, Any]:
        """A row by its number in its corpus, which is named if there are several."""
        corpus, number = self.rows.place(row)
        stores = self.rows.stores
        documents = stores[corpus][number].documents.tolist()
        name = {"corpus": corpus} if len(stores) > 1 else {}
        return name | {"row": number, "documents": documents}

    @staticmethod
    def _losses(window: Window, sums: Tensor) -> Iterator[tuple[StepRecord, float]]:
        for record, of_step in zip(window.records, sums, strict=True):
            yield record, LossSums.of(of_step).nll / max(1, record.counts.predicted)

    def _refuse(self, record: StepRecord, loss: float, norm: float) -> None:
        rows = self.largest(record)
        bad = [row for row in rows if _size(row) == math.inf] or rows
        what = f"loss is {loss}" if not math.isfinite(loss) else f"grad_norm is {norm}"
        raise GuidanceError(
            f"step {record.step + 1}: {what}; {described(bad)}. Look at these documents, skip "
            "such steps (optimizer.skip_nonfinite: true), or lower optimizer.lr (in another "
            "`output`). The last checkpoint is as it was."
        )


def described(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a sentence names them."""
    return "; ".join(
        f"row {row['row']}{' of ' + row['corpus'] if row.get('corpus') else ''} ("
        f"loss {row['loss']:.3g}, documents {', '.join(map(str, row['documents']))})"
        for row in rows
    )


def _worst(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=_size, reverse=True)[:_MOST_ROWS]


def _size(row: dict[str, Any]) -> float:
    """Its loss: NaN counts as infinite."""
    loss = float(row["loss"])
    return loss if math.isfinite(loss) else math.inf
