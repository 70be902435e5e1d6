"""Writes docs/bridges.md from the lines of the bridges, the last of each trainer.

python benches/bridges/page.py benches/results/bridges.jsonl docs/bridges.md
"""

import json
import sys
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# Bridges to other trainers

With this page you can see whether guidance gives the same losses in your trainer as in a plain
torch loop, and how it enters there. A small model takes {steps} steps in each trainer on a CPU,
with weights and candidates of `vocagno bake` (verl: weights; TRL, axolotl: the columns of
`add_teacher_loss`). The plain loop has the same rows, initial weights and AdamW, in float32.

    make bridges    # an environment for each in target/bridges, from the package registry

The scripts in `benches/bridges` show where they enter. Differences of losses are in nats.
*Equal* means at most {tolerance:g} for a loss, {weight_tolerance:g} for the weights of the model
at the end, and other losses when the weights of the tokens are permuted.
"""


def page(lines: list[dict[str, Any]]) -> str:
    last = {line["trainer"]: line for line in lines}
    first, *_ = (line for line in last.values() if "tolerance" in line)
    return "\n".join([INTRODUCTION.format(**first), *table(list(last.values()))]) + "\n"


def table(lines: list[dict[str, Any]]) -> list[str]:
    names = "trainer", "torch, Python", "date", "losses", "weights", "permuted", "outcome"
    names += "what ran", "what differs from a usual run"
    rows = [names, ("---",) * len(names)]
    for line in lines:
        keys = "largest_difference", "largest_weight_difference", "permuted_difference"
        figures = [f"{line[key]:.1e}" if key in line else "" for key in keys]
        trainer = f"{line['trainer']} {line['version']}"
        where = f"{line['torch'].partition('+')[0]}, {line['python']}"
        words = (line.get(key, "") for key in ("outcome", "compared", "differs"))
        rows.append((trainer, where, line["date"], *figures, *words))
    return [f"| {' | '.join(row)} |" for row in rows]


def main() -> None:
    results, written = map(Path, sys.argv[1:])
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    written.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
