"""How much of the noise in its text a finished run trains on.

    python -m research.noise_kept RUN [RUN ...] [--rows 64]

The documents of a run's `data.train` name their noise (`study_text.py`). The final student weighs
the tokens of the first rows as in training, under the guidance of the run. A line of JSON gives the
mean weight of noise and of the rest, from 0 to 1, and the share of noise in all weight. A token is
noise if it shares a byte with some. To be started in the folder from which the run was.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

import vocagno
from research.study_text import NoisyText, read_noise
from vocagno.config.guidance import as_naive
from vocagno.config.options import Config
from vocagno.data.rows import Row
from vocagno.errors import InputError
from vocagno.guidance.collator import Collator, line_ends
from vocagno.guidance.methods import method_of
from vocagno.guidance.methods.selection import Selection
from vocagno.models.loading import local_device
from vocagno.models.losses import IGNORED, causal_shift
from vocagno.training.configuration import kept_config
from vocagno.training.inputs import resolve
from vocagno.training.step import GuidedStudent


def main() -> None:
    """Prints a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="the `output` of a finished run")
    parser.add_argument("--rows", type=int, default=64, help="rows to look at, from the first")
    options = parser.parse_args()
    try:
        for run in options.runs:
            print(json.dumps(noise_kept(run, options.rows)), flush=True)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")


@torch.inference_mode()
def noise_kept(run: Path, num_rows: int) -> dict[str, Any]:
    """Tokens and mean weights of noise and of the rest; None for the mean of no token."""
    config = _choosing(kept_config(run))
    device = local_device()
    inputs = resolve(config, device, show_progress=False)
    ends = line_ends(inputs.tokenizer.spans, config.guidance)
    collator = Collator(inputs.stored_scores(), config.guidance, config.data, ends)
    model = AutoModelForCausalLM.from_pretrained(run / "final", dtype=torch.float32)
    student = GuidedStudent(model.to(device), config.guidance).eval()
    documents = read_noise(Path(config.data.one_corpus))
    num_rows = min(num_rows, len(inputs.rows))
    noise, weights = [], []
    for first in range(0, num_rows, config.train.micro_batch):
        numbers = range(first, min(first + config.train.micro_batch, num_rows))
        rows = [inputs.rows[number] for number in numbers]
        tensors = collator(rows).to(device).inputs()
        sample_tensors = student.method.for_samples(config.train.seed, numbers)
        tensors |= {name: value.to(device) for name, value in sample_tensors.items()}
        is_predicted_BT = (tensors["labels"] != IGNORED).cpu().numpy()
        weights.append(student(**tensors).weights_BT.cpu().numpy()[is_predicted_BT])
        noise.append(noise_tokens(rows, documents, config.data.seq_len)[is_predicted_BT])
    is_noise_N, weights_N = np.concatenate(noise), np.concatenate(weights).astype(np.float64)
    return {
        "run": run.name,
        "rows": num_rows,
        "noise_tokens": int(is_noise_N.sum()),
        "other_tokens": int((~is_noise_N).sum()),
        "weight_of_noise": _mean(weights_N[is_noise_N]),
        "weight_of_others": _mean(weights_N[~is_noise_N]),
        "noise_in_weight": _mean(is_noise_N * weights_N, weights_N),
    }


def noise_tokens(rows: list[Row], documents: list[NoisyText], seq_len: int) -> NDArray[np.bool_]:
    """(B, T) True for each predicted token of the rows that shares a byte with noise."""
    is_noise = np.zeros((len(rows), seq_len + 1), bool)
    for number, row in enumerate(rows):
        cuts = np.cumsum(row.num_tokens)
        for document, start, stop in zip(row.documents, cuts - row.num_tokens, cuts, strict=True):
            noise_N2 = documents[document].noise_N2
            is_noise[number, start:stop] = vocagno.align(row.spans[start:stop], noise_N2)[:, 0] >= 0
    return causal_shift(is_noise)[1]


def _choosing(config: Config) -> Config:
    """Returns the configuration of the run, as one without a teacher if it trains on all tokens.

    Raises: InputError for a teacher whose losses are not stored.
    """
    selects = isinstance(method_of(config.guidance), Selection)
    if selects and config.guidance.needs_teacher and config.teacher.mode == "live":
        raise InputError(f"{config.output}: teacher.mode: live: only stored scores are read here")
    train = replace(config.train, sample_every=None)
    if selects:
        return replace(config, train=train)
    return replace(config, train=train, guidance=as_naive(config.guidance))


def _mean(values_N: NDArray[Any], weights_N: NDArray[Any] | None = None) -> float | None:
    total = len(values_N) if weights_N is None else weights_N.sum()
    return round(float(values_N.sum() / total), 4) if total else None


if __name__ == "__main__":
    main()
