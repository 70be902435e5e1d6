"""What the paper's run would take: TinyLlama-1.1B on 15 B tokens under a 7B teacher, from published
sizes, a measured ratio and stated assumptions. Prints JSON; `training_page.py` makes tables of it.

    python benches/plan.py CORPUS --student tinyllama.json.gz --teacher qwen2.5.json.gz
"""

import argparse
from pathlib import Path

from machine import print_lines
from vocagno import TokenSpans
from vocagno.corpus import read_batches

TOKENS = 15e9
SEQ_LEN, GLOBAL_BATCH = 2048, 1024
KEPT = 0.42
"""Share of the tokens trained on: 40 % of the mapped ones, and the others."""
STUDENT = {"layers": 22, "hidden": 2048, "vocabulary": 32_000, "weights": 1.1e9}
TEACHER = {"layers": 28, "hidden": 3584, "vocabulary": 152_064, "weights": 7.6e9}
"""TinyLlama-1.1B; Qwen2.5-Math-7B."""
PEAK, TRAINING_MFU, SCORING_MFU = 989e12, 0.40, 0.45
"""An H100, and how much of it training and reading are assumed to use."""
STORED_BYTES = 3.02
"""A teacher token, measured: docs/scores.md."""
GPUS = (1, 8, 32)
MICRO_BATCH = 8
ACTIVATION_BYTES = 34
"""For each token, layer and unit of the hidden size, in bfloat16 with flash attention
(arXiv 2205.05198, eq. 2, without the part that attention scores take)."""


def attention(model: dict[str, float], passes: int) -> float:
    return 4.0 * passes * model["layers"] * model["hidden"] * SEQ_LEN


def student_flops() -> tuple[float, float]:
    """A token of naive and of guided training."""
    head = STUDENT["vocabulary"] * STUDENT["hidden"]
    multiplied = STUDENT["weights"] - head  # the embedding is looked up
    naive = 6 * multiplied + attention(STUDENT, 3)
    return naive, naive - 2 * head * (3 - (1 + 3 * KEPT))


def teacher_flops() -> float:
    """A teacher token, read."""
    embedding = TEACHER["vocabulary"] * TEACHER["hidden"]
    return 2 * (TEACHER["weights"] - embedding) + attention(TEACHER, 1)


def token_ratio(options: argparse.Namespace) -> float:
    """Teacher tokens for each student token, on real text."""
    texts = next(read_batches(options.corpus))
    paths = options.student, options.teacher
    student, teacher = (TokenSpans(path).encode(texts) for path in paths)
    return len(teacher.ids) / len(student.ids)


def days(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds < 96 * 3600 else f"{seconds / 86400:,.1f} d"


def tables(ratio: float) -> list[str]:
    """Markdown, given the teacher tokens for each student token."""
    naive, guided = student_flops()
    read = teacher_flops() * ratio
    lines = [
        f"A student token takes {naive / 1e9:.2f} GFLOP in naive training, {guided / 1e9:.2f} in "
        f"guided (the head's backward pass over {KEPT:.0%} of the tokens). On real text there are "
        f"{ratio:.3f} teacher tokens to a student token (measured), so reading them takes "
        f"{read / 1e9:.2f} GFLOP for each student token, stored or live.",
        "",
        *head("GPUs", "naive", "guided, stored scores", "scoring once, ahead", "guided, live"),
    ]
    for gpus in GPUS:
        plain, train = (TOKENS * each / (PEAK * TRAINING_MFU * gpus) for each in (naive, guided))
        score = TOKENS * read / (PEAK * SCORING_MFU * gpus)
        lines.append(row(gpus, *map(days, (plain, train, score, train + score))))
    places = MICRO_BATCH * SEQ_LEN
    state, weights = STUDENT["weights"] * 16 / 1e9, TEACHER["weights"] * 2 / 1e9
    size = STUDENT["layers"] * STUDENT["hidden"] * places / 1e9
    dense = places * STUDENT["vocabulary"] * 6 / 1e9
    lines += [
        "",
        f"Memory of a GPU, with {MICRO_BATCH} rows of {SEQ_LEN:,} tokens in a micro-batch:",
        "",
        *head("what", "DDP", "FSDP2 on 8", "FSDP2 on 32"),
        row("weights, gradients, AdamW in float32", *shares(state)),
        row("activations", *[f"{ACTIVATION_BYTES * size:.1f} GB"] * 3),
        row("activations with `train.gradient_checkpointing`",
            *[f"{2 * size:.1f} GB and one layer"] * 3),
        row(f"logits, a chunk at a time (all at once: {dense:.1f} GB with their gradient)",
            *["0.1 GB"] * 3),
        row("a live teacher in bfloat16 (in parts: `teacher.shard`)", *shares(weights)),
        "",
        f"Stored scores take {TOKENS * ratio * STORED_BYTES / 1e9:,.0f} GB on disk.",
    ]  # fmt: skip
    return lines


def head(*cells: str) -> list[str]:
    return [row(*cells), "|" + "---|" * len(cells)]


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def shares(whole: float) -> list[str]:
    """On one GPU, and in parts over 8 and 32."""
    return [f"{whole / parts:.1f} GB" for parts in (1, 8, 32)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--student", required=True)
    parser.add_argument("--teacher", required=True)
    ratio = token_ratio(parser.parse_args())
    print_lines({"what": "plan", "token_ratio": round(ratio, 4)})


if __name__ == "__main__":
    main()
