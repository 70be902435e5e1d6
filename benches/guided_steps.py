"""Optimizer steps of every kind over the same rows of real text, to be timed (`training.py`,
`thresholds.py`, `gpu.py`)."""

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
from torch import Tensor

import head_losses
from gauge import autocast, in_turn, random_model, seconds_of
from vocagno import TokenSpans
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig, OptimizerConfig
from vocagno.data.corpus import read_batches, scan
from vocagno.data.prepare import prepare_rows
from vocagno.data.rows import Row, RowStore
from vocagno.guidance import token_weights
from vocagno.guidance.batch import GuidanceTensors, GuidedBatch
from vocagno.guidance.bucket_loss import BucketTable
from vocagno.guidance.bucket_targets import BucketTargets
from vocagno.guidance.collator import Collator, line_ends
from vocagno.guidance.methods.base import StudentOutput
from vocagno.guidance.selective import selective_cross_entropy
from vocagno.models.head import head_of, hidden_states
from vocagno.models.loading import local_device
from vocagno.models.losses import IGNORED
from vocagno.teacher.candidates import ScoredWindow, codes_of
from vocagno.teacher.score_store import KIND, MatchedScores, ScoreStore
from vocagno.teacher.scoring import Teacher, score_corpus
from vocagno.teacher.windows import TextReader
from vocagno.tokens.buckets import buckets
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


CANDIDATES = 16
MATCHING = {
    "alm": GuidanceConfig(method="alm"),
    "distill": GuidanceConfig(method="distill", distill_where="all"),
}
"""Kinds of steps that train towards the teacher, on all tokens."""


class DrawnLosses:
    """A scorer that draws: what a teacher says does not change what it costs to follow it. The
    first candidate is the real token, the others are drawn from all real tokens, so that frequent
    ones, whose buckets are large, are frequent here, too."""

    def score(self, windows) -> Iterator[tuple[int, ScoredWindow]]:
        generator = np.random.default_rng(0)
        tokens, counts = np.unique(
            np.concatenate([window.ids for window in windows]), return_counts=True
        )
        mass = 1 / np.arange(1, CANDIDATES + 1) ** 1.2
        codes = codes_of(np.log(0.85 * mass / mass.sum()))
        for number, window in enumerate(windows):
            real = np.asarray(window.ids[window.asked_from :])
            keys = np.log(counts) + generator.gumbel(size=(len(real), len(tokens)))
            keys[tokens == real[:, None]] = np.inf
            best = np.argpartition(-keys, CANDIDATES, 1)[:, :CANDIDATES]
            order = np.argsort(-np.take_along_axis(keys, best, 1), 1)
            ids = tokens[np.take_along_axis(best, order, 1)].astype(np.int32)
            nll = generator.exponential(1.5, len(real)).astype(np.float32)
            yield number, ScoredWindow(nll, ids, np.tile(codes, (len(real), 1)))


def materials(options: argparse.Namespace, folder: Path) -> tuple[RowStore, ScoreStore]:
    """Real text in rows, and scores at the places of a real tokenizer's tokens."""
    texts = next(read_batches(options.corpus))[:DOCUMENTS]
    corpus_file = folder / "corpus.jsonl"
    corpus_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = scan(corpus_file)
    student = student_tokenizer(options.student, options.eos)
    rows, _ = prepare_rows(corpus, student, options.seq_len, folder, show_progress=False)
    spans = TokenSpans(options.teacher)
    reader = TextReader(spans, (), context=2048, min_context=512)
    teacher = Teacher(DrawnLosses(), reader, candidates=CANDIDATES)
    made_from = {"format": KIND, "tokenizer": spans.fingerprint, "candidates": CANDIDATES}
    score_corpus(corpus, folder / "scores", made_from, lambda: teacher, show_progress=False)
    return rows, ScoreStore(folder / "scores")


def _renumber(groups_BT: Tensor) -> Tensor:
    """Numbers groups from 0 on, as a batch that is cut from a larger one needs them; -1 stays."""
    numbers, numbers_BT = groups_BT.unique(return_inverse=True)
    return numbers_BT - int(numbers[0] < 0)


def distill(
    log_p_NV: Tensor, nll_N: Tensor, tensors: dict[str, Tensor], table: BucketTable, share: float
) -> Tensor:
    """(N,) the loss of `distill` by its definition, with autograd's gradient: the reference for the
    gradient that the package computes itself."""
    bucket_NS, mass_NS = (tensors[name].flatten(0, 1) for name in ("candidates", "candidate_mass"))
    q_NB = log_p_NV.new_zeros(len(log_p_NV), len(table.begins))  # the last is for no bucket
    of_id_V = torch.full((log_p_NV.shape[1],), len(table.begins) - 1, device=log_p_NV.device)
    of_id_V[table.members] = torch.repeat_interleave(table.begins.diff())
    q_NB = q_NB.index_add(1, of_id_V, log_p_NV.exp())
    is_one_NS = bucket_NS >= 0
    q_NS = q_NB.gather(1, bucket_NS.clamp_min(0).long())
    others_N, of_others_N = (
        1 - torch.where(is_one_NS, one_NS, 0.0).sum(1) for one_NS in (mass_NS, q_NS)
    )
    cross_N = -(mass_NS * q_NS.log().where(is_one_NS, 0.0)).sum(1) - others_N * of_others_N.log()
    return torch.where(is_one_NS.any(1), (1 - share) * nll_N + share * cross_N, nll_N)


class Steps:
    """One model, and every kind of step over the same rows."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, fields: dict[str, Any] | None = None
    ) -> None:
        """`fields`: of the model's configuration; default: those of `options.shape`."""
        self.options, self.device = options, local_device()
        self.fields = fields or SHAPES[options.shape]
        self.rows, self.scores = materials(options, folder)
        self.model = random_model(self.fields, torch.float32).train()
        self._students = cache(partial(GuidedStudent, self.model))
        self.optimizer = build_optimizer(self.model, OPTIMIZER, self.device)
        self.order = cycle(range(len(self.rows) - options.rows))
        self.guidance: dict[str, GuidanceConfig] = {}
        self.collators: dict[str, Collator] = {}
        self.add("naive", NAIVE)
        self.add("guided", GUIDED)

    def add(self, kind: str, guidance: GuidanceConfig, **data: Any) -> None:
        """Adds a kind of steps: those of `_ours` under this guidance.
        Args: data: options of the rows."""
        config = DataConfig(train="", seq_len=self.options.seq_len, **data)
        self.guidance[kind] = guidance
        scores, targets = None, None
        if guidance.needs_teacher:
            candidates = guidance.needs_candidates
            scores = MatchedScores(self.scores, self.rows, candidates=candidates)
            targets = self._targets() if candidates else None
        ends = line_ends(TokenSpans(self.options.student), guidance)
        self.collators[kind] = Collator(scores, guidance, config, ends, targets)

    def add_matching(self) -> None:
        """Adds the kinds of `MATCHING`."""
        for kind, guidance in MATCHING.items():
            self.add(kind, guidance)

    def _targets(self) -> BucketTargets:
        """Makes the buckets of the real tokenizers without the ids that the model lacks."""
        sides = (TokenSpans(name) for name in (self.options.student, self.options.teacher))
        of = buckets(*sides)
        student = of.student[: self.fields["vocab_size"]]
        teacher = np.where(np.isin(of.teacher, student), of.teacher, np.int32(-1))
        pieces = int(np.count_nonzero(student >= 0)), int(np.count_nonzero(teacher >= 0))
        of = replace(of, student=student, teacher=teacher, pieces=pieces)
        return BucketTargets(of, CANDIDATES)

    def kinds(self) -> dict[str, Callable[[], Tensor]]:
        """Returns the loss of each kind: from rows to a sum divided by a count."""
        losses = {"guided": lambda: self._ours("guided"), **self.naive()}
        for kind in MATCHING.keys() & self.guidance.keys():
            losses[kind] = lambda kind=kind: self._ours(kind)
        if self.device.type == "cuda":
            for how in head_losses.installed(self.device):
                losses[f"guided by {how}"] = lambda how=how: self._ours("guided", how)
        return losses

    def naive(self) -> dict[str, Callable[[], Tensor]]:
        """Returns the losses without guidance: our own, `cpt`, and its rivals."""
        losses: dict[str, Callable[[], Tensor]] = {
            "dense": self._dense,
            "cpt": lambda: self._ours("naive"),
        }
        for how in head_losses.installed(self.device):
            losses[how] = lambda how=how: self._ours("naive", how)
        return losses

    def step(self, loss: Callable[[], Tensor]) -> float:
        """Returns the seconds of one optimizer step."""
        return seconds_of(lambda: self.update(loss))

    def update(self, loss: Callable[[], Tensor]) -> None:
        """Takes one optimizer step."""
        loss().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def batch(self, kind: str) -> GuidedBatch:
        """Collates the next rows."""
        places = [next(self.order) for _ in range(self.options.rows)]
        rows = [self._within(self.rows[place], self.fields["vocab_size"]) for place in places]
        return self.collators[kind](rows)

    @staticmethod
    def _within(row: Row, vocabulary: Any) -> Row:
        return replace(row, ids=row.ids % vocabulary)

    def _ours(self, kind: str, how: str | None = None) -> Tensor:
        """Computes a loss by our own loop. Args: how: a rival that computes head and loss in it."""
        with head_losses.in_place_of_ours(how) if how else nullcontext():
            output, predicted = self.forward(kind)
        return output.loss / predicted

    def forward(self, kind: str, batch: GuidedBatch | None = None) -> tuple[StudentOutput, int]:
        """Runs a forward pass of a batch, by default the next one. Returns its output, and how many
        tokens it predicts."""
        batch, guidance = batch or self.batch(kind), self.guidance[kind]
        inputs = batch.to(self.device).inputs()
        with autocast(self.options.precision):
            student = self._students(guidance, self.collators[kind].method.targets)
            output = student(**inputs, num_kept=batch.counts.kept)
        return output, batch.counts.predicted

    def _dense(self) -> Tensor:
        tensors = self.batch("naive").to(self.device).inputs()
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
        batch, guidance = self.batch(kind).to(self.device).inputs(), self.guidance[kind]
        # Only tensors are cut: numbers on the host are those of the whole batch.
        tensors = {
            name: value[:2, :128] for name, value in batch.items() if isinstance(value, Tensor)
        }
        if "groups" in tensors:
            tensors["groups"] = _renumber(tensors["groups"])
        targets = self.collators[kind].method.targets
        with way():
            self._students(guidance, targets)(**tensors)[0].backward()
        gradients = self._gradients()
        logits = self.model(input_ids=tensors["input_ids"], use_cache=False).logits
        log_p_NV = logits.float().flatten(0, 1).log_softmax(1)
        labels_N = tensors["labels"].flatten()
        nll_N = torch.nn.functional.nll_loss(log_p_NV, labels_N, reduction="none")
        if targets is None:
            loss_N = nll_N * self._weights(tensors, guidance, nll_N).flatten()
        else:
            loss_N = distill(log_p_NV, nll_N, tensors, targets.table, guidance.weight_of_distance)
        loss_N[labels_N != IGNORED].sum().backward()
        pairs = zip(gradients, self._gradients(), strict=True)
        return max(float((gradient - dense).norm() / dense.norm()) for gradient, dense in pairs)

    def _gradients(self) -> list[Tensor]:
        """Returns the gradients of all weights, and clears them."""
        gradients = [p.grad.clone() for p in self.model.parameters()]
        self.model.zero_grad()
        return gradients

    def _weights(
        self, tensors: dict[str, Tensor], guidance: GuidanceConfig, nll_N: Tensor
    ) -> Tensor:
        if guidance.method == "alm":
            nll_BT = nll_N.detach().view(tensors["labels"].shape)
            batch, labels_BT = GuidanceTensors.of(tensors), tensors["labels"]
            return token_weights(nll_BT, batch, labels_BT, guidance)
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
        self, kinds: dict[str, Callable[[], Tensor]], repeats: int
    ) -> dict[str, list[float]]:
        """Times whole steps of each kind, taken in turn, after one of each that is not counted."""
        ways = {kind: partial(self.update, loss) for kind, loss in kinds.items()}
        in_turn(ways, 1)
        return in_turn(ways, repeats)

    def rival(self, seconds: dict[str, list[float]]) -> str:
        """Returns the fastest kind of naive steps but our own."""
        rivals = [kind for kind in self.naive() if kind != "cpt"]
        return min(rivals, key=lambda kind: median(seconds[kind]))
