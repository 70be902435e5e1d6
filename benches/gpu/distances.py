"""KLD and ULD: forward and backward pass of head and distance compared with the plain formula
on all logits, for a student of TinyLlama's and a teacher of a 7B model's shape.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import distillation
from gpu.gauge import in_turn, peak_if_it_fits, ratio
from gpu.part import main
from gpu.sizes import Sizes


def measure(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    wrong = []
    for method, ids in zip(("kld", "uld"), sizes.distances, strict=True):
        shape = (
            sizes.seq_len,
            sizes.student["hidden_size"],
            sizes.student["vocab_size"],
            sizes.teacher["hidden_size"],
            ids,
        )
        line = _one(method, shape, sizes.repeats)
        yield {"what": "distance", "method": method, "shape": list(shape)} | line
        if line.get("gradient_difference", 0) > distillation.LARGEST_DIFFERENCE:
            wrong.append(method)
    if wrong:
        raise SystemExit(f"gradients differ from the plain formula's: {', '.join(wrong)}")


def _one(method: str, shape: tuple[int, ...], repeats: int) -> dict[str, Any]:
    case = distillation.Case(method, shape)
    ways = {"ours": lambda: case.passed("ours"), "plain": lambda: case.passed("plain")}
    memory = {name: peak_if_it_fits(way) for name, way in ways.items()}
    ways = {name: way for name, way in ways.items() if memory[name] is not None}
    seconds = in_turn(ways, repeats)
    line: dict[str, Any] = {
        "seconds": {name: round(median(found), 4) for name, found in seconds.items()},
        "peak_mb": memory,
    }
    if len(ways) < 2:
        return line
    return line | {
        "ratio": ratio(seconds["ours"], seconds["plain"]),
        "gradient_difference": case.difference(),
    }


if __name__ == "__main__":
    main(measure)
