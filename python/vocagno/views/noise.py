"""Writes the report of what a filter has omitted from a corpus."""

import json
from typing import Any

from vocagno.system.progress import in_table
from vocagno.views.passage import number


def report_of(fields: dict[str, Any]) -> str:
    """Writes the manifest of a filtered corpus in Markdown."""
    rule = fields["rule"]
    rows = [["file", "documents", "omitted", "shortened", "bytes", "omitted", "no scores"]]
    counts = fields["files"] | ({"all": fields["counts"]} if len(fields["files"]) > 1 else {})
    for name, row in counts.items():
        sizes = (row[key] for key in ("documents", "documents_left_out", "documents_shortened"))
        share_out = f"{row['bytes_left_out'] / max(1, row['bytes']):.2%}"
        cells = [f"{row['bytes']:,}", share_out, f"{row['missing_documents']:,}"]
        rows.append([name, *(f"{size:,}" for size in sizes), *cells])
    subject = "A text is" if rule["unit"] == "document" else "A line is"
    verb = "marked" if rule["keep"] == "marks" else "omitted"
    lines = [
        f"# Noise to a teacher in {fields['corpus']}",
        "",
        f"{subject} {verb} if the teacher loses more than {rule['window_max_loss']:g} nats a byte "
        "on the rest of it, for more than half of its bytes.",
        "",
        *(f"    {row}".rstrip() for row in in_table(rows).splitlines()),
    ]
    if examples := fields["examples"]:
        heading = f"Examples ({len(examples)}), drawn by a hash: nats a byte, place, and text"
        lines += ["", f"{heading} as JSON.", ""]
        for example in examples:
            loss, text = example["nats_per_byte"], example["text"]
            words = json.dumps(text, ensure_ascii=False)
            lines.append(f"    {number(loss, '.2f', missing='-')}  {example['place']}  {words}")
    return "\n".join(lines) + "\n"
