"""Turns the JSON of `make bench` into a results page, a chart and the table of docs/benchmarks.md.

    python benches/report.py RESULT.json benches/results/NAME.md [--table docs/benchmarks.md]

Nothing is typed in: figures, ratios, machine, versions and date are those of the JSON.
"""

import argparse
import html
import json
import os
from pathlib import Path

BEGIN, END = "<!-- benchmarks -->", "<!-- end of benchmarks -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    result = json.loads(options.result.read_bytes())
    groups: dict[str, list[dict]] = {}
    for benchmark in result["benchmarks"]:
        groups.setdefault(benchmark["group"], []).append(benchmark)
    chart = options.page.with_suffix(".svg")
    chart.write_text(svg(groups["align, 2,048 tokens"]), encoding="utf-8")
    curve = options.page.with_name(f"{options.page.stem}-scaling.svg")
    curve.write_text(curves(groups["scaling: tokens of both sides"]), encoding="utf-8")
    options.page.write_text(page(result, groups, chart.name, curve.name), encoding="utf-8")
    if options.table:
        text = options.table.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        table = short_table(groups, chart, options.page, options.table.parent)
        options.table.write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def page(result: dict, groups: dict[str, list[dict]], chart: str, curve: str) -> str:
    machine = result["machine_info"]
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    lines = [
        "# Alignment and reduction compared with every rival",
        "",
        f"`make bench`, {result['datetime'][:10]}; {machine['cpu']['brand_raw']}, "
        f"{machine['cpu']['count']} shared cores, Python {machine['python_version']}, {versions}.",
        "",
        "Medians; a ratio is a rival's median over ours, of the same run. Every answer is "
        "compared with NumPy's. `copy` is no aligner: it reads and writes the same bytes, which "
        "no aligner can do without.",
        "",
        f"![align, 2,048 tokens]({chart})",
        "",
        f"![nanoseconds a token against tokens]({curve})",
    ]
    for name, benchmarks in groups.items():
        tables = {"text": pipeline_table, "memory": memory_table, "scaling:": scaling_table}
        special = tables.get(name.split()[0], table)
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", *special(benchmarks)]
    return "\n".join(lines) + "\n"


def table(benchmarks: list[dict]) -> list[str]:
    source = benchmarks[0]["extra_info"].get("input", "random")
    ref = ours(benchmarks)
    lines = [f"Input: {source}.", "", "| | median | ns a token | ratio |", "|---|---|---|---|"]
    for benchmark in benchmarks:
        seconds, info = benchmark["stats"]["median"], benchmark["extra_info"]
        nanoseconds = 1e9 * seconds / info["tokens"]
        lines.append(
            f"| {info['engine']} | {duration(seconds)} | {nanoseconds:,.3g} | {seconds / ref:.2f} |"
        )
    return lines


def ours(benchmarks: list[dict]) -> float:
    """The median of our first entry in a group."""
    return next(
        benchmark["stats"]["median"]
        for benchmark in benchmarks
        if benchmark["extra_info"]["engine"].startswith("vocagno")
    )


def pipeline_table(benchmarks: list[dict]) -> list[str]:
    lines = [
        "Text to ids of both tokenizers, mapping and one loss a token, over `encode_batch_fast` of "
        "each measured in turn in one process; 64 documents of LaTeX, TinyLlama x Qwen2.5.",
        "",
        "| spans from | threads | tokens | tokenizing | whole | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for benchmark in benchmarks:
        info = benchmark["extra_info"]
        lines.append(
            f"| {info['path']} | {info['threads']} | {info['tokens']:,} "
            f"| {info['tokenizing_ms']:.1f} ms | {info['pipeline_ms']:.1f} ms "
            f"| {info['ratio']:.2f} |"
        )
    return lines


def scaling_table(benchmarks: list[dict]) -> list[str]:
    lines = ["| | tokens | median | ns a token |", "|---|---|---|---|"]
    for benchmark in benchmarks:
        seconds, info = benchmark["stats"]["median"], benchmark["extra_info"]
        lines.append(
            f"| {info['engine']} | {info['tokens']:,} | {duration(seconds)} "
            f"| {1e9 * seconds / info['tokens']:,.3g} |"
        )
    return lines


def memory_table(benchmarks: list[dict]) -> list[str]:
    info = benchmarks[0]["extra_info"]
    return [
        "What `align` takes at its peak on top of the spans, and the size of its result: "
        f"{info['peak_bytes'] / 1e6:.1f} MB and {info['result_bytes'] / 1e6:.1f} MB."
    ]


def short_table(groups: dict[str, list[dict]], chart: Path, page: Path, root: Path) -> str:
    """Rows of 2,048 tokens and the pipeline."""
    names = ["align, 2,048 tokens", "align and reduce (max), 2,048 tokens"]
    lines = ["| what | | median | ratio |", "|---|---|---|---|"]
    for name in names:
        ref = ours(groups[name])
        for benchmark in groups[name]:
            seconds, engine = benchmark["stats"]["median"], benchmark["extra_info"]["engine"]
            lines.append(f"| {name} | {engine} | {duration(seconds)} | {seconds / ref:.1f} |")
    for benchmark in groups.get("text to losses, and tokenizing", []):
        info = benchmark["extra_info"]
        threads = f"{info['threads']} thread{'s' * (info['threads'] > 1)}"
        lines.append(
            f"| text to losses, {threads} | vocagno, spans "
            f"from {info['path']} | {info['pipeline_ms']:.0f} ms | {info['ratio']:.2f} |"
        )
    where, picture = (Path(os.path.relpath(file, root)).as_posix() for file in (page, chart))
    return "\n".join(
        [*lines, "", f"![Times to align]({picture})", "", f"[All figures]({where}).", ""]
    )


def duration(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e9:,.3g} ns"


def svg(benchmarks: list[dict]) -> str:
    """Bars on a scale of powers of ten, with their figures; light and dark."""
    import math

    rows = sorted(benchmarks, key=lambda benchmark: benchmark["stats"]["median"])
    times = [benchmark["stats"]["median"] for benchmark in rows]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    left, width, step = 170, 420, 30
    bars = []
    for at, (benchmark, seconds) in enumerate(zip(rows, times, strict=True)):
        engine = benchmark["extra_info"]["engine"]
        length = width * (math.log10(seconds) - low) / (high - low)
        y, kind = 34 + step * at, "own" if engine.startswith("vocagno") else "other"
        bars.append(
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end">{html.escape(engine)}</text>'
            f'<rect class="{kind}" x="{left}" y="{y}" width="{length:.1f}" height="20" rx="2"/>'
            f'<text x="{left + length + 8:.1f}" y="{y + 14}">{duration(seconds)}</text>'
        )
    height = 34 + step * len(rows) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" role="img" '
        'font-family="system-ui,sans-serif" font-size="13">'
        "<title>Median time to align 2,048 tokens, logarithmic scale</title>"
        "<style>text{fill:#1d2329}.own{fill:#0a5fa8}.other{fill:#b9b4a7}"
        "@media(prefers-color-scheme:dark){text{fill:#e8e6e1}.own{fill:#86c1f7}.other{fill:#5c6670}}"
        "</style>"
        f'<text x="{left}" y="20" font-weight="600">Median time to align 2,048 tokens '
        "(logarithmic)</text>"
        f"{''.join(bars)}</svg>\n"
    )


def curves(benchmarks: list[dict]) -> str:
    """Nanoseconds a token against tokens, both on scales of powers of ten."""
    import math

    lines: dict[str, list[tuple[float, float]]] = {}
    for benchmark in benchmarks:
        info = benchmark["extra_info"]
        cost = 1e9 * benchmark["stats"]["median"] / info["tokens"]
        lines.setdefault(info["engine"], []).append((math.log10(info["at"]), math.log10(cost)))
    points = [point for line in lines.values() for point in line]
    right = math.ceil(max(x for x, _ in points))
    low, high = math.floor(min(y for _, y in points)), math.ceil(max(y for _, y in points))
    left, top, width, height = 70, 34, 520, 240

    def place(x: float, y: float) -> tuple[float, float]:
        return left + width * x / right, top + height * (high - y) / (high - low)

    parts = []
    for power in range(right + 1):
        x, y = place(power, low)
        unit = ("", "k", "M", "G")[power // 3]
        at = f'x="{x:.0f}" y="{y + 20:.0f}" text-anchor="middle"'
        parts.append(f"<text {at}>{10 ** (power % 3)}{unit}</text>")
    for power in range(low, high + 1):
        x, y = place(0, power)
        parts.append(
            f'<text x="{x - 10:.0f}" y="{y + 4:.0f}" text-anchor="end">{10**power:,g}</text>'
            f'<path class="grid" d="M{x:.0f} {y:.0f}h{width}"/>'
        )
    for engine, line in lines.items():
        kind = "own" if engine == "vocagno" else "other"
        path = "L".join("{:.1f} {:.1f}".format(*place(*point)) for point in line)
        x, y = place(*line[-1])
        parts.append(
            f'<path class="{kind}" d="M{path}"/>'
            f'<text x="{x + 6:.0f}" y="{y + 4:.0f}">{html.escape(engine)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {top + height + 40}" role="img" '
        'font-family="system-ui,sans-serif" font-size="13">'
        "<title>Nanoseconds a student token against tokens</title>"
        "<style>text{fill:#1d2329}path{fill:none}.own{stroke:#0a5fa8;stroke-width:2.5}"
        ".other{stroke:#8a8474;stroke-width:2;stroke-dasharray:6 3}.grid{stroke:#dfdcd3}"
        "@media(prefers-color-scheme:dark){text{fill:#e8e6e1}.own{stroke:#86c1f7}"
        ".other{stroke:#a9a394}.grid{stroke:#343a40}}</style>"
        f'<text x="{left}" y="20" font-weight="600">Nanoseconds a student token, against tokens of '
        f"each side</text>{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    main()
