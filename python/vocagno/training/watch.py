"""Looks at every step once it is over, for losses and gradients that are no numbers and for spikes,
and names the rows and documents behind them."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vocagno.config import Config
from vocagno.rows import RowStore
from vocagno.training.data import MicroBatches
from vocagno.training.metrics import GuidanceError, StepRecord, Window
from vocagno.training.processes import HostSum
from vocagno.training.student import SUMS

_MOST_ROWS = 4
"""Rows of a step that are named: those with the largest losses."""


class Watch:
    """Keeps an eye on a run; every process calls it alike."""

    def __init__(
        self, config: Config, batches: MicroBatches, rows: RowStore, host_sum: HostSum
    ) -> None:
        self.config, self.batches, self.rows, self.host_sum = config, batches, rows, host_sum

    def look(self, window: Window, sums: Tensor, usual_loss: float | None) -> list[dict[str, Any]]:
        """The steps whose loss is a spike: step, loss, and the rows with the largest losses.

        Args:
            sums: `window.sums()` added up over all processes.
            usual_loss: the mean of the window before, if there was one.
        Raises: GuidanceError for a step with a loss or gradient that is no number, unless it was
            left out; or if all steps were left out.
        """
        spikes = []
        for record, loss in self._losses(window, sums):
            norm = float(record.norm)
            if record.is_skipped:
                continue
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._refuse(record, loss, norm)
            if usual_loss is not None and loss > self.config.train.spike_ratio * usual_loss:
                spikes.append({"step": record.step + 1, "loss": loss, "rows": self.largest(record)})
        if all(record.is_skipped for record in window.records):
            raise GuidanceError(
                f"step {window.records[-1].step + 1}: every one of the last "
                f"{len(window.records)} steps was left out (optimizer.skip_nonfinite), since none "
                "had a finite gradient; lower optimizer.lr. The last checkpoint is as it was."
            )
        return spikes

    def largest(self, record: StepRecord) -> list[dict[str, Any]]:
        """The rows of a step with the largest losses, over all processes, worst first."""
        mine = [row for rows in self.batches.rows_of(record.step) for row in rows]
        losses = (torch.cat(record.row_sums) / self.config.data.seq_len).tolist()
        found = [
            {"row": row, "loss": loss, "documents": self.rows[row].documents.tolist()}
            for row, loss in zip(mine, losses, strict=True)
        ]
        together = [row for part in self.host_sum.gathered(_worst(found)) for row in part]
        return _worst(together)

    @staticmethod
    def _losses(window: Window, sums: Tensor) -> Iterator[tuple[StepRecord, float]]:
        totals = sums[:, SUMS.index("nll")].tolist()
        for record, total in zip(window.records, totals, strict=True):
            yield record, total / max(1, record.counts["predicted"])

    def _refuse(self, record: StepRecord, loss: float, norm: float) -> None:
        rows = self.largest(record)
        bad = [row for row in rows if not math.isfinite(row["loss"])] or rows
        what = f"loss is {loss}" if not math.isfinite(loss) else f"grad_norm is {norm}"
        raise GuidanceError(
            f"step {record.step + 1}: {what}; {described(bad)}. Look at these documents, lower "
            "optimizer.lr, or leave such steps out (optimizer.skip_nonfinite: true). The last "
            "checkpoint is as it was."
        )


def described(rows: list[dict[str, Any]]) -> str:
    """Rows as a sentence names them."""
    return "; ".join(
        f"row {row['row']} (loss {row['loss']:.3g}, documents "
        f"{', '.join(map(str, row['documents']))})"
        for row in rows
    )


def _worst(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the largest losses; what is no number is larger than any."""
    order = sorted(rows, key=lambda row: -row["loss"] if math.isfinite(row["loss"]) else -math.inf)
    return order[:_MOST_ROWS]
