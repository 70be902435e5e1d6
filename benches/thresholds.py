"""Measures a step whose tokens are chosen by a threshold, by three ways to compute it.

Prints JSON, one object a line.

    python benches/thresholds.py step CORPUS --shape 576x49k --student gpt2.json.gz \\
        --eos "<|endoftext|>" --teacher qwen2.5.json.gz
    python benches/thresholds.py all CORPUS --tokenizers FOLDER

One pass: the threshold is known beforehand, so each chunk of logits is weighted and differentiated
at once. Two passes: the same threshold, but the losses of all tokens come first, as a quota needs
them. A row at a time: one pass, with a quota; all logits of a row exist together. Steps, rows,
rivals and memory are those of `training.py`. The threshold for a share of tokens is the quantile of
the excess losses of the first batches. The learning rate is 0, so that the share stays.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import training
from gauge import free, ratio
from guided_steps import Steps
from machine import machine, print_lines
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance import chunked_loss as loss_module
from vocagno.guidance.batch import GuidedBatch
from vocagno.guidance.excess_rule import group_means, weights_of_chunks
from vocagno.guidance.loss import LossSums, TokenMetrics, excess_loss, one_pass_cross_entropy
from vocagno.guidance.methods.selection import Selection, TokenSelection
from vocagno.models import head
from vocagno.models.losses import IGNORED

SHARES = (0.70, 0.98)
"""The shares of the predicted tokens that are to be trained on."""

BATCHES = 8
"""The number of batches of whose excess losses the thresholds are quantiles."""

CHECKED_ROWS = 48
"""Tokens of a chunk while gradients are checked, so that there are several chunks."""


class Rule(NamedTuple):
    """A threshold, and a quota, that keep the same share of the tokens."""

    share: float
    threshold: float
    """The least excess loss of a group that is kept, in nats a token."""
    quota: float
    """The share of the competing tokens that is kept."""


@contextmanager
def two_passes() -> Iterator[None]:
    """Steps that do not use that a threshold is known beforehand."""
    with patch.object(TokenSelection, "cross_entropy", Selection.cross_entropy):
        yield


@contextmanager
def a_row_at_a_time() -> Iterator[None]:
    """Steps under a quota that compute the logits of each row once."""
    with patch.object(TokenSelection, "cross_entropy", cross_entropy_of_rows):
        yield


def cross_entropy_of_rows(
    self: TokenSelection, hidden_BTH: Tensor, model_head: head.Head, batch: GuidedBatch
) -> tuple[Tensor, TokenMetrics]:
    """Computes `Method.cross_entropy` with rows as chunks, so that each is ranked by itself."""
    labels_BT = batch.labels_BT
    num_tokens = labels_BT.shape[1]
    ends = range(num_tokens, labels_BT.numel() + 1, num_tokens)
    weigh, _ = weights_of_chunks(labels_BT, replace(batch, chunk_ends=ends), self.guidance)
    rows = [slice(end - num_tokens, end) for end in ends]
    with (
        patch.object(loss_module, "chunks", lambda *_: rows),
        patch.object(head, "chunk_rows", lambda *_: num_tokens),  # for their memory
    ):
        return one_pass_cross_entropy(
            hidden_BTH, model_head, labels_BT, weigh, ends, threshold=torch.nan
        )


WAYS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "one pass": nullcontext,
    "two passes": two_passes,
    "a row at a time": a_row_at_a_time,
}


def name_of(way: str, share: float) -> str:
    return f"{way}, {share:.0%}"


class ThresholdSteps(Steps):
    """Steps of each way to keep each share, and naive ones."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, fields: dict[str, Any] | None = None
    ) -> None:
        super().__init__(options, folder, fields)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.add("any", GuidanceConfig(unit="group", top_fraction=None, max_threshold=0.0))
        self.kept: dict[str, list[Tensor]] = defaultdict(list)

    def rules(self) -> list[Rule]:
        """Finds the rule of each share from the first batches."""
        excess, included, predicted = [], 0, 0
        for _ in range(BATCHES):
            of_batch, num_included, num_predicted = self._excess()
            excess.append(of_batch)
            included, predicted = included + num_included, predicted + num_predicted
        together = np.sort(np.concatenate(excess))
        return [rule(share, together, included, predicted) for share in SHARES]

    @torch.no_grad()
    def _excess(self) -> tuple[NDArray[np.float32], int, int]:
        """Returns the excess losses of the competing tokens of the next batch, how many others are
        kept, and how many are predicted."""
        batch = self.batch("any")
        output, predicted = self.forward("any", batch=batch)
        tensors = batch.inputs()
        nll_BT = group_means(output.nll_BT.cpu(), tensors["groups"])
        excess_BT = excess_loss(nll_BT, tensors["teacher_loss"])
        is_asked_BT = tensors["labels"] != IGNORED
        excess = excess_BT[is_asked_BT & excess_BT.isfinite()].numpy()
        return excess, predicted - len(excess), predicted

    def ways(self, rules: list[Rule]) -> dict[str, Callable[[], Tensor]]:
        """Returns the loss of each way to keep each share, by its name."""
        losses: dict[str, Callable[[], Tensor]] = {}
        for share, threshold, quota in rules:
            fixed = GuidanceConfig(unit="group", top_fraction=None, max_threshold=threshold)
            for way, under in WAYS.items():
                name = name_of(way, share)
                is_quota = way == "a row at a time"
                self.add(
                    name, GuidanceConfig(unit="group", top_fraction=quota) if is_quota else fixed
                )
                losses[name] = partial(self._under, under, name)
        return losses

    def _under(self, way: Callable[[], AbstractContextManager[None]], name: str) -> Tensor:
        with way():
            output, predicted = self.forward(name)
        self.kept[name].append(LossSums(*output.sums).kept / predicted)
        return output.loss / predicted

    def differences(self, rules: list[Rule]) -> dict[str, float]:
        """Compares the gradients of each way with those of all logits. Raises: SystemExit if they
        differ."""
        with patch.object(head, "chunk_rows", lambda *_: CHECKED_ROWS):
            return {
                name: training.require_small(name, self.check(name, WAYS[way]))
                for share, *_ in rules
                for way in WAYS
                for name in [name_of(way, share)]
            }


def rule(share: float, excess: NDArray[np.float32], included: int, predicted: int) -> Rule:
    """Finds the rule that keeps this share of the predicted tokens. `included` are kept anyway.

    Args:
        excess: of the tokens that compete, rising. The threshold lies between two of them.
    """
    dropped = predicted - round(share * predicted)
    if not 0 < dropped < len(excess):
        raise SystemExit(f"{share:.0%}: {included} of {predicted} tokens are kept anyway")
    least = excess[dropped]
    lower = excess[excess < least]
    below = lower[-1] if len(lower) else least - 1
    return Rule(share, float(below + least) / 2, 1 - dropped / len(excess))


def step(options: argparse.Namespace) -> Iterator[dict]:
    with tempfile.TemporaryDirectory() as folder:
        steps = ThresholdSteps(options, Path(folder))
        rules = steps.rules()
        ways = steps.ways(rules)
        differences = steps.differences(rules)
        seconds = steps.seconds(ways | steps.naive(), options.repeats)
        kept = {name: fmean(map(float, shares)) for name, shares in steps.kept.items()}
        rival = steps.rival(seconds)
    del steps, ways
    free()
    peaks = {kind: _peak(options, kind, rules) for kind in (*kept, "cpt", rival)}
    for share, threshold, quota in rules:
        names = {way: name_of(way, share) for way in WAYS}
        kinds = names | {"cpt": "cpt", rival: rival}
        yield {
            "what": "thresholds",
            **training.measured_case(options),
            "share": share,
            "threshold": round(threshold, 4),
            "quota": round(quota, 4),
            "gradient_difference": {way: differences[name] for way, name in names.items()},
            "kept": {way: round(kept[name], 4) for way, name in names.items()},
            "rival": rival,
            "ratio": {way: ratio(seconds[name], seconds[rival]) for way, name in names.items()},
            "ratio_to_cpt": {
                way: ratio(seconds[name], seconds["cpt"]) for way, name in names.items()
            },
            "seconds": {kind: round(median(seconds[name]), 3) for kind, name in kinds.items()},
            "peak_mb": {kind: peaks[name] for kind, name in kinds.items()},
            "memory_ratio": {
                way: round(peaks[name] / peaks[rival], 3) for way, name in names.items()
            },
            **machine("torch", "transformers"),
        }


def _peak(options: argparse.Namespace, kind: str, rules: list[Rule]) -> float:
    words = [word for numbers in rules for word in ("--rule", *(f"{n:.9f}" for n in numbers))]
    return training.peak_of_a_process(__file__, options, kind, *words)


def memory(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        steps = ThresholdSteps(options, Path(folder))
        kinds = steps.ways([Rule(*numbers) for numbers in options.rule]) | steps.naive()
        return training.peak(steps, options.kind, kinds[options.kind])


def everything(options: argparse.Namespace) -> Iterator[dict]:
    for case in training.cases(options):
        yield from step(case)


def main() -> None:
    parser, commands = training.commands(__doc__.splitlines()[0], step, memory, everything)
    commands["memory"].add_argument("--kind", required=True)
    commands["memory"].add_argument(
        "--rule",
        type=float,
        nargs=3,
        action="append",
        metavar=("SHARE", "THRESHOLD", "QUOTA"),
        required=True,
    )
    options = parser.parse_args()
    print_lines(options.function(options))


if __name__ == "__main__":
    main()
