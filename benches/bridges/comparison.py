"""The common part of all bridges: rows of the token file, a plain loop, and the line of a result.

A bridge trains by another trainer with what vocagno baked, and by a plain loop on the same rows.
Equal losses and weights show that the trainer applies each weight to its token.

B: rows of a step, T: tokens of a row, S: steps, V: vocabulary, K: candidates of a token.
"""

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from vocagno.integrations.baked_files import BakedLosses
from vocagno.models.losses import IGNORED, causal_shift, teacher_guided_loss

STEPS, ROWS, LENGTH = 20, 4, 64
VOCABULARY, CANDIDATES = 1_024, 4
LEARNING_RATE, MAX_NORM = 1e-3, 1.0
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
TOLERANCE = 1e-5
"""The largest difference of equal losses, in nats, in float32."""
WEIGHT_TOLERANCE = 1e-4
"""The largest difference of equal weights of a model: a tenth of what a step of AdamW changes."""

Run = tuple[list[float], dict[str, Tensor]]
"""The loss of each step, and the weights of the model at the end."""


@dataclass(frozen=True)
class Rows:
    """Rows of a token file with one weight for each token, not shifted."""

    ids_SBT: Tensor
    """int64, T = LENGTH + 1."""
    weights_SBT: Tensor
    """float32, 0 to 1."""
    buckets_SBTK: Tensor
    """int32: the teacher's candidates over buckets."""
    mass_SBTK: Tensor
    """float32: their probabilities."""

    @classmethod
    def read(cls, tokens: Path) -> "Rows":
        """Reads a `.npy`, and the streams in `NAME.baked` next to it."""
        baked, count = BakedLosses(tokens.with_suffix(".baked")), STEPS * ROWS * (LENGTH + 1)
        baked.check(tokens, whole=True)
        ids = torch.from_numpy(np.load(tokens)[:count].astype(np.int64))
        weights = torch.from_numpy(baked.weights[:count] / np.float32(255))
        if not 0.1 < weights.mean() < 0.9:
            # All weights alike would make any order of them right.
            raise ValueError(f"{tokens}: weights of mean {weights.mean():.2f} choose nothing")
        buckets, mass = np.array(baked.candidates[:count]), baked.candidate_mass[:count]
        shape, arrays = (STEPS, ROWS, LENGTH + 1), (buckets, mass.astype(np.float32))
        return cls(
            *(
                values.view(*shape, *values.shape[1:])
                for values in (ids, weights, *map(torch.from_numpy, arrays))
            )
        )

    def permute(self) -> "Rows":
        """Gives the tokens the weights and candidates of others: the control, which must differ."""
        order = torch.from_numpy(np.random.default_rng(0).permutation(self.weights_SBT.numel()))
        streams = self.weights_SBT, self.buckets_SBTK, self.mass_SBTK
        return Rows(self.ids_SBT, *(part.flatten(0, 2)[order].view_as(part) for part in streams))

    def labels(self) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and the weights of the labels for each step, (B, LENGTH) each."""
        for ids_BT, weights_BT in zip(self.ids_SBT, self.weights_SBT, strict=True):
            yield *causal_shift(ids_BT), causal_shift(weights_BT)[1]

    def candidates(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Buckets and probabilities of the labels for each step, (B, LENGTH, K) each."""
        for bucket_BTK, mass_BTK in zip(self.buckets_SBTK, self.mass_SBTK, strict=True):
            yield bucket_BTK[:, 1:], mass_BTK[:, 1:]


def bake(folder: Path, tokens: str, *options: str) -> None:
    """Makes the streams of a token file in `NAME.baked`, by the command.

    The command is that of the project's environment: a trainer's own need only read what is baked.
    """
    command = ["vocagno", "bake", str(folder / tokens), "--weights", *options]
    command += ["--teacher_tokenizer", str(folder / "teacher"), "--cache", str(folder / "cache")]
    command += ["--tokenizer", str(folder / "student"), "--scores", str(folder / "scores")]
    command += ["--out", str((folder / tokens).with_suffix(".baked"))]
    subprocess.run(command, check=True, stdout=sys.stderr)


def weighted_mean(logits_BTV: Tensor, labels_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """The weighted losses over the number of predicted tokens (Eq. 3)."""
    nll = cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), reduction="none")
    return teacher_guided_loss(nll, weights_BT.flatten()) / (labels_BT != IGNORED).sum()


def distilled_mean(
    logits_BTV: Tensor,
    labels_BT: Tensor,
    weights_BT: Tensor,
    bucket_BTK: Tensor,
    mass_BTK: Tensor,
    bucket_of_V: Tensor,
) -> Tensor:
    """The weighted losses (1 - l) CE + l H(P, Q) over the number of predicted tokens. l is 1 / 2
    where there are buckets, else 0. P and Q are teacher and student over buckets and all other ids.

    Args: bucket_of_V: the bucket of each id; -1 for none.
    """
    log_p_BTV = logits_BTV.float().log_softmax(-1)
    nll_BT = -log_p_BTV.gather(-1, labels_BT[..., None])[..., 0]
    count = int(bucket_of_V.max()) + 1
    bucket_of_V = pad(bucket_of_V, (0, log_p_BTV.shape[-1] - len(bucket_of_V)), value=-1)
    sums = log_p_BTV.new_zeros(*labels_BT.shape, count + 1)
    sums = sums.index_add(-1, bucket_of_V % (count + 1), log_p_BTV.exp())
    q_BTK = sums.gather(-1, bucket_BTK.long() % (count + 1))
    is_one_BTK = bucket_BTK >= 0
    entropy_BT = -(mass_BTK * torch.where(is_one_BTK, q_BTK, 1.0).log()).sum(-1)
    others_BT = 1 - torch.where(is_one_BTK, q_BTK, 0.0).sum(-1)
    entropy_BT = entropy_BT - (1 - mass_BTK.sum(-1)) * others_BT.log()
    share_BT = 0.5 * is_one_BTK.any(-1)
    mixed_BT = (1 - share_BT) * nll_BT + share_BT * entropy_BT
    return (weights_BT * mixed_BT).sum() / labels_BT.numel()


def plain_loop(
    model: torch.nn.Module, losses: Iterable[Callable[[], Tensor]], *, clip: bool = True
) -> Run:
    """Takes an AdamW step on each loss, with nothing of the trainer but its model.

    Args: losses: for each step, a function that computes its loss under the weights of that time.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **ADAMW)
    loss_values = []
    for compute in losses:
        optimizer.zero_grad()
        loss = compute()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        loss_values.append(loss.item())
    return loss_values, dict(model.state_dict())


def bucket_of_ids(table: Any) -> Tensor:
    """The bucket of each of the student's ids; -1 for none.
    Args: table: `BakedLosses.buckets()`."""
    bucket_of_V = torch.full((VOCABULARY,), -1)
    bucket_of_V[table.members] = torch.repeat_interleave(table.begins.diff())
    return bucket_of_V


def of_rows(model: torch.nn.Module, rows: Rows, table: Any = None) -> Run:
    """Runs the plain loop on rows with a model that returns logits. Args: table: the buckets of the
    candidates, if the model is also to learn these."""
    steps = rows.labels()
    if table is None:
        losses = (lambda s=s: weighted_mean(model(s[0]), s[1], s[2]) for s in steps)
        return plain_loop(model, losses)
    bucket_of_V, pairs = bucket_of_ids(table), zip(steps, rows.candidates(), strict=True)
    losses = (
        lambda s=s, c=c: distilled_mean(model(s[0]), s[1], s[2], *c, bucket_of_V) for s, c in pairs
    )
    return plain_loop(model, losses)


def report(package: str, bridge: Run, plain: Run, permuted: list[float], **words: Any) -> None:
    """Prints the line of a result: `bridge` is the trainer's run, `permuted` its losses under the
    weights of other tokens.

    Raises: SystemExit, after the line, for a difference over the tolerance, or for none under
        permuted weights.
    """
    if any(bridge[1][name].data_ptr() == value.data_ptr() for name, value in plain[1].items()):
        raise ValueError(f"{package}: both runs trained one model; give each its own copy")
    if bridge[1].keys() != plain[1].keys():
        raise ValueError(f"{package}: the runs have different weights")
    loss = largest(bridge[0], plain[0])
    weight = float(np.max([largest(bridge[1][name], value) for name, value in plain[1].items()]))
    control = largest(permuted, plain[0])
    is_same = loss <= TOLERANCE and weight <= WEIGHT_TOLERANCE and control > 100 * TOLERANCE
    line = words | {
        "largest_difference": loss,
        "largest_weight_difference": weight,
        "permuted_difference": control,
        "tolerance": TOLERANCE,
        "weight_tolerance": WEIGHT_TOLERANCE,
        "outcome": "equal" if is_same else "not equal",
    }
    print_line(package, importlib.metadata.version(package), steps=STEPS, **line)
    if not is_same:
        raise SystemExit(1)


def print_line(package: str, version: str, **fields: Any) -> None:
    head = {
        "trainer": package,
        "version": version,
        "torch": torch.__version__,
        "python": python_version(),
        "date": date.today().isoformat(),
    }
    print(json.dumps(head | fields), flush=True)


def largest(left: Any, right: Any) -> float:
    """The largest absolute difference. Raises: ValueError for other or empty shapes."""
    left, right = (torch.as_tensor(side, dtype=torch.float64) for side in (left, right))
    if left.shape != right.shape or not left.numel():
        raise ValueError(f"{tuple(left.shape)} and {tuple(right.shape)} are not comparable")
    return float((left - right).abs().max())
