"""Optimizer steps of every kind over the same rows of real text, to be timed (`training.py`,
`thresholds.py`, `gpu`)."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import head_losses
from gpu.gauge import autocast, drawn_model, in_turn, seconds_of
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, OptimizerConfig
from vocagno.data.corpus import read_batches, scan
from vocagno.data.prepare import prepared_rows
from vocagno.data.rows import Row, RowStore
from vocagno.guidance.batches import Batch, Collator
from vocagno.guidance.methods.base import StudentOutput
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.guidance.tensors import GuidanceTensors
from vocagno.models.head import head_of, hidden_states
from vocagno.models.loading import local_device
from vocagno.teacher.scores import KIND, ScoreStore
from vocagno.teacher.scoring import Teacher, score_corpus
from vocagno.teacher.windows import TextReader
from vocagno.tokens.student_tokenizer import student_tokenizer
from vocagno.training.step import GuidedStudent, build_optimizer

SHAPES = {
    "576x49k": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 12,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "896x152k": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "num_hidden_layers": 8,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "2048x32k": {
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "intermediate_size": 5632,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}
"""SmolLM-135M with 12 of its 30 layers, Qwen2.5-0.5B with 8 of 24, TinyLlama-1.1B with 4 of 22: the
fewer the layers, the more the head counts, for both kinds of steps."""

PAIRS = {
    "576x49k": ("gpt2", "<|endoftext|>", "qwen2.5"),
    "896x152k": ("qwen2.5", "<|endoftext|>", "tinyllama"),
    "2048x32k": ("tinyllama", "</s>", "qwen2.5"),
}
"""Student's tokenizer (ids modulo the vocabulary of the shape), its end of documents, teacher's."""

NAIVE = GuidanceConfig(method="cpt")
GUIDED = GuidanceConfig(top_fraction=0.4, unmapped="include")
DOCUMENTS = 60
OPTIMIZER = OptimizerConfig()


class DrawnLosses:
    """A scorer that draws: what a teacher says does not change what it costs to follow it."""

    def score(self, windows) -> Iterator[tuple[int, np.ndarray]]:
        generator = np.random.default_rng(0)
        for number, window in enumerate(windows):
            count = len(window.ids) - window.asked_from
            yield number, generator.exponential(1.5, count).astype(np.float32)


def materials(options: argparse.Namespace, folder: Path) -> tuple[RowStore, ScoreStore]:
    """Real text in rows, and scores at the places of a real tokenizer's tokens."""
    texts = next(read_batches(options.corpus))[:DOCUMENTS]
    corpus_file = folder / "corpus.jsonl"
    corpus_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = scan(corpus_file)
    student = student_tokenizer(options.student, options.eos)
    rows, _ = prepared_rows(corpus, student, options.seq_len, folder, show_progress=False)
    spans = TokenSpans(options.teacher)
    teacher = Teacher(DrawnLosses(), TextReader(spans, (), context=2048, min_context=512))
    made_from = {"format": KIND, "tokenizer": spans.fingerprint}
    score_corpus(corpus, folder / "scores", made_from, lambda: teacher, show_progress=False)
    return rows, ScoreStore(folder / "scores")


def _renumbered(groups_BT: torch.Tensor) -> torch.Tensor:
    """Groups numbered from 0 on; -1 stays."""
    found, numbers_BT = groups_BT.unique(return_inverse=True)
    return numbers_BT - int(found[0] < 0)


class Steps:
    """One model, and every kind of step over the same rows."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, fields: dict[str, Any] | None = None
    ) -> None:
        """`fields`: of the model's configuration; default: those of `options.shape`."""
        self.options, self.device = options, local_device()
        self.fields = fields or SHAPES[options.shape]
        self.rows, self.scores = materials(options, folder)
        self.model = drawn_model(self.fields, torch.float32).train()
        self._students = cache(partial(GuidedStudent, self.model))
        self.optimizer = build_optimizer(self.model, OPTIMIZER, self.device)
        self.order = cycle(range(len(self.rows) - options.rows))
        self.guidance: dict[str, GuidanceConfig] = {}
        self.collators: dict[str, Collator] = {}
        self.add("naive", NAIVE)
        self.add("guided", GUIDED)

    def add(self, kind: str, guidance: GuidanceConfig, **data: Any) -> None:
        """Steps of `_ours` under this guidance; `data`: options of the rows."""
        config = DataConfig(train="", seq_len=self.options.seq_len, **data)
        self.guidance[kind] = guidance
        scores = self.scores if guidance.needs_teacher else None
        self.collators[kind] = Collator(scores, guidance, config)

    def kinds(self) -> dict[str, Callable[[], torch.Tensor]]:
        """A loss, from rows to a sum divided by a count, of each kind."""
        found = {"guided": lambda: self._ours("guided"), **self.naive()}
        if self.device.type == "cuda":
            for how in head_losses.installed(self.device):
                found[f"guided by {how}"] = lambda how=how: self._ours("guided", how)
        return found

    def naive(self) -> dict[str, Callable[[], torch.Tensor]]:
        """As `kinds`, without guidance: our own, `cpt`, and its rivals."""
        found: dict[str, Callable[[], torch.Tensor]] = {
            "dense": self._dense,
            "cpt": lambda: self._ours("naive"),
        }
        for how in head_losses.installed(self.device):
            found[how] = lambda how=how: self._ours("naive", how)
        return found

    def step(self, loss: Callable[[], torch.Tensor]) -> float:
        """Seconds of one optimizer step."""
        return seconds_of(lambda: self.update(loss))

    def update(self, loss: Callable[[], torch.Tensor]) -> None:
        """One optimizer step."""
        loss().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def batch(self, kind: str) -> Batch:
        """The next rows, collated."""
        places = [next(self.order) for _ in range(self.options.rows)]
        rows = [self._within(self.rows[place], self.fields["vocab_size"]) for place in places]
        return self.collators[kind](rows)

    @staticmethod
    def _within(row: Row, vocabulary: Any) -> Row:
        return replace(row, ids=row.ids % vocabulary)

    def _ours(self, kind: str, how: str | None = None) -> torch.Tensor:
        """`how`: the rival that computes head and loss; default: our own loop."""
        with head_losses.in_place_of_ours(how) if how else nullcontext():
            output, predicted = self.passed(kind)
        return output.loss / predicted

    def passed(self, kind: str, batch: Batch | None = None) -> tuple[StudentOutput, int]:
        """A forward pass of a batch, by default the next one, and how many tokens it predicts."""
        batch, guidance = batch or self.batch(kind), self.guidance[kind]
        given = batch.to(self.device)
        with autocast(self.options.precision):
            output = self._students(guidance)(**given, num_kept=batch.counts.kept)
        return output, batch.counts.predicted

    def _dense(self) -> torch.Tensor:
        tensors = self.batch("naive").to(self.device)
        with autocast(self.options.precision):
            logits = self.model(input_ids=tensors["input_ids"], use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tensors["labels"].flatten()
        )

    def check(
        self,
        kind: str = "guided",
        way: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> float:
        """The relative difference of a gradient from that of all logits (2 x 128 tokens).

        Args:
            way: what the forward pass is taken under.
        """
        batch, guidance = self.batch(kind).to(self.device), self.guidance[kind]
        batch.pop("chunk_ends", None)  # those of the whole batch
        tensors = {name: value[:2, :128] for name, value in batch.items()}
        if "groups" in tensors:
            tensors["groups"] = _renumbered(tensors["groups"])
        with way():
            self._students(guidance)(**tensors)[0].backward()
        ours = self._gradients()
        weights = self._weights(tensors, guidance)
        logits = self.model(input_ids=tensors["input_ids"], use_cache=False).logits
        nll = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tensors["labels"].flatten(), reduction="none"
        )
        (nll * weights.flatten()).sum().backward()
        pairs = zip(ours, self._gradients(), strict=True)
        return max(float((ours - dense).norm() / dense.norm()) for ours, dense in pairs)

    def _gradients(self) -> list[torch.Tensor]:
        """Of all weights, which hold none afterwards."""
        gradients = [p.grad.clone() for p in self.model.parameters()]
        self.model.zero_grad()
        return gradients

    def _weights(self, tensors: dict[str, torch.Tensor], guidance: GuidanceConfig) -> torch.Tensor:
        with torch.no_grad():
            states = hidden_states(self.model, tensors["input_ids"])
            _, metrics = selective_cross_entropy(
                states,
                head_of(self.model),
                tensors["labels"],
                GuidanceTensors.of(tensors),
                guidance,
            )
        return metrics.weights_BT

    def seconds(
        self, kinds: dict[str, Callable[[], torch.Tensor]], repeats: int
    ) -> dict[str, list[float]]:
        """Of whole steps of each kind, taken in turn, after one that is not counted."""
        ways = {kind: partial(self.update, loss) for kind, loss in kinds.items()}
        in_turn(ways, 1)
        return in_turn(ways, repeats)

    def rival(self, seconds: dict[str, list[float]]) -> str:
        """The fastest kind of naive steps, our own aside."""
        theirs = [kind for kind in self.naive() if kind != "cpt"]
        return min(theirs, key=lambda kind: median(seconds[kind]))
