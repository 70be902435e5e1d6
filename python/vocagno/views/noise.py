"""Reports what a filter has omitted from a corpus, in a text and a page."""

import json
from typing import Any

from vocagno.config.guidance import SMOOTHING_BYTES
from vocagno.system.progress import in_table
from vocagno.views.html import page_of, plain_table
from vocagno.views.passage import number

_HEADINGS = ("file", "documents", "omitted", "shortened", "bytes", "bytes omitted", "no scores")
_EXAMPLES = "Examples, drawn by a hash of their text"


def report_of(fields: dict[str, Any]) -> str:
    """Words the manifest of a filtered corpus (`integrations.filtering`), as Markdown."""
    table = [
        f"    {row}".rstrip() for row in in_table([_HEADINGS, *_count_rows(fields)]).split("\n")
    ]
    lines = [f"# {_title(fields)}", "", _rule(fields), "", *table]
    if fields["examples"]:
        lines += ["", f"{_EXAMPLES}: nats a byte, document, and text as JSON.", ""]
    for example in fields["examples"]:
        loss = number(example["nats_per_byte"], ".2f", missing="-")
        words = json.dumps(example["text"], ensure_ascii=False)
        lines.append(f"    {loss}  {example['place']}  {words}")
    return "\n".join(lines) + "\n"


def noise_page(fields: dict[str, Any]) -> str:
    """Makes a page of the same."""
    examples = [
        [number(example["nats_per_byte"], ".2f", missing="-"), example["place"], example["text"]]
        for example in fields["examples"]
    ]
    tables = [plain_table("Files", _HEADINGS, _count_rows(fields))]
    if examples:
        table = plain_table(_EXAMPLES, ("nats a byte", "document", "text"), examples)
        tables.append(f"<div class=examples><h2>{_EXAMPLES}</h2>{table}</div>")
    return page_of(_title(fields), _rule(fields), tables)


def _title(fields: dict[str, Any]) -> str:
    return f"Noise to a teacher in {fields['corpus']}"


def _rule(fields: dict[str, Any]) -> str:
    """Says what went, or is marked, and why a line may go that is below the limit itself."""
    rule = fields["rule"]
    window = "text" if rule["unit"] == "document" else "line"
    verb = "marked" if rule["keep"] == "marks" else "omitted"
    return (
        f"A {window} is {verb} if more than half of its bytes are noise. A token is noise if the "
        f"teacher loses more than {rule['window_max_loss']:g} nats a byte on the rest of the "
        f"{window}, to which {SMOOTHING_BYTES} bytes of 1 nat each are added."
    )


def _count_rows(fields: dict[str, Any]) -> list[list[str]]:
    """Lists the counts of each file, and of several together."""
    rows = []
    files = fields["files"] | ({"all": fields["counts"]} if len(fields["files"]) > 1 else {})
    for name, counts in files.items():
        share = counts["omitted_bytes"] / max(1, counts["bytes"])
        sizes = ("documents", "omitted_documents", "shortened_documents", "bytes")
        cells = [f"{counts[size]:,}" for size in sizes]
        rows.append([name, *cells, f"{share:.2%}", f"{counts['missing_documents']:,}"])
    return rows
