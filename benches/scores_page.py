"""Writes the figures of `docs/scores.md` from the JSON lines of `scoring.py` and `stores.py`.

    python benches/scores_page.py benches/results/DATE-scores.jsonl docs/scores.md

Nothing is typed in: every figure, machine, version and date is that of its line.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
VERSIONS = ("torch", "transformers", "tokenizers", "pyarrow")


def main() -> None:
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    kinds: dict[str, list[dict]] = {}
    for line in lines:
        kinds.setdefault(line["what"], []).append(line)
    sections = [
        part
        for kind, (title, section) in SECTIONS.items()
        if kind in kinds
        for part in ("", f"### {title}", "", *section(kinds[kind]), "", origin(kinds[kind]))
    ]
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    figures = "\n".join(sections)
    page.write_text(f"{before}{BEGIN}\n{figures}\n\n{END}{after}", encoding="utf-8")


def origin(lines: list[dict]) -> str:
    """The sentence that says on which machine, with which versions and when lines were measured."""
    line = lines[0]
    versions = ", ".join(f"{name} {line[name]}" for name in VERSIONS if name in line)
    return (
        f"{line['processor']}, {line['cores']} shared cores, Python {line['python']}, {versions}; "
        f"{line['date']}."
    )


def throughput(lines: list[dict]) -> Iterator[str]:
    yield (
        "| model | documents | read | tokens/s | only the model | ratio (each run) | one by one, "
        "all logits | padding here, in a shard of 2 MB |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for line in lines:
        length = f"{line['tokens'] / line['documents']:,.0f} tokens each"
        runs = ", ".join(f"{ratio:.2f}" for ratio in line["ratios"])
        yield (
            f"| {line['model']}, {line['dtype']}, {line['device']} | {line['documents']}, {length} "
            f"| {line['batching']} | {line['tokens_per_second']:,.0f} "
            f"| {line['model_alone_tokens_per_second']:,.0f} | {line['ratio']:.2f} ({runs}) "
            f"| {line['plain_tokens_per_second']:,.0f} "
            f"| {line['padding']:.1%}, {line['padding_of_a_shard']:.1%} |"
        )
    yield ""
    worst = max(line["largest_difference"] for line in lines)
    yield f"The losses of both ways differ by at most {worst:.1e} nats."


def memory(lines: list[dict]) -> Iterator[str]:
    (line,) = lines[-1:]
    places = [tuple(map(int, size.split(" x "))) for size in line["grown_mb"]]
    vocabularies, lengths = (sorted({place[i] for place in places}) for i in (0, 1))
    yield "| vocabulary | " + " | ".join(f"{length:,} tokens" for length in lengths) + " |"
    yield "|---" * (len(lengths) + 1) + "|"
    for vocabulary in vocabularies:
        cells = (
            f"{line['grown_mb'][f'{vocabulary} x {length}']:,} MB "
            f"(logits {line['logits_mb'][f'{vocabulary} x {length}']:,})"
            for length in lengths
        )
        yield f"| {vocabulary:,} | " + " | ".join(cells) + " |"


def candidates(lines: list[dict]) -> Iterator[str]:
    """Makes the table of the last run of each model."""
    yield (
        "Processor time of scoring with candidates, encoded, as a multiple of that of losses only "
        "(median of runs, least and largest). The losses are equal."
    )
    yield ""
    yield "| model | ids | tokens | most likely | sampled |"
    yield "|---|--:|--:|--:|--:|"
    for line in {line["model"]: line for line in lines}.values():
        spread = f"{min(line['ratios']):.2f} to {max(line['ratios']):.2f}"
        yield (
            f"| {line['model']} | {line['vocabulary']:,} | {line['tokens']:,} "
            f"| {line['candidates']}: {line['ratio']:.2f} ({len(line['ratios'])} runs: {spread}) "
            f"| {line['sampled']}: {line['ratio_sampled']:.2f} |"
        )


def sizes(lines: list[dict]) -> Iterator[str]:
    yield "| documents of | bytes a token |"
    yield "|---|---|"
    for size, cost in lines[-1]["bytes_per_token"].items():
        yield f"| {size + ' tokens' if size != 'whole' else 'their own length'} | {cost:.2f} |"


def opening(lines: list[dict]) -> Iterator[str]:
    (line,) = lines[-1:]
    yield (
        f"A store of {line['shards']:,} shards with {line['documents']:,} documents opens in "
        f"{line['seconds']:.2f} s. A document at a random place is there in "
        f"{line['first_read_us']:.0f} us, with its shard opened and its checksum compared, and in "
        f"{line['again_read_us']:.0f} us when it has been read before."
    )


def prepare(lines: list[dict]) -> Iterator[str]:
    (line,) = lines[-1:]
    yield f"{line['tokens']:,} tokens."
    yield ""
    yield "| workers | tokens/s | peak memory of a process | 15 B tokens |"
    yield "|---|---|---|---|"
    for workers, cost in line["workers"].items():
        yield (
            f"| {workers} | {cost['tokens_per_second']:,.0f} | {cost['peak_memory_mb']:,} MB "
            f"| {cost['hours_for_15_b']} hours |"
        )


def reuse(lines: list[dict]) -> Iterator[str]:
    (line,) = lines[-1:]
    yield (
        f"One store, {line['documents']:,} documents, {line['teacher_tokens']:,} teacher tokens, "
        f"{line['bytes_per_token']:.2f} bytes a token:"
    )
    yield ""
    yield "| student's tokenizer | tokens predicted | coverage | scored | trained on |"
    yield "|---|---|---|---|---|"
    for name, student in line["students"].items():
        yield (
            f"| {name} | {student['predicted_tokens']:,} | {student['smallest_coverage']:.2%} "
            f"| {student['smallest_scored']:.2%} | {student['kept']:.1%} |"
        )


SECTIONS = {
    "throughput": ("Throughput", throughput),
    "memory": ("Peak memory above the loaded model", memory),
    "candidates": ("Time of candidates", candidates),
    "sizes": ("Size on disk", sizes),
    "opening": ("Opening", opening),
    "prepare": ("`vocagno prepare`", prepare),
    "reuse": ("One store, two students", reuse),
}


if __name__ == "__main__":
    main()
