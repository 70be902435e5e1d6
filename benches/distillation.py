"""Measures KLD and ULD next to their plain formulas on all logits at once.

    python benches/distillation.py measure >> RESULTS.jsonl      # one JSON object a line
    python benches/distillation.py page RESULTS.jsonl docs/methods.md

Forward and backward pass of the head and the loss, from states drawn at random. Both take turns in
one run, after a check that their gradients are the same. Memory is what the peak of a process grows
by in one pass (on CUDA: the allocator's), for each again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

import tables
from gauge import ratio, seconds_of
from machine import machine, print_lines
from training_page import measured_on
from vocagno.config.guidance import GuidanceConfig
from vocagno.guidance.methods import method_of
from vocagno.models.head import LanguageHead
from vocagno.models.loading import local_device
from vocagno.models.losses import TeacherStates
from vocagno.system.progress import peak_megabytes

SHAPES = {
    "kld": (2048, 576, 32_000, 1024, 32_016),
    "uld": (2048, 576, 32_000, 1024, 49_152),
}
"""Tokens, hidden size and ids of the student, hidden size and ids of the teacher."""


LARGEST_DIFFERENCE = 1e-4
"""The largest difference of the gradients of both, relative to their norms."""


class Case:
    """One batch, by the plain formula and by ours; `shape` as in `SHAPES`."""

    def __init__(self, method: str, shape: tuple[int, ...] | None = None) -> None:
        tokens, hidden, ids, teacher_hidden, teacher_ids = shape or SHAPES[method]
        device, generator = local_device(), torch.Generator().manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(device) / shape[-1] ** 0.5

        self.method = method_of(GuidanceConfig(method=method))
        self.hidden, self.weight = draw(1, tokens, hidden) * 4, draw(ids, hidden)
        self.labels = torch.randint(0, ids, (1, tokens), generator=generator).to(device)
        partner = torch.arange(tokens, device=device)[None]
        head = LanguageHead(draw(teacher_ids, teacher_hidden))
        self.teacher = TeacherStates(draw(tokens, teacher_hidden) * 4, head, partner)
        for leaf in (self.hidden, self.weight):
            leaf.requires_grad_()

    def ours(self) -> torch.Tensor:
        head = LanguageHead(self.weight)
        return self.method.distill(self.hidden, head, self.labels, self.teacher)[0]

    def plain(self) -> torch.Tensor:
        """Computes the formula on all logits of both sides, with autograd's gradient."""
        logits = (self.hidden @ self.weight.T).flatten(0, 1)
        teacher_logits = self.teacher.states_MH @ self.teacher.head.weight_VH.T
        if self.method.guidance.method == "kld":
            log_q = teacher_logits[:, : logits.shape[1]].log_softmax(-1)
            log_p = logits.log_softmax(-1)
            distance = torch.nn.functional.kl_div(log_q, log_p, reduction="sum", log_target=True)
        else:
            p, q = logits.softmax(-1), teacher_logits.softmax(-1)
            p = torch.nn.functional.pad(p, (0, q.shape[1] - p.shape[1]))
            falling = [side.sort(-1, descending=True).values for side in (p, q)]
            distance = (falling[0] - falling[1]).abs().sum()
        nll = torch.nn.functional.cross_entropy(logits, self.labels.flatten(), reduction="sum")
        return nll + self.method.guidance.weight_of_distance * distance

    def run(self, kind: str) -> tuple[float, list[torch.Tensor]]:
        """Runs a pass. Returns its seconds, and the gradients."""
        seconds = seconds_of(lambda: getattr(self, kind)().backward())
        gradients = [leaf.grad.clone() for leaf in (self.hidden, self.weight)]
        self.hidden.grad = self.weight.grad = None
        return seconds, gradients

    def difference(self) -> float:
        """The larger relative difference of the gradients of both."""
        gradients, plain_gradients = (self.run(kind)[1] for kind in ("ours", "plain"))
        pairs = zip(gradients, plain_gradients, strict=True)
        return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def measure(options: argparse.Namespace) -> Iterator[dict]:
    for method, (tokens, hidden, ids, teacher_hidden, teacher_ids) in SHAPES.items():
        case = Case(method)
        difference = case.difference()
        if difference > LARGEST_DIFFERENCE:
            raise SystemExit(f"{method}: gradients differ by {difference}")
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for _ in range(options.repeats):
            for kind, of_kind in seconds.items():
                of_kind.append(case.run(kind)[0])
        del case
        memory = {kind: _memory(method, kind) for kind in seconds}
        yield {
            "what": "distillation",
            "method": method,
            "device": local_device().type,
            "tokens": tokens,
            "hidden": hidden,
            "ids": ids,
            "teacher_hidden": teacher_hidden,
            "teacher_ids": teacher_ids,
            "gradient_difference": difference,
            "seconds": {kind: round(median(runs), 3) for kind, runs in seconds.items()},
            "ratio": ratio(seconds["ours"], seconds["plain"]),
            "peak_mb": memory,
            "memory_ratio": round(memory["ours"] / memory["plain"], 3),
            **machine("torch", "transformers"),
        }


def _memory(method: str, kind: str) -> float:
    command = [sys.executable, __file__, "memory", method, kind]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(options: argparse.Namespace) -> None:
    """Prints what one pass adds to the peak of this process, in MB."""
    case = Case(options.method)
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated() / 1e6
        case.run(options.kind)
        print(round(torch.cuda.max_memory_allocated() / 1e6 - before))
        return
    before = peak_megabytes()
    case.run(options.kind)
    print(round(peak_megabytes() - before))


def page(options: argparse.Namespace) -> None:
    """Fills the table of a page."""
    lines = [json.loads(line) for line in options.results.read_text().splitlines()]
    results = [line for line in lines if line["what"] == "distillation"]
    table = [*tables.head("", "student, teacher", "time over the plain formula", "memory over it")]
    table += [
        tables.row(
            f"`{line['method']}`, {line['device']}",
            f"{line['hidden']:,} x {line['ids']:,}, "
            f"{line['teacher_hidden']:,} x {line['teacher_ids']:,}",
            f"{line['ratio']:.2f} ({line['seconds']['ours']:.2f} s)",
            f"{line['memory_ratio']:.2f} ({line['peak_mb']['ours']:,} MB)",
        )
        for line in results
    ]
    text = options.page.read_text()
    begin, end = "<!-- distillation -->", "<!-- end of distillation -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    lines = [*table, "", f"{results[0]['tokens']:,} tokens. {measured_on(results[0])}"]
    options.page.write_text("\n".join([before + begin, *lines, end + after]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    taking = commands.add_parser("measure")
    taking.set_defaults(function=measure)
    taking.add_argument("--repeats", type=int, default=5)
    measuring = commands.add_parser("memory")
    measuring.set_defaults(function=memory)
    measuring.add_argument("method", choices=SHAPES)
    measuring.add_argument("kind", choices=("ours", "plain"))
    filling = commands.add_parser("page")
    filling.set_defaults(function=page)
    filling.add_argument("results", type=Path)
    filling.add_argument("page", type=Path)
    options = parser.parse_args()
    result = options.function(options)
    if result is not None:
        print_lines(result)


if __name__ == "__main__":
    main()
