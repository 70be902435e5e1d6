"""Measures what training and scoring cost on the device of this machine: `make gpu`.

    python benches/gpu.py --out target/gpu.json [--size tiny|small|large]

It runs four parts and writes one JSON file, again after each part:

- `steps`: an optimizer step of naive training, of the default rule, of the paper's rule and of
  `distill`, all over the same rows;
- `scoring`: the teacher's losses, without and with 16 candidates of each token, next to the plain
  way (each text by itself, all its logits);
- `loss`: forward and backward pass of our chunked loss next to torch's cross-entropy;
- `tests`: the tests that are marked `gpu`.

No time is taken of a wrong answer: a gradient is compared with that of all logits, a loss with
torch's. If one differs, a test fails or a part breaks down, the file says so and the exit status is
1. Models have random weights, and text and tokenizers are made here, so nothing is downloaded.

N: tokens, H: size of a hidden state, V: vocabulary, K: candidates of a token.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

import guided_steps
import scoring
from gauge import autocast, device_name, free, in_turn, peak_of, random_model, ratio
from guided_steps import CANDIDATES, GUIDED, MATCHING, NAIVE, Steps
from machine import machine, print_lines
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance import selective_cross_entropy
from vocagno.models.loading import local_device
from vocagno.quickstart.problems import documents
from vocagno.quickstart.tokenizers import EOS, student_tokenizer, teacher_tokenizer
from vocagno.teacher.candidates import ScoredWindow, probabilities_of
from vocagno.teacher.scorer import TransformersScorer
from vocagno.teacher.windows import Window

ROOT = Path(__file__).parents[1]
Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes of models and inputs."""

    student: dict[str, Any]
    """Fields of the configuration of the student's model."""
    teacher: dict[str, Any]
    texts: int
    """The number of documents on which the two tokenizers are trained."""
    vocabularies: tuple[int, int]
    """The largest number of ids of the student's and of the teacher's tokenizer."""
    rows: int
    """Rows of a micro-batch, each of `seq_len` tokens."""
    seq_len: int
    windows: int
    """The number of texts that the teacher scores."""
    batch_tokens: int
    """Tokens of a forward pass of the teacher."""
    heads: tuple[tuple[int, int, int], ...]
    """N, H and V of each comparison of the chunked loss."""
    repeats: int
    """How often each way is timed."""


_TINY = {
    "model_type": "llama",
    "vocab_size": 600,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SIZES = {
    # Seconds on a CPU: a rehearsal, whose times mean nothing.
    "tiny": Size(
        student=_TINY,
        teacher=_TINY | {"model_type": "qwen2", "vocab_size": 900},
        texts=72,
        vocabularies=(600, 900),
        rows=2,
        seq_len=64,
        windows=6,
        batch_tokens=128,
        heads=((300, 32, 600),),
        repeats=1,
    ),
    # SmolLM-135M with 12 of its 30 layers, under a teacher of the shape of Qwen2.5-0.5B.
    "small": Size(
        student=guided_steps.SHAPES["576x49k"],
        teacher=scoring.SHAPES["qwen2.5-0.5b"],
        texts=480,
        vocabularies=(8_192, 16_384),
        rows=4,
        seq_len=1024,
        windows=24,
        batch_tokens=8_192,
        heads=((4_096, 576, 49_152), (4_096, 896, 151_936)),
        repeats=5,
    ),
    # TinyLlama-1.1B with all layers, under a teacher of the shape of Qwen2.5-Math-7B.
    "large": Size(
        student=guided_steps.SHAPES["2048x32k"] | {"num_hidden_layers": 22},
        teacher={
            "model_type": "qwen2",
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "num_hidden_layers": 28,
            "intermediate_size": 18_944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 4096,
        },
        texts=1_920,
        vocabularies=(32_000, 48_000),
        rows=8,
        seq_len=2048,
        windows=48,
        batch_tokens=16_384,
        heads=((16_384, 2048, 32_000), (16_384, 3584, 152_064)),
        repeats=7,
    ),
}
LARGE_BYTES = 70e9
"""Memory of a GPU from which on the size is `large`, unless another one is asked for."""

LARGEST_GRADIENT_DIFFERENCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Between a gradient and that of all logits, relative to its norm."""
LARGEST_LOSS_DIFFERENCE = {"fp32": 1e-3, "bf16": 0.1}
"""Between two losses of a token, in nats."""
LARGEST_CODE_DIFFERENCE = 0.07
"""In nats: what the 8 bits of a candidate's code may add to it."""


def usual_size() -> str:
    """The largest size that fits the device."""
    device = local_device()
    if device.type != "cuda":
        return "tiny"
    memory = torch.cuda.get_device_properties(device).total_memory
    return "large" if memory >= LARGE_BYTES else "small"


def usual_precision() -> str:
    """The precision in which models of this device are trained and read."""
    return "bf16" if local_device().type == "cuda" else "fp32"


@dataclass(frozen=True)
class Way:
    """One way to do the work that is timed."""

    work: Callable[[], Any]
    difference: Callable[[], float]
    """Compares the way's answer with the right one."""
    tolerance: float
    """The largest difference of a right answer."""


def measure(ways: dict[str, Way], tokens: int, repeats: int, rival: str) -> list[Line]:
    """Checks every way, then times those that are right.

    Args:
        tokens: the number of tokens of one piece of work.
        rival: the way to whose time `ratio` compares.
    Returns: a line for each way. `outcome` is `measured`, `wrong` or `out of memory`.
    """
    lines = {name: checked(way) for name, way in ways.items()}
    right = [name for name, line in lines.items() if line["outcome"] == "measured"]
    seconds = in_turn({name: ways[name].work for name in right}, repeats)
    for name, of_way in seconds.items():
        lines[name] |= {
            "seconds": round(median(of_way), 6),
            "tokens_per_second": round(tokens / median(of_way)),
            "ratio": ratio(of_way, seconds[rival]) if rival in seconds else None,
            "ratio_to": rival,
        }
    return [{"kind": name} | line for name, line in lines.items()]


def checked(way: Way) -> Line:
    """The outcome of a way, with its difference from the right answer and its peak memory."""
    line: Line = {"outcome": "out of memory"}
    try:
        difference = way.difference()
        line |= {"difference": difference, "tolerance": way.tolerance}
        if not difference <= way.tolerance:  # NaN is wrong, too
            return line | {"outcome": "wrong"}
        way.work()  # so that what is set up once is neither timed nor counted
        return line | {"outcome": "measured", "peak_mb": peak_of(way.work)}
    except torch.OutOfMemoryError:
        return line
    finally:
        free()


# ---- Training steps

STEPS = {
    "naive": NAIVE,
    "default rule": GuidanceConfig(),
    "paper's rule": GUIDED,
    "distill": MATCHING["distill"],
}


def steps(size: Size, folder: Path) -> list[Line]:
    """Times an optimizer step of each kind: collating, forward, backward, clipping, AdamW.

    The gradient of each kind is first compared with that of all logits, in float32.
    """
    precision = usual_precision()
    options = argparse.Namespace(
        **write_texts(size, folder), rows=size.rows, seq_len=size.seq_len, precision=precision
    )
    student = Steps(options, folder, size.student)

    def step(kind: str) -> None:
        output, num_predicted = student.forward(kind)
        student.update(lambda: output.loss / num_predicted)

    def without_gradients(work: Callable[[str], Any], kind: str) -> Any:
        """The result of `work`, which leaves no gradient behind even if it fails."""
        try:
            return work(kind)
        finally:
            student.optimizer.zero_grad()

    ways = {}
    for kind, guidance in STEPS.items():
        student.add(kind, guidance)
        ways[kind] = Way(
            partial(without_gradients, step, kind),
            partial(without_gradients, student.check, kind),
            LARGEST_GRADIENT_DIFFERENCE["fp32"],
        )
    shape = {"rows": size.rows, "seq_len": size.seq_len, "precision": precision}
    tokens = size.rows * size.seq_len
    return [line | shape for line in measure(ways, tokens, size.repeats, "naive")]


def write_texts(size: Size, folder: Path) -> dict[str, Any]:
    """Writes a corpus and two tokenizers that were trained on it.

    Half of the corpus is junk, whose letters and digits fill a large vocabulary.
    """
    short = [document["text"] for document in documents(0, size.texts, 0.5)]
    texts = ["\n".join(short[start : start + 4]) for start in range(0, len(short), 4)]
    names = "train.jsonl", "student.json", "teacher.json"
    corpus, student, teacher = (folder / name for name in names)
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    student_tokenizer(texts, size.vocabularies[0]).save(str(student))
    teacher_tokenizer(texts, size.vocabularies[1]).save(str(teacher))
    return {"corpus": corpus, "student": str(student), "eos": EOS, "teacher": str(teacher)}


# ---- Scoring by a teacher


def score(size: Size, folder: Path) -> list[Line]:
    """Times a teacher that scores texts of random ids, with and without candidates."""
    precision = usual_precision()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = random_model(size.teacher, dtype).eval().requires_grad_(False)
    windows = random_windows(size)
    scorers = {
        name: TransformersScorer(
            model, batch_tokens=size.batch_tokens, width=size.seq_len, candidates=count
        )
        for name, count in (("losses", 0), ("candidates", CANDIDATES))
    }
    tolerance = LARGEST_LOSS_DIFFERENCE[precision]

    def losses_differ() -> float:
        return max(
            float(np.abs(losses - plain_losses(model, windows[number])).max())
            for number, losses in scorers["losses"].score(windows)
        )

    def candidates_differ() -> float:
        return max(
            difference_of_candidates(scored, model, windows[number])
            for number, scored in scorers["candidates"].score(windows)
        )

    ways = {
        "losses": Way(lambda: list(scorers["losses"].score(windows)), losses_differ, tolerance),
        "candidates": Way(
            lambda: list(scorers["candidates"].score(windows)),
            candidates_differ,
            tolerance + LARGEST_CODE_DIFFERENCE,
        ),
        "plain": Way(lambda: [plain_losses(model, window) for window in windows], lambda: 0.0, 0.0),
    }
    tokens = sum(len(window.ids) - 1 for window in windows)
    lines = measure(ways, tokens, size.repeats, "losses")
    return [line | {"precision": precision} for line in lines]


def random_windows(size: Size) -> list[Window]:
    """Texts of a quarter of `seq_len` to `seq_len` random ids."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(size.seq_len // 4, size.seq_len + 1, size.windows)
    return [Window(generator.integers(0, size.teacher["vocab_size"], n), 1) for n in lengths]


@torch.inference_mode()
def log_probabilities(model: Any, window: Window) -> tuple[Tensor, Tensor]:
    """(N, V) float32 log-probabilities of a text, all at once, and (N, 1) the ids that follow."""
    ids = torch.from_numpy(window.ids).to(model.device)
    logits_NV = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
    return logits_NV.float().log_softmax(1), ids[1:, None]


def plain_losses(model: Any, window: Window) -> np.ndarray:
    """(N,) the loss of each token but the first, from all logits of the text."""
    log_p_NV, labels_N1 = log_probabilities(model, window)
    return -log_p_NV.gather(1, labels_N1).squeeze(1).cpu().numpy()


def difference_of_candidates(scored: ScoredWindow, model: Any, window: Window) -> float:
    """The largest difference in nats: of a loss, of a candidate's log-probability, or of how likely
    the k-th candidate is and should be."""
    log_p_NV, labels_N1 = log_probabilities(model, window)
    ids_NK = torch.from_numpy(scored.ids).to(log_p_NV.device).long()
    codes_NK = torch.from_numpy(scored.codes)
    stored_NK = probabilities_of(codes_NK, is_sampled=False).log().to(log_p_NV.device)
    nll_N1 = torch.from_numpy(scored.nll)[:, None].to(log_p_NV.device)
    most_likely_NK = log_p_NV.topk(ids_NK.shape[1], dim=1).values
    differences = (
        nll_N1 + log_p_NV.gather(1, labels_N1),
        log_p_NV.gather(1, ids_NK) - most_likely_NK,
        stored_NK - most_likely_NK,
    )
    return max(float(difference.abs().max()) for difference in differences)


# ---- The chunked loss


def compare_losses(size: Size, folder: Path) -> list[Line]:
    """Times loss and gradients of a head on random states, in chunks and by torch at once."""
    lines = []
    for shape in size.heads:
        states_NH, weight_VH, labels_N = random_head(*shape)
        leaves = states_NH, weight_VH
        chunked = partial(in_chunks, states_NH, weight_VH, labels_N)
        plain = partial(at_once, states_NH, weight_VH, labels_N)
        ways = {
            "torch": Way(partial(with_gradients, plain, leaves), lambda: 0.0, 0.0),
            "chunked": Way(
                partial(with_gradients, chunked, leaves),
                partial(largest_difference, chunked, plain, leaves),
                LARGEST_GRADIENT_DIFFERENCE[usual_precision()],
            ),
        }
        sizes = dict(zip(("tokens", "hidden_size", "vocabulary"), shape, strict=True))
        sizes["precision"] = usual_precision()
        lines += [line | sizes for line in measure(ways, shape[0], size.repeats, "torch")]
    return lines


def random_head(num_tokens: int, hidden: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """States (N, H) and weights (V, H) with gradients, and labels (N,), some of them ignored."""
    device = local_device()
    generator = torch.Generator(device).manual_seed(0)
    states_NH = torch.randn(num_tokens, hidden, generator=generator, device=device)
    weight_VH = torch.randn(vocabulary, hidden, generator=generator, device=device)
    weight_VH *= hidden**-0.5  # so that the logits have the spread of a standard normal one
    labels_N = torch.randint(vocabulary, (num_tokens,), generator=generator, device=device)
    labels_N[::10] = -100
    return states_NH.requires_grad_(), weight_VH.requires_grad_(), labels_N


def in_chunks(states_NH: Tensor, weight_VH: Tensor, labels_N: Tensor) -> Tensor:
    """The sum of the losses as training computes it, a chunk of logits at a time."""
    no_teacher = torch.full((1, len(labels_N)), torch.nan, device=labels_N.device)
    loss, _ = selective_cross_entropy(states_NH[None], weight_VH, labels_N[None], no_teacher, NAIVE)
    return loss


def at_once(states_NH: Tensor, weight_VH: Tensor, labels_N: Tensor) -> Tensor:
    """The sum of the losses by torch's cross-entropy, from all logits."""
    logits_NV = states_NH @ weight_VH.T
    return torch.nn.functional.cross_entropy(logits_NV.float(), labels_N, reduction="sum")


def with_gradients(way: Callable[[], Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """The loss, and its gradients for states and weights."""
    with autocast(usual_precision()):
        loss = way()
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def largest_difference(
    way: Callable[[], Tensor], plain: Callable[[], Tensor], leaves: Sequence[Tensor]
) -> float:
    """The largest relative difference of the loss and of the gradients."""
    pairs = zip(with_gradients(way, leaves), with_gradients(plain, leaves), strict=True)
    return max(float((value - expected).norm() / expected.norm()) for value, expected in pairs)


# ---- Tests

TESTS = ("tests/end_to_end",)
"""Where tests are marked `gpu`."""


def run_tests(size: Size, folder: Path) -> list[Line]:
    """Runs the tests that are marked `gpu`: on the GPU, or in a rehearsal on the CPU."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *TESTS]
    environment = os.environ | {"VOCAGNO_REHEARSE_GPU": "1"}  # ignored where there is a GPU
    subprocess.run(
        [*command, f"--junitxml={report}"],
        cwd=ROOT,
        env=environment,
        stdout=sys.stderr,
        check=False,
    )
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = {
        f"{case.get('classname')}::{case.get('name')}": (problem.get("message") or "")[:300]
        for case in cases
        for problem in case
        if problem.tag in ("failure", "error")
    }
    num_skipped = sum(case.find("skipped") is not None for case in cases)
    num_passed = len(cases) - len(failures) - num_skipped
    line = {"passed": num_passed, "skipped": num_skipped, "failures": failures}
    outcome = "failed" if failures or not num_passed else "passed"
    return [{"kind": "pytest -m gpu", "outcome": outcome} | line]


# ---- All of it

PARTS: dict[str, Callable[[Size, Path], list[Line]]] = {
    "steps": steps,
    "scoring": score,
    "loss": compare_losses,
    "tests": run_tests,
}


def results(name: str) -> Iterator[Line]:
    """Runs all parts at a size and yields all results after each of them."""
    on_cuda = local_device().type == "cuda"
    report: Line = machine("torch", "transformers", "accelerate") | {
        "device": device_name(),
        "cuda": torch.version.cuda if on_cuda else None,
        "peak_mb_is": "of CUDA's allocator" if on_cuda else "of the process so far",
        "size": name,
    }
    for part, run in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                report[part] = run(SIZES[name], Path(folder))
            except Exception as error:  # the other parts are still worth their time
                traceback.print_exc()
                report[part] = [{"outcome": "broke down", "error": repr(error)[:2000]}]
        free()
        yield report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, help="default: the largest that fits the device")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for report in results(options.size or usual_size()):
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    lines = [{"part": part} | line for part in PARTS for line in report[part]]
    print_lines(lines)
    print(f"written to {options.out}", file=sys.stderr)
    is_bad = any(line["outcome"] in ("wrong", "broke down", "failed") for line in lines)
    good = {line["part"] for line in lines if line["outcome"] in ("measured", "passed")}
    return int(is_bad or good != set(PARTS))


if __name__ == "__main__":
    sys.exit(main())
