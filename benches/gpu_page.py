"""Writes docs/gpu.md, and the GPU figures of docs/training.md and docs/scores.md, from the lines of
`make gpu`; without results every figure is "not measured".

    PYTHONPATH=benches python benches/gpu_page.py [RESULTS.jsonl] --docs docs
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import plan

Line = dict[str, Any]
Lines = dict[str, list[Line]]
"""By what they tell of."""

NOT_MEASURED = "Not measured: no machine with a GPU was at hand."
PLACES = {"training.md": "gpu steps", "scores.md": "gpu scoring"}
"""Pages that quote a table, and the name of its place."""


def read(path: Path | None) -> Lines:
    found: Lines = defaultdict(list)
    if path is not None:
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            found[line["what"]].append(line)
    return found


def page(lines: Lines) -> str:
    """The whole of docs/gpu.md."""
    parts = [INTRODUCTION]
    if not lines["part"]:
        parts += ["## Results", "", NOT_MEASURED, ""]
        return "\n".join(parts)
    parts += [measured_on(lines), ""]
    for title, table in SECTIONS:
        parts += [f"## {title}", "", *(list(table(lines)) or [NOT_MEASURED]), ""]
    return "\n".join(parts)


INTRODUCTION = """\
# On a GPU

One command measures everything that needs a CUDA device, within 25 minutes on one GPU of 80 GB:

    make gpu-wheels        # on any machine: what the other one lacks, 16 MB, in target/gpu-wheels
    make gpu               # on the machine with the GPU: torch >= 2.8, accelerate, no network
    make gpu REHEARSE=1    # the same lines with tiny models on a CPU

A part that fails or hangs costs only itself. A second `make gpu` skips the parts that are done;
`PARTS="steps live"` names single ones, `GPU_SECONDS=` limits all of them together. Nothing is
downloaded.
"""


def measured_on(lines: Lines) -> str:
    first = next((line for found in lines.values() for line in found if "torch" in line), None)
    if first is None:
        return "No part printed a result."
    cuda = f", CUDA {first['cuda']}" if "cuda" in first else ""
    return (
        f"Measured {first['date']} on {first['device']}, {first['cores']} cores, Python "
        f"{first['python']}, torch {first['torch']}{cuda}, transformers {first['transformers']}, "
        f"accelerate {first['accelerate']}."
    )


def parts(lines: Lines) -> Iterator[str]:
    last = {line["part"]: line for line in lines["part"]}
    yield from plan.head("part", "outcome", "seconds")
    for name, line in last.items():
        yield plan.row(name, line["outcome"], f"{line['seconds']:,.0f}")


def tests(lines: Lines) -> Iterator[str]:
    for line in lines["tests"][-1:]:
        yield (
            f"`tests/end_to_end/test_gpu*.py`: {line['passed']} passed, {line['failed']} failed, "
            f"{line['skipped']} skipped."
        )
        for name, why in line["failures"].items():
            yield f"- `{name}`: {why}"


def layouts(lines: Lines) -> Iterator[str]:
    if not lines["layout"]:
        return
    yield from plan.head("run", "outcome", "largest difference of a loss, relative", "seconds")
    for line in _latest(lines["layout"], "layout"):
        difference = line.get("largest_difference")
        compared = "" if difference is None else f"{difference:.1e}, to {line['compared_with']}"
        yield plan.row(line["layout"], line["outcome"], compared, line.get("seconds", ""))


def steps(lines: Lines) -> Iterator[str]:
    if not lines["step"]:
        return
    yield from plan.head(
        "group", "step", "seconds (least to most)", "tokens/s", "MFU", "peak memory", "time over"
    )
    for line in _latest(lines["step"], "group", "kind"):
        if "seconds" not in line:
            yield plan.row(line["group"], line["kind"], line["outcome"], "", "", "", "")
            continue
        span = f"{line['seconds']:.3f} ({line['fastest']:.3f} to {line['slowest']:.3f})"
        speed, mfu = line.get("tokens_per_second"), line.get("mfu")
        yield plan.row(
            line["group"],
            line["kind"],
            span,
            "" if speed is None else f"{speed:,}",
            "" if mfu is None else f"{mfu:.1%}",
            f"{line['peak_mb'] / 1e3:.1f} GB",
            f"{line['ratio']:.3f} of {line['ratio_to']}",
        )
    shape = lines["step"][-1]
    yield ""
    yield (
        f"TinyLlama-1.1B's shape, all layers, random weights, bf16; {shape.get('rows')} rows of "
        f"{shape.get('seq_len')} tokens. All steps of a group take turns in one run."
    )


def profile(lines: Lines) -> Iterator[str]:
    for line in {line.get("kind", "guided"): line for line in lines["gradient"]}.values():
        kind = line.get("kind", "guided")
        yield f"The gradient of {kind} differs from that of all logits by {line['difference']:.1e}."
    for line in lines["profile"][-1:]:
        yield ""
        yield (
            f"Profile of {line['steps']} guided steps, {line['seconds']:.3f} s: the device works "
            f"{line['busy']:.0%} of the time, in {line['launches']:,} launches; copies to it: "
            f"{line['pinned_copies']} from pinned memory, {line['pageable_copies']} from pageable."
        )
        yield ""
        yield from plan.head("kernel", "seconds")
        for kernel, seconds in line["longest"].items():
            yield plan.row(f"`{kernel}`", f"{seconds:.4f}")


def scoring(lines: Lines) -> Iterator[str]:
    if not lines["throughput"]:
        return
    yield from plan.head(
        "tokens of a pass",
        "tokens/s",
        "only the model",
        "ratio (each run)",
        "one by one, all logits",
        "padding",
        "peak memory",
    )
    for line in _latest(lines["throughput"], "batch_tokens"):
        if "ratio" not in line:
            yield plan.row(line["batch_tokens"], line["outcome"], "", "", "", "", "")
            continue
        runs = ", ".join(f"{ratio:.2f}" for ratio in line["ratios"])
        yield plan.row(
            f"{line['batch_tokens']:,}",
            f"{line['tokens_per_second']:,.0f}",
            f"{line['model_alone_tokens_per_second']:,.0f}",
            f"{line['ratio']:.2f} ({runs})",
            f"{line['plain_tokens_per_second']:,.0f}",
            f"{line['padding']:.1%}",
            f"{line['peak_mb'] / 1e3:.1f} GB",
        )
    yield ""
    yield "A teacher of Qwen2.5-Math-7B's shape with random weights, bf16."
    for line in lines["candidates"][-1:]:
        yield (
            f"With {line['count']} candidates of each token scoring takes {line['time_ratio']:.3f} "
            "of the time of losses only."
        )
    for line in lines["packing"][-1:]:
        yield f"Packed under a mask: {line['outcome']}."


def live(lines: Lines) -> Iterator[str]:
    if not lines["live step"]:
        return
    yield from plan.head("rows", "checkpointing", "seconds", "of them the teacher", "peak memory")
    for line in _latest(lines["live step"], "rows", "checkpointing"):
        checkpointing = "yes" if line["checkpointing"] else "no"
        if line["outcome"] != "done":
            yield plan.row(line["rows"], checkpointing, line["outcome"], "", "")
            continue
        yield plan.row(
            line["rows"],
            checkpointing,
            f"{line['seconds']:.3f}",
            f"{line['teacher_seconds']:.3f}",
            f"{line['peak_mb'] / 1e3:.1f} GB",
        )


def distances(lines: Lines) -> Iterator[str]:
    if not lines["distance"]:
        return
    yield from plan.head(
        "method",
        "tokens, student, teacher",
        "seconds: ours, plain formula",
        "ratio",
        "difference of gradients",
        "peak memory: ours, plain",
    )
    for line in _latest(lines["distance"], "method"):
        tokens, hidden, ids, other_hidden, other_ids = line["shape"]
        seconds, memory = line["seconds"], line["peak_mb"]
        gradients = line.get("gradient_difference")
        yield plan.row(
            line["method"],
            f"{tokens:,}; {hidden:,} x {ids:,}; {other_hidden:,} x {other_ids:,}",
            ", ".join(f"{seconds[way]:.3f}" for way in ("ours", "plain") if way in seconds),
            f"{line['ratio']:.2f}" if "ratio" in line else "",
            "" if gradients is None else f"{gradients:.0e}",
            ", ".join(_gigabytes(memory[way]) for way in ("ours", "plain")),
        )


def agreement(lines: Lines) -> Iterator[str]:
    for line in lines["agreement"][-1:]:
        mine, theirs = line["last_losses"]
        yield (
            f"{line['steps']} steps, {line['left']} and {line['right']}: the losses of a step "
            f"differ by at most {line['largest_difference']:.2%}; at the end they are {mine:.4f} "
            f"and {theirs:.4f}. Under the same weights {line['same_choices']:.2%} of the chosen "
            "tokens are the same."
        )


def study(lines: Lines) -> Iterator[str]:
    if not lines["run"]:
        return
    by_variant: dict[str, list[Line]] = defaultdict(list)
    for line in _latest(lines["run"], "variant", "seed"):
        by_variant[line["variant"]].append(line)
    yield from plan.head("runs of `configs/study/gpu.yaml`", "seeds", "held-out loss", "kept")
    for variant, runs in by_variant.items():
        yield plan.row(
            variant,
            ", ".join(str(run["seed"]) for run in runs),
            f"{mean(run['held_out_loss'] for run in runs):.4f}",
            f"{mean(run['trained_on'] for run in runs):.0%}",
        )


def _latest(lines: list[Line], *names: str) -> list[Line]:
    """One line for each value of these, the last that was measured."""
    return list({tuple(line[name] for name in names): line for line in lines}.values())


def _gigabytes(megabytes: float | None) -> str:
    return "out of memory" if megabytes is None else f"{megabytes / 1e3:.1f} GB"


SECTIONS = (
    ("Parts", parts),
    ("Tests", tests),
    ("Layouts, kills and resumed runs", layouts),
    ("Steps at TinyLlama's shape", steps),
    ("Where the time goes", profile),
    ("Scoring under a 7B teacher", scoring),
    ("A live teacher of 7B with the student", live),
    ("KLD and ULD", distances),
    ("CPU and GPU", agreement),
    ("Study", study),
)


def quoted(lines: Lines, name: str) -> list[str]:
    """What another page quotes."""
    table = {"gpu steps": steps, "gpu scoring": scoring}[name]
    found = list(table(lines))
    return [*found, "", measured_on(lines)] if found else [NOT_MEASURED]


def write(lines: Lines, docs: Path) -> None:
    """Writes gpu.md and fills the places of the other pages."""
    (docs / "gpu.md").write_text(page(lines).rstrip("\n") + "\n", encoding="utf-8")
    for file, name in PLACES.items():
        path = docs / file
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = path.read_text(encoding="utf-8").partition(begin)
        _, _, after = rest.partition(end)
        text = "\n".join([before + begin, *quoted(lines, name), end + after])
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    write(read(options.results), options.docs)


if __name__ == "__main__":
    main()
