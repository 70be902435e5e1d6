"""Scoring under a teacher of the shape of Qwen2.5-Math-7B: tokens a second compared with only the
model, by the tokens of a forward pass, and whether packed documents are kept apart.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import scoring
from gpu.gauge import drawn_model, in_turn, peak_if_it_fits, ratio, seconds_of
from gpu.material import Material
from gpu.part import main
from gpu.sizes import Sizes
from vocagno import TokenSpans
from vocagno.errors import ConfigError
from vocagno.models.batching import attention_of
from vocagno.models.head import language_head
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.windows import Window


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    return scoring.to_the_end(_lines(sizes, folder))


def _lines(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    made = Material(folder, sizes.text)
    spans = TokenSpans(made.teacher)
    model = drawn_model(sizes.teacher, torch.bfloat16).eval().requires_grad_(False)
    weights = sum(parameter.numel() for parameter in model.parameters())
    yield {"what": "teacher", "weights": weights, "attention": attention_of(model)}
    yield {"what": "head", "seconds": round(seconds_of(lambda: language_head(model)), 3)}
    yield _packing(model)
    for batch_tokens in sizes.batch_tokens:
        options = argparse.Namespace(
            corpus=made.corpus,
            documents=min(48, sizes.text.documents),
            characters=None,
            batch_tokens=batch_tokens,
            batching="buckets",
            repeats=min(3, sizes.repeats),
        )
        yield {"batch_tokens": batch_tokens} | _throughput(options, model, spans)
    yield _candidates(model, sizes)


def _throughput(options: argparse.Namespace, model: Any, spans: TokenSpans) -> dict[str, Any]:
    line: dict[str, Any] = {"what": "throughput"}

    def run() -> None:
        line.update(scoring.measured(options, model, spans, "7B"))

    peak = peak_if_it_fits(run, warm=False)
    return line | ({"outcome": "out of memory"} if peak is None else {"peak_mb": peak})


def _candidates(model: Any, sizes: Sizes) -> dict[str, Any]:
    """Scoring with 16 candidates a token over scoring losses only, in turn."""
    draw, size = np.random.default_rng(0), min(1_024, sizes.batch_tokens[0])
    windows = [Window(draw.integers(0, model.config.vocab_size, size), 1) for _ in range(4)]
    ways = {}
    for count in (0, scoring.CANDIDATES):
        scorer = TransformersScorer(
            model, batch_tokens=sizes.batch_tokens[0], width=size, candidates=count
        )
        ways[str(count)] = lambda scorer=scorer: list(scorer.score(windows))
    in_turn(ways, 1)  # warm
    without, with_some = in_turn(ways, sizes.repeats).values()
    return {"what": "candidates", "count": count, "time_ratio": ratio(with_some, without)}


def _packing(model: Any) -> dict[str, Any]:
    """Whether documents packed under a mask are seen to be kept apart, in bfloat16."""
    try:
        scorer = TransformersScorer(model, batch_tokens=64, width=64, batching="packed")
    except ConfigError as error:
        return {"what": "packing", "outcome": str(error)}
    return {"what": "packing", "outcome": "kept apart" if scorer.is_packed else "not packed"}


if __name__ == "__main__":
    main(measure)
