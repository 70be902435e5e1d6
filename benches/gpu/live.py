"""A student of TinyLlama's shape with a live teacher of a 7B model's: time and peak memory of a
step, at a whole and at half a micro-batch, with and without gradient checkpointing.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu.gauge import autocast, drawn_model, peak_if_it_fits, seconds_of
from gpu.part import main
from gpu.sizes import Sizes
from gpu.steps import Kinds, tidy
from guided_steps import GUIDED
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.corpus import scan
from vocagno.data.prepare import kept_texts
from vocagno.guidance.batches import Collator
from vocagno.models.loading import local_device
from vocagno.teacher.live import LivePieces, TextTeacher
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.windows import TextReader
from vocagno.training.step import GuidedStudent


class DrawnTeacher(TextTeacher):
    """A live teacher with random weights, which are made on the device."""

    def __init__(self, fields: dict[str, Any], guidance: GuidanceConfig, batch_tokens: int) -> None:
        model = drawn_model(fields, torch.bfloat16).eval().requires_grad_(False)
        scorer = TransformersScorer(model, batch_tokens=batch_tokens, width=2048)
        super().__init__(scorer, guidance, local_device())


class LiveSteps(Kinds):
    """Steps whose teacher reads the rows next to the student."""

    def __init__(self, sizes: Sizes, folder: Path, guidance: GuidanceConfig) -> None:
        super().__init__(sizes, folder)
        texts = kept_texts(scan(self.made.corpus), folder / "texts", show_progress=False)
        reader = TextReader(TokenSpans(self.made.teacher), (), context=2048, min_context=512)
        data = DataConfig(train="", seq_len=sizes.seq_len)
        self.teacher = DrawnTeacher(sizes.teacher, guidance, sizes.batch_tokens[0])
        self.collators["live"] = Collator(LivePieces(texts, reader), guidance, data)
        self.student = GuidedStudent(self.model, guidance)
        self.teacher_seconds = 0.0

    def live(self) -> torch.Tensor:
        """A micro-batch's loss, the teacher's reading of it included."""
        batch = self.batch("live")
        counts = batch.counts._asdict()
        tensors = batch.to(self.device).inputs()
        passes = self.teacher.plan(batch.live_text)
        given: dict[str, Any] = {}
        self.teacher_seconds = seconds_of(
            lambda: given.update(self.teacher.guide(batch.live_text, tensors, passes))
        )
        with autocast(self.options.precision):
            output = self.student(**tensors | given, num_kept=counts["kept"])
        return output.loss / counts["predicted"]


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    steps = LiveSteps(sizes, folder, GUIDED)
    for rows in (sizes.rows, sizes.rows // 2):
        for checkpointing in (False, True):
            steps.options = argparse.Namespace(**vars(steps.options) | {"rows": rows})
            if checkpointing:
                steps.model.gradient_checkpointing_enable()
            yield {"rows": rows, "seq_len": sizes.seq_len, "checkpointing": checkpointing} | (
                _measured(steps)
            )
            steps.model.gradient_checkpointing_disable()


def _measured(steps: LiveSteps) -> dict[str, Any]:
    line: dict[str, Any] = {"what": "live step"}
    peak = peak_if_it_fits(partial(tidy, steps, lambda: steps.update(steps.live)))
    if peak is None:
        return line | {"outcome": "out of memory"}
    seconds = steps.step(steps.live)
    return line | {
        "outcome": "done",
        "seconds": round(seconds, 4),
        "peak_mb": peak,
        "teacher_seconds": round(steps.teacher_seconds, 4),
    }


if __name__ == "__main__":
    main(measure)
