"""What a guided step costs beside a naive one. Each prints JSON, one object a line.

    python benches/training.py step CORPUS --shape 576x49k --student gpt2.json.gz \\
        --eos "<|endoftext|>" --teacher qwen2.5.json.gz
    python benches/training.py all CORPUS --tokenizers FOLDER

A step is: rows collated (guided: aligned with the teacher's scores), forward, backward, clipping,
AdamW. The rows are real text under real tokenizers; weights and the teacher's losses are drawn at
random. Naive are: the model's own logits with torch's cross-entropy; torch's chunked op; liger on
CUDA; and our own `method: cpt`. All take turns in one run, after a check that the guided gradient
is that of all logits. Memory is the peak of a process (on CUDA: of the allocator) that takes two
steps of one kind, for each kind anew.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from gpu.gauge import autocast, device_name, drawn_model, ratio, seconds_of
from machine import machine, print_lines
from vocagno import TokenSpans
from vocagno.config import DataConfig, HeadLoss, OptimizerConfig
from vocagno.corpus import read_batches, scan
from vocagno.guidance_config import GuidanceConfig
from vocagno.memory import peak_megabytes
from vocagno.rows import Row, RowStore
from vocagno.scores import KIND, ScoreStore
from vocagno.training.data import COUNTS, Collator
from vocagno.training.head import head_of, hidden_states
from vocagno.training.loading import local_device
from vocagno.training.optimization import build_optimizer
from vocagno.training.preparing import prepared_rows
from vocagno.training.reading import TextReader
from vocagno.training.scoring import Teacher, score_corpus
from vocagno.training.selective import selective_cross_entropy
from vocagno.training.student import GuidedStudent
from vocagno.training.student_tokenizer import student_tokenizer

SHAPES = {
    "576x49k": {
        "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "num_hidden_layers": 12,
        "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "896x152k": {
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 8,
        "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
    },
    "2048x32k": {
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": 2048, "num_hidden_layers": 4,
        "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
    },
}  # fmt: skip
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

    def read(self, readings) -> Iterator[tuple[int, np.ndarray]]:
        generator = np.random.default_rng(0)
        for number, reading in enumerate(readings):
            count = len(reading.ids) - reading.asked_from
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
        data = DataConfig(train="", seq_len=options.seq_len)
        self.collators = {
            "naive": Collator(None, NAIVE, data), "guided": Collator(self.scores, GUIDED, data),
        }  # fmt: skip

    def kinds(self) -> dict[str, Callable[[], torch.Tensor]]:
        """A loss, from rows to a sum divided by a count, of each kind."""
        found: dict[str, Callable[[], torch.Tensor]] = {
            "guided": lambda: self._ours("guided"), "dense": self._dense,
            "cpt": lambda: self._ours("naive"),
        }  # fmt: skip
        for how in self.head_losses():
            found[how] = lambda how=how: self._ours("naive", how)
            if self.device.type == "cuda":
                found[f"guided by {how}"] = lambda how=how: self._ours("guided", how)
        return found

    def head_losses(self) -> list[HeadLoss]:
        """Others than our own loop that are installed and run on the device."""
        found: list[HeadLoss] = []
        if hasattr(torch.nn, "LinearCrossEntropyOptions"):
            found.append("torch")
        if self.device.type == "cuda" and find_spec("liger_kernel"):
            found.append("liger")
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

    def batch(self, kind: str) -> Any:
        """The next rows, collated."""
        places = [next(self.order) for _ in range(self.options.rows)]
        rows = [self._within(self.rows[place], self.fields["vocab_size"]) for place in places]
        return self.collators[kind](rows)

    @staticmethod
    def _within(row: Row, vocabulary: Any) -> Row:
        return replace(row, ids=row.ids % vocabulary)

    def _ours(self, kind: str, how: HeadLoss = "auto") -> torch.Tensor:
        batch = self.batch(kind)
        counts = dict(zip(COUNTS, batch.counts.tolist(), strict=True))
        guidance = GUIDED if kind == "guided" else NAIVE
        student = self._students(guidance, how)
        with autocast(self.options.precision):
            output = student(**batch.to(self.device), num_kept=counts["kept"])
        return output.loss / counts["predicted"]

    def _dense(self) -> torch.Tensor:
        tensors = self.batch("naive").to(self.device)
        with autocast(self.options.precision):
            logits = self.model(input_ids=tensors["input_ids"], use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), tensors["labels"].flatten()
        )

    def check(self) -> float:
        """The relative difference of a guided gradient from that of all logits (256 tokens)."""
        student = GuidedStudent(self.model, GUIDED)
        tensors = {
            name: value[:1, :256] for name, value in self.batch("guided").to(self.device).items()
        }
        gradients = []
        for weights in (None, self._weights(tensors)):
            self.model.zero_grad()
            if weights is None:
                student(**tensors)[0].backward()
            else:
                logits = self.model(input_ids=tensors["input_ids"], use_cache=False).logits
                nll = torch.nn.functional.cross_entropy(
                    logits.float().flatten(0, 1), tensors["labels"].flatten(), reduction="none"
                )
                (nll * weights.flatten()).sum().backward()
            gradients.append([p.grad.clone() for p in self.model.parameters()])
        self.model.zero_grad()
        return max(
            float((ours - dense).norm() / dense.norm())
            for ours, dense in zip(*gradients, strict=True)
        )

    def _weights(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            states = hidden_states(self.model, tensors["input_ids"])
            _, metrics = selective_cross_entropy(
                states, head_of(self.model), tensors["labels"], tensors["teacher_loss"], GUIDED
            )
        return metrics.weights_BT


def step(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(options, Path(folder))
        difference = steps.check()
        if difference > 1e-4:
            raise SystemExit(f"the guided gradient differs from that of all logits by {difference}")
        kinds = steps.kinds()
        for loss in kinds.values():
            steps.step(loss)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.repeats):
            for kind, loss in kinds.items():
                seconds[kind].append(steps.step(loss))
        collating = _collating(steps, options.repeats)
    theirs = [kind for kind in kinds if "guided" not in kind and kind != "cpt"]
    rival = min(theirs, key=lambda kind: median(seconds[kind]))
    memory = {kind: _memory(options, kind) for kind in ("guided", rival, "cpt")}
    tokens = options.rows * options.seq_len
    return {
        "what": "step", "shape": options.shape,
        "layers": SHAPES[options.shape]["num_hidden_layers"],
        "precision": options.precision, "device": device_name(),
        "rows": options.rows, "seq_len": options.seq_len,
        "gradient_difference": difference,
        "rival": rival,
        "ratio": ratio(seconds["guided"], seconds[rival]),
        "ratio_to_cpt": ratio(seconds["guided"], seconds["cpt"]),
        "tokens_per_second": {k: round(tokens / median(v), 1) for k, v in seconds.items()},
        "seconds": {k: round(median(v), 3) for k, v in seconds.items()},
        "collating_seconds": collating,
        "peak_mb": memory,
        "memory_ratio": round(memory["guided"] / memory[rival], 3),
        **machine("torch", "transformers"),
    }  # fmt: skip


def _collating(steps: Steps, repeats: int) -> dict[str, float]:
    found = {}
    for kind in ("naive", "guided"):
        began = time.perf_counter()
        for _ in range(repeats):
            steps.batch(kind)
        found[kind] = round((time.perf_counter() - began) / repeats, 4)
    return found


def _memory(options: argparse.Namespace, kind: str) -> float:
    """The peak of a process that takes two steps of one kind, in MB."""
    arguments = [
        "memory", options.corpus, "--shape", options.shape, "--student", options.student,
        "--eos", options.eos, "--teacher", options.teacher, "--rows", options.rows,
        "--seq-len", options.seq_len, "--precision", options.precision, "--kind", kind,
    ]  # fmt: skip
    command = [sys.executable, __file__, *map(str, arguments)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])["peak_mb"]


def memory(options: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(options, Path(folder))
        loss = steps.kinds()[options.kind]
        for _ in range(2):
            steps.step(loss)
    if steps.device.type == "cuda":
        return {"kind": options.kind, "peak_mb": round(torch.cuda.max_memory_allocated() / 1e6)}
    return {"kind": options.kind, "peak_mb": round(peak_megabytes())}


def everything(options: argparse.Namespace) -> Iterator[dict]:
    for shape, (student, eos, teacher) in PAIRS.items():
        files = [str(options.tokenizers / f"{name}.json.gz") for name in (student, teacher)]
        chosen = {"shape": shape, "student": files[0], "eos": eos, "teacher": files[1]}
        yield step(argparse.Namespace(**{**vars(options), **chosen}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for function in (step, memory, everything):
        name = "all" if function is everything else function.__name__
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("corpus", type=Path)
        command.add_argument("--rows", type=int, default=2)
        command.add_argument("--seq-len", type=int, default=1024)
        command.add_argument("--repeats", type=int, default=7)
        command.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
        if function is everything:
            command.add_argument("--tokenizers", type=Path, required=True)
            continue
        command.add_argument("--shape", choices=SHAPES, required=True)
        command.add_argument("--student", required=True)
        command.add_argument("--eos", required=True)
        command.add_argument("--teacher", required=True)
        command.add_argument("--kind", default="guided")
    options = parser.parse_args()
    print_lines(options.function(options))


if __name__ == "__main__":
    main()
