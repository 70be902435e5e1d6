"""Measures how fast the teacher scores, and what memory it takes.

Each command prints JSON, one object a line.

    python benches/scoring.py throughput CORPUS --model FOLDER [--gguf FILE] [--documents 12]
    python benches/scoring.py throughput CORPUS --tokenizer qwen2.5.json.gz --shape qwen2.5-0.5b
    python benches/scoring.py memory
    python benches/scoring.py candidates [--shape gemma-3-270m]
    python benches/scoring.py all CORPUS --model FOLDER [--gguf FILE] --tokenizer qwen2.5.json.gz

`throughput` times, in turn in one run and over the same batches: scoring from texts to a written
shard; only the model (forward pass to hidden states, and the head's product in chunks, dropped);
and the plain way (each document by itself, all logits, cross-entropy), whose losses are compared
with ours. `memory` scores one document of random tokens in a process for each size, and says by how
much its peak grew above the loaded model. `candidates` times scoring with 16 candidates a token, to
the encoded bytes, and without, in turn in one run on a CPU; the losses must be the same bits.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gauge import device_name, in_turn, random_model
from machine import machine, print_lines
from vocagno import TokenSpans
from vocagno.config.teacher import TeacherConfig
from vocagno.data.corpus import read_batches, text_hash
from vocagno.models.head import chunks
from vocagno.models.loading import load_teacher, local_device
from vocagno.system.progress import peak_megabytes
from vocagno.teacher.candidate_frames import frames_of
from vocagno.teacher.candidates import Candidates
from vocagno.teacher.score_store import DocumentScores, write_scores
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.scoring import Teacher
from vocagno.teacher.windows import TextReader, Window, cuts

SHAPES = {
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8_192,
    },
    "gemma-3-270m": {
        "model_type": "gemma3_text",
        "vocab_size": 262_144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
    },
}
"""Published sizes of models whose weights are drawn at random here."""


class Recording(TransformersScorer):
    """A scorer that keeps its passes, so that the model can be timed on the same ones."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.done = []
        self.windows = []

    def score(self, windows):
        self.windows = windows
        return super().score(windows)

    def losses(self, one_pass):
        self.done.append(one_pass)
        return super().losses(one_pass)


def throughput(options: argparse.Namespace) -> dict:
    return measure(options, *_model(options, local_device()))


def measure(options: argparse.Namespace, model, spans: TokenSpans, name: str) -> dict:
    """Measures the throughput of a model that is loaded."""
    prefix = spans.prefix_ids
    scorer = Recording(
        model, batch_tokens=options.batch_tokens, width=2048, batching=options.batching
    )
    teacher = Teacher(scorer, TextReader(spans, prefix, context=2048, min_context=512))
    texts = _texts(options, spans)
    _score(teacher, texts)
    passes = list(scorer.done)
    places = sum(one_pass.ids_BT.numel() for one_pass in passes)
    tokens = sum(len(window.ids) - 1 for window in scorer.windows)

    def ours() -> None:
        _score(teacher, texts)

    @torch.inference_mode()
    def model_only() -> None:
        for one_pass in passes:
            states_NH = scorer.asked_states(one_pass)
            for place in chunks(len(states_NH), scorer.head.vocabulary_size, scorer.head.device):
                scorer.head.logits(states_NH[place])

    windows = list(scorer.windows)
    plain = _plain(model, windows)
    expected = dict(scorer.score(windows))
    worst = max(float(np.abs(expected[n] - losses.numpy()).max()) for n, losses in plain())
    seconds = in_turn(
        {"ours": ours, "model": model_only, "plain": lambda: list(plain())}, options.repeats
    )
    ratios = [a / b for a, b in zip(seconds["model"], seconds["ours"], strict=True)]
    figures = {
        "model": name,
        "device": device_name(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "batching": "packed" if scorer.is_packed else "buckets",
        "documents": len(texts),
        "tokens": tokens,
        "padding": round(1 - tokens / places, 4),
        "padding_of_a_shard": _padding_of_a_shard(scorer, spans, options),
        "tokens_per_second": round(tokens / median(seconds["ours"]), 1),
        "model_alone_tokens_per_second": round(tokens / median(seconds["model"]), 1),
        "ratio": round(median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "plain_tokens_per_second": round(tokens / median(seconds["plain"]), 1),
        "largest_difference": worst,
        **machine("torch", "transformers"),
    }
    if worst <= (1e-3 if model.dtype == torch.float32 else 0.1):
        return {"what": "throughput", **figures}
    outcome = f"losses differ from the plain way's by up to {worst} nats"
    return {"what": "throughput", "outcome": outcome, "of_wrong_losses": figures}


def to_the_end(lines: Iterable[dict]) -> Iterator[dict]:
    """Yields the lines. Raises: SystemExit after the last one, if any is of wrong losses: the other
    lines of hours of work are not lost."""
    wrong = []
    for line in lines:
        yield line
        if "of_wrong_losses" in line:
            wrong.append(line["outcome"])
    if wrong:
        raise SystemExit("; ".join(wrong))


def _model(options: argparse.Namespace, device: torch.device):
    if options.model:
        config = TeacherConfig(
            model=options.model,
            gguf_file=options.gguf,
            dtype=options.dtype,
            attention=options.attention,
        )
        spans = TokenSpans.from_pretrained(options.model, gguf_file=options.gguf)
        return load_teacher(config, device), spans, Path(options.gguf or options.model).stem
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = random_model(SHAPES[options.shape], dtype).eval().requires_grad_(False)
    return model, TokenSpans(options.tokenizer), f"random, of the shape of {options.shape}"


def _texts(options: argparse.Namespace, spans: TokenSpans) -> list[str]:
    """Documents about as long as the median of those that fill no window: few of them make whole
    batches, as all of a shard do, which is what padding depends on."""
    texts = _cut_texts(next(read_batches(options.corpus)), options.characters)
    sizes = np.diff(spans.encode(texts).cu_seqlens)
    order = [i for i in np.argsort(sizes, kind="stable").tolist() if sizes[i] < 2048]
    first = max(0, (len(order) - options.documents) // 2)
    return [texts[i] for i in order[first : first + options.documents]]


def _cut_texts(texts: list[str], characters: int | None) -> list[str]:
    if not characters:
        return texts
    return [
        text[start : start + characters]
        for text in texts
        for start in range(0, len(text), characters)
    ]


def _score(teacher: Teacher, texts: list[str]) -> list[DocumentScores]:
    documents = teacher.score(texts)
    with tempfile.TemporaryDirectory() as folder:
        hashes = [text_hash(text) for text in texts]
        write_scores(Path(folder) / "shard.arrow", hashes, documents, {"teacher": "bench"})
    return documents


def _plain(model, windows: list[Window]) -> Callable[[], Iterator[tuple[int, Tensor]]]:
    """Makes the plain way: each window by itself, with all its logits."""

    @torch.inference_mode()
    def run() -> Iterator[tuple[int, Tensor]]:
        for number, window in enumerate(windows):
            sequence = torch.from_numpy(window.ids)[None].to(model.device)
            logits = model(input_ids=sequence[:, :-1], use_cache=False).logits[0].float()
            nll = torch.nn.functional.cross_entropy(logits, sequence[0, 1:], reduction="none")
            if window.asked_from < len(window.ids):
                yield number, nll[window.asked_from - 1 :].cpu()

    return run


def _padding_of_a_shard(
    scorer: TransformersScorer, spans: TokenSpans, options: argparse.Namespace
) -> float:
    """Returns the share of padding in the batches of a whole shard (2 MB) of the corpus."""
    texts = _cut_texts(next(read_batches(options.corpus)), options.characters)
    sizes = np.diff(spans.encode(texts).cu_seqlens).tolist()
    lengths = [w.stop - w.start for size in sizes for w in cuts(size, 2048, 512)]
    places = sum(
        len(batch) * max(sum(lengths[n] for n in row) for row in batch)
        for batch in scorer.batches(lengths)
    )
    return round(1 - sum(lengths) / places, 4)


VOCABULARIES = (4_096, 32_768, 262_144)
LENGTHS = (2_048, 8_192, 32_768)


def memory(options: argparse.Namespace) -> dict:
    grown = {}
    for vocabulary in VOCABULARIES:
        for length in LENGTHS:
            command = [sys.executable, __file__, "one-size", str(vocabulary), str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            grown[f"{vocabulary} x {length}"] = json.loads(done.stdout)["grown_mb"]
    return {
        "what": "memory",
        "model": "two Llama layers of 64, float32",
        "grown_mb": grown,
        "logits_mb": {
            f"{vocabulary} x {length}": vocabulary * length * 4 >> 20
            for vocabulary in VOCABULARIES
            for length in LENGTHS
        },
        **machine("torch", "transformers"),
    }


def one_size(options: argparse.Namespace) -> dict:
    """Measures the peak of this process above what it had with the model loaded and warm."""
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=max(LENGTHS),
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    scorer = TransformersScorer(model, batch_tokens=8192, width=2048)
    ids = np.random.default_rng(0).integers(0, options.vocabulary, options.length + 1)
    list(scorer.score([Window(ids[:64], 1)]))
    before = peak_megabytes()
    ((_, losses),) = scorer.score([Window(ids, 1)])
    assert losses.shape == (options.length,)
    assert np.isfinite(losses).all()
    return {"grown_mb": round(peak_megabytes() - before)}


CANDIDATES = 16
SAMPLED = 8


def candidates(options: argparse.Namespace) -> dict:
    """Random ids: their candidates take more bytes, and longer to encode, than those of text."""
    model = random_model(SHAPES[options.shape], torch.float32).eval().requires_grad_(False)
    size = model.config.vocab_size
    draw = np.random.default_rng(0)
    windows = [Window(draw.integers(0, size, 513), 1) for _ in range(2)]
    scores = {}
    kinds = {"without": (0, False), "with": (CANDIDATES, False), "sampled": (SAMPLED, True)}
    scorers = {
        name: TransformersScorer(
            model, batch_tokens=8192, width=2048, candidates=count, sampled=is_drawn
        )
        for name, (count, is_drawn) in kinds.items()
    }

    def score(name: str) -> None:
        scores[name] = dict(scorers[name].score(windows))
        for number, window in scores[name].items():
            if name != "without":
                real = windows[number].ids[1:].astype(np.int32)
                frames_of(Candidates(real, window.ids, window.codes))

    seconds = [
        {name: _processor(partial(score, name)) for name in kinds} for _ in range(options.repeats)
    ]
    ratios, of_sampled = (
        [run[name] / run["without"] for run in seconds] for name in ("with", "sampled")
    )
    is_same = all(
        np.array_equal(window.nll, scores["without"][number])
        for name in ("with", "sampled")
        for number, window in scores[name].items()
    )
    figures = {
        "model": f"random, of the shape of {options.shape}",
        "vocabulary": size,
        "candidates": CANDIDATES,
        "tokens": 2 * 512,
        "ratio": round(median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "sampled": SAMPLED,
        "ratio_sampled": round(median(of_sampled), 3),
        **machine("torch", "transformers"),
    }
    if is_same:
        return {"what": "candidates", **figures}
    outcome = "losses with candidates are not those without"
    return {"what": "candidates", "outcome": outcome, "of_wrong_losses": figures}


def _processor(way: Callable[[], None]) -> float:
    """Seconds of the processors; those of the clock are of other processes, too."""
    began = time.process_time()
    way()
    return time.process_time() - began


def everything(options: argparse.Namespace) -> Iterator[dict]:
    """The runs whose figures stand in `docs/scores.md`."""
    named = {"model": options.model, "gguf": options.gguf}
    drawn = {"model": None, "documents": 2}
    short = {"documents": 60, "characters": 300}
    for change in (
        {**named, "documents": 4},
        drawn,
        {**named, **short},
        {**named, **short, "batching": "packed"},
    ):
        yield throughput(argparse.Namespace(**{**vars(options), **change}))
    yield memory(options)
    yield candidates(argparse.Namespace(**{**vars(options), "shape": "smollm2-135m"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, run in (("throughput", throughput), ("all", everything)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("corpus")
        command.add_argument("--model")
        command.add_argument("--gguf")
        command.add_argument("--dtype", default="auto")
        command.add_argument("--attention")
        command.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
        command.add_argument("--tokenizer")
        command.add_argument("--documents", type=int, default=12)
        command.add_argument("--characters", type=int, help="cut the documents to this length")
        command.add_argument("--batch-tokens", type=int, default=8192)
        command.add_argument("--batching", default="auto")
        command.add_argument("--repeats", type=int, default=3)
    commands.add_parser("memory").set_defaults(run=memory)
    command = commands.add_parser("candidates")
    command.set_defaults(run=candidates)
    command.add_argument("--repeats", type=int, default=7)
    command.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    command = commands.add_parser("one-size")
    command.set_defaults(run=one_size)
    command.add_argument("vocabulary", type=int)
    command.add_argument("length", type=int)
    options = parser.parse_args()
    lines = options.run(options)
    print_lines(to_the_end([lines] if isinstance(lines, dict) else lines))


if __name__ == "__main__":
    main()
