"""Fills the tables of docs/training.md from the lines of training.py, thresholds.py and live.py.

python benches/training_page.py RESULTS.jsonl docs/training.md
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import tables


def main() -> None:
    results, page = map(Path, sys.argv[1:])
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    text = page.read_text()
    sections = {
        "steps": steps,
        "matching": matching,
        "thresholds": thresholds,
        "live": live,
    }
    for name, section in sections.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = "\n".join([before + begin, *section(lines), end + after])
    page.write_text(text)


def steps(lines: list[dict]) -> Iterator[str]:
    results = [line for line in lines if line["what"] == "step"]
    yield from tables.head(
        "student",
        "device, precision",
        "guided over the fastest of torch's",
        "over our own naive",
        "tokens/s: guided, `cpt`, dense, torch's chunked op",
        "peak memory over that rival",
    )
    for line in results:
        speed = line["tokens_per_second"]
        yield tables.row(
            f"{line['shape']}, {line['layers']} layers",
            f"{line['device']}, {line['precision']}",
            f"{line['ratio']:.2f} ({line['rival']})",
            f"{line['ratio_to_cpt']:.2f}",
            ", ".join(f"{speed[kind]:,.0f}" for kind in ("guided", "cpt", "dense", "torch")),
            f"{line['memory_ratio']:.2f}",
        )
    yield ""
    yield measured_on(results[0])


def matching(lines: list[dict]) -> Iterator[str]:
    results = [line for line in lines if line["what"] == "matching"]
    kinds = list(results[0]["ratio_to_cpt"])
    yield from tables.head(
        "student",
        "device, precision, threads",
        *(f"`{kind}` over `cpt`" for kind in kinds),
        *(f"memory: `{kind}`" for kind in kinds),
        f"seconds: `cpt`, {', '.join(f'`{kind}`' for kind in kinds)}",
    )
    for line in results:
        yield tables.row(
            f"{line['shape']}, {line['layers']} layers",
            f"{line['device']}, {line['precision']}, {line['threads']}",
            *(f"{line['ratio_to_cpt'][kind]:.3f}" for kind in kinds),
            *(f"{line['memory_ratio'][kind]:.3f}" for kind in kinds),
            ", ".join(f"{line['seconds'][kind]:.2f}" for kind in ("cpt", *kinds)),
        )
    yield ""
    yield measured_on(results[0])


def thresholds(lines: list[dict]) -> Iterator[str]:
    results = [line for line in lines if line["what"] == "thresholds"]
    if not results:
        yield "Not measured yet."
        return
    ways = list(results[0]["ratio"])
    yield from tables.head(
        "student",
        "device, precision",
        f"tokens kept: {', '.join(ways)}",
        *(f"{way} over the fastest of torch's" for way in ways),
        "over our own naive",
        "peak memory over that rival",
        f"seconds: {', '.join(ways)}, `cpt`, that rival",
    )
    for line in results:
        seconds, rival = line["seconds"], line["rival"]
        kept = (f"{line['kept'][way]:.1%}" for way in ways)
        yield tables.row(
            f"{line['shape']}, {line['layers']} layers",
            f"{line['device']}, {line['precision']}",
            f"{line['share']:.0%}: {', '.join(kept)}",
            *(f"{line['ratio'][way]:.3f} ({rival})" for way in ways),
            ", ".join(f"{line['ratio_to_cpt'][way]:.3f}" for way in ways),
            ", ".join(f"{line['memory_ratio'][way]:.2f}" for way in ways),
            ", ".join(f"{seconds[kind]:.2f}" for kind in (*ways, "cpt", rival)),
        )
    yield ""
    yield measured_on(results[0])


def live(lines: list[dict]) -> Iterator[str]:
    results = [line for line in lines if line["what"] == "live"]
    contexts = list(results[-1]["by_tokens_before"])
    yield from tables.head(
        "row",
        "mean loss, stored",
        "live - stored",
        "mean of the absolute difference",
        *map("of {}".format, _ranges(contexts)),
    )
    for line in results:
        by_context = line["by_tokens_before"]
        cells = [f"{by_context[c]:.3f}" if c in by_context else "" for c in contexts]
        yield tables.row(
            f"{line['seq_len']:,}",
            f"{line['mean_stored_loss']:.3f}",
            f"{line['mean_difference']:+.3f}",
            f"{line['mean_absolute_difference']:.3f}",
            *cells,
        )
    yield ""
    yield f"{results[0]['tokens']:,} tokens. " + measured_on(results[0])


def _ranges(contexts: list[str]) -> Iterator[str]:
    """`0+`, `16+` as `0 to 15`, `16 or more`."""
    firsts = [int(context.removesuffix("+")) for context in contexts]
    for first, after in zip(firsts, [*firsts[1:], None], strict=True):
        yield f"{first:,} or more" if after is None else f"{first:,} to {after - 1:,}"


def measured_on(line: dict) -> str:
    cores = "one core" if line["cores"] == 1 else f"{line['cores']} cores"
    return (
        f"Measured {line['date']} on {cores} of an {line['processor']}, Python "
        f"{line['python']}, torch {line['torch']}, transformers {line['transformers']}."
    )


if __name__ == "__main__":
    main()
