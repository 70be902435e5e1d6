"""What the paper's run would take: TinyLlama-1.1B on 15 B tokens under a 7B teacher, from published
sizes, a measured ratio and the operations of the models (`roofline`). Prints JSON;
`training_page.py` makes tables of it.

    python benches/plan.py CORPUS --student tinyllama.json.gz --teacher qwen2.5.json.gz
"""

import argparse
from pathlib import Path

from machine import print_lines
from vocagno import TokenSpans
from vocagno.data.corpus import read_batches
from vocagno.models.head import CUDA_CHUNK_ELEMENTS

TOKENS = 15e9
SEQ_LEN, GLOBAL_BATCH = 2048, 1024
KEPT = 0.42
"""Share of the tokens trained on: 40 % of the mapped ones, and the others."""
STUDENT = {"layers": 22, "hidden": 2048, "vocabulary": 32_000, "weights": 1.1e9}
TEACHER = {"layers": 28, "hidden": 3584, "vocabulary": 152_064, "weights": 7.6e9}
"""TinyLlama-1.1B; Qwen2.5-Math-7B."""
STUDENT_SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
TEACHER_SHAPE = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
PEAK, BANDWIDTH = 989e12, 3.35e12
"""An H100 SXM: operations a second in bfloat16, bytes a second."""
OF_PEAK, OF_BANDWIDTH = 0.70, 0.85
"""How much of them large products and elementwise kernels reach (assumed)."""
STORED_BYTES = 3.02
"""A teacher token, measured: docs/scores.md."""
GPUS = (1, 8, 32)
MICRO_BATCH = 8
PLACES = MICRO_BATCH * SEQ_LEN


def attention(model: dict[str, float], passes: int) -> float:
    return 4.0 * passes * model["layers"] * model["hidden"] * SEQ_LEN


def head_flops(model: dict[str, float], products: float) -> float:
    """Of one token, for so many products of states and head."""
    return 2 * products * model["vocabulary"] * model["hidden"]


def student_flops() -> tuple[float, float]:
    """A token of naive and of guided training."""
    embedding = STUDENT["vocabulary"] * STUDENT["hidden"]
    naive = 6 * (STUDENT["weights"] - embedding) + attention(STUDENT, 3)  # it is looked up
    return naive, naive - head_flops(STUDENT, 3 - (1 + 3 * KEPT))


def teacher_flops() -> float:
    """A teacher token, read."""
    embedding = TEACHER["vocabulary"] * TEACHER["hidden"]
    return 2 * (TEACHER["weights"] - embedding) + attention(TEACHER, 1)


def bounds() -> dict[str, dict[str, float]]:
    """Of micro-batches of the student under autocast and with weights in bfloat16, and of a pass of
    the teacher: bytes that are kept, and the least seconds of products and of the rest."""
    from roofline import micro_batch

    shape, batch = (STUDENT_SHAPE, STUDENT["layers"]), (MICRO_BATCH, SEQ_LEN)
    found = {
        "autocast": micro_batch(*shape, *batch, autocast=True),
        "bf16": micro_batch(*shape, *batch, autocast=False),
        "teacher": micro_batch(
            TEACHER_SHAPE, TEACHER["layers"], *batch, autocast=False, train=False
        ),
    }
    names = {"products": 4, "rest": 4, "bytes_kept": 0, "bytes_of_a_layer": 0}
    return {
        kind: {name: round(one[name], digits) for name, digits in names.items()}
        for kind, one in found.items()
    }


def seconds(bound: dict[str, float], model: dict[str, float], products: float) -> float:
    """The least time of a token, with its part in the head."""
    layers = (bound["products"] + bound["rest"]) / PLACES
    return layers + head_flops(model, products) / (PEAK * OF_PEAK)


def token_ratio(options: argparse.Namespace) -> float:
    """Teacher tokens for each student token, on real text."""
    texts = next(read_batches(options.corpus))
    paths = options.student, options.teacher
    student, teacher = (TokenSpans(path).encode(texts) for path in paths)
    return len(teacher.ids) / len(student.ids)


def days(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds < 96 * 3600 else f"{seconds / 86400:,.1f} d"


def tables(line: dict) -> list[str]:
    """Markdown, of the line that `main` prints."""
    ratio, bound = line["token_ratio"], line["bounds"]
    naive, guided = student_flops()
    read = teacher_flops() * ratio
    kinds = {"naive": 3.0, "guided": 1 + 3 * KEPT}
    least = {
        (kind, where): seconds(bound[where], STUDENT, products)
        for kind, products in kinds.items()
        for where in ("autocast", "bf16")
    }
    reading = seconds(bound["teacher"], TEACHER, 1) * ratio
    share = {where: naive / (PEAK * least["naive", where]) for where in ("autocast", "bf16")}
    rest = {where: bound[where]["rest"] / PLACES / least["naive", where] for where in share}
    lines = [
        f"A student token takes {naive / 1e9:.2f} GFLOP in naive training, {guided / 1e9:.2f} in "
        f"guided (the head's backward pass over {KEPT:.0%} of the tokens). On real text there are "
        f"{ratio:.3f} teacher tokens to a student token (measured), so reading them takes "
        f"{read / 1e9:.2f} GFLOP for each student token, stored or live. Without compilation the "
        f"student can use at most {share['autocast']:.0%} of the peak under autocast (one GPU, "
        f"DDP) and {share['bf16']:.0%} with weights in bfloat16 (FSDP2): {rest['autocast']:.0%} "
        f"and {rest['bf16']:.0%} of the time go to operations that wait for memory, which "
        "`train.compile` fuses.",
        "",
        "At least, on GPUs that keep whole weights (DDP):",
        "",
        *head("GPUs", "naive", "guided, stored scores", "scoring once, ahead", "guided, live"),
    ]
    for gpus in GPUS:
        plain, train = (TOKENS * least[kind, "autocast"] / gpus for kind in kinds)
        score = TOKENS * reading / gpus
        lines.append(row(gpus, *map(days, (plain, train, score, train + score))))
    state, weights = STUDENT["weights"] * 16 / 1e9, TEACHER["weights"] * 2 / 1e9
    size = STUDENT["layers"] * STUDENT["hidden"] * PLACES / 1e9
    # Float32, and the gradient in bfloat16.
    dense, chunk = (
        count * 6 / 1e9 for count in (PLACES * STUDENT["vocabulary"], CUDA_CHUNK_ELEMENTS)
    )
    kept, checkpointed = {}, {}
    for where, residual in (("autocast", 4), ("bf16", 2)):
        kept[where] = f"{bound[where]['bytes_kept'] / 1e9:.1f} GB"
        one = bound[where]["bytes_of_a_layer"] / 1e9
        checkpointed[where] = f"{residual * size + one:.1f} GB"
    lines += [
        "",
        f"Memory of a GPU, with {MICRO_BATCH} rows of {SEQ_LEN:,} tokens in a micro-batch:",
        "",
        *head("what", "DDP", "FSDP2 on 8", "FSDP2 on 32"),
        row("weights, gradients, AdamW in float32", *shares(state)),
        row("activations", kept["autocast"], *[kept["bf16"]] * 2),
        row(
            "activations with `train.gradient_checkpointing`",
            checkpointed["autocast"],
            *[checkpointed["bf16"]] * 2,
        ),
        row(
            f"logits, a chunk at a time (all at once: {dense:.1f} GB with their gradient)",
            *[f"{chunk:.1f} GB"] * 3,
        ),
        row("a live teacher in bfloat16 (in parts: `teacher.shard`)", *shares(weights)),
        "",
        f"Stored scores take {TOKENS * ratio * STORED_BYTES / 1e9:,.0f} GB on disk.",
    ]
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
    print_lines({"what": "plan", "token_ratio": round(ratio, 4), "bounds": bounds()})


if __name__ == "__main__":
    main()
