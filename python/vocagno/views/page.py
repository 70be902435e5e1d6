"""Self-contained HTML pages, and fragments of them for a notebook.

No script and no network: inline CSS only, light and dark, readable without colour.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from vocagno.views.html import escaped, picture
from vocagno.views.passage import Passage


def render_page(
    *,
    title: str,
    summary_rows: Sequence[Mapping[str, str]],
    passages: Sequence[Passage],
    introduction: str = "",
) -> str:
    """A page of passages.

    Args:
        title: heading and window title.
        summary_rows: one mapping from column name to cell text a row; a row may lack columns. The
            first column names the rows. Empty: no table.
        introduction: a sentence or two of plain text under the title.
    """
    body = [table_of("Result", summary_rows), legend(passages), *map(section_of, passages)]
    return page_of(title, introduction, body)


def render_fragment(passage: Passage) -> str:
    """One passage for a notebook: its style applies to nothing else there."""
    return (
        f"<div class=vocagno><style>{_style()}</style>{section_of(passage)}"
        f"<details><summary>How to read this</summary>{legend([passage])}</details></div>"
    )


def page_of(title: str, introduction: str, body: Sequence[str]) -> str:
    """A page with a heading, a sentence or two under it, and parts in HTML."""
    lead = f"<p class=lead>{escaped(introduction)}</p>" if introduction else ""
    parts = [f"<header><h1>{escaped(title)}</h1>{lead}</header>", *body]
    return f"""<!DOCTYPE html>
<html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width,initial-scale=1">
<title>{escaped(title)}</title><style>{_style()}</style></head>
<body class=vocagno><main>
{"".join(parts)}
</main></body></html>
"""


@cache
def _style() -> str:
    return files("vocagno.views").joinpath("page.css").read_text(encoding="utf-8")


def legend(passages: Sequence[Passage]) -> str:
    """How to read the pictures of these passages."""
    has_losses = any(passage.has_losses for passage in passages)
    return f"<div class=legend>{_TOKENS}{_LOSSES if has_losses else ''}</div>"


_TOKENS = """<div>
<h3>The tokens</h3>
<ul>
<li><span class="tok student">above</span> the student's, <span class="tok teacher">below</span> the
teacher's; lines to the teacher tokens that a student token is mapped to.</li>
<li><span class="tok student unmapped">&lt;s&gt;</span> dashed border: mapped to nothing. ∅: no
token of this side.</li>
<li>␣ is a space, ⏎ a line break, two hexadecimal digits one byte of a character.</li>
<li>Point at a token for its id and its bytes, or its losses and its verdict.</li>
</ul>
</div>"""

_LOSSES = """<div>
<h3>The losses, in nats</h3>
<ul>
<li><span class="tok student on level4">kept<small>4.20</small><small>+2.10</small></span> thick
border, solid lines: trained on. The student's loss, and the excess loss: the student's minus the
teacher's, of the whole group where groups are ranked; the deeper the shade, the larger (0, 0.5, 1,
2, 4).</li>
<li><span class="tok student off">dropped<small>0.30</small><small>−0.20</small></span> thin border,
dashed lines: only read.</li>
<li><span class="tok teacher">tok<small>2.10</small></span> the teacher's loss of its token.</li>
<li>Verdicts: top or below (the quota), reaches or below (the threshold), noise or not noise (its
neighbours), included or excluded (no teacher loss).</li>
</ul>
</div>"""


def section_of(passage: Passage, more: str = "") -> str:
    """The picture of a passage under its title, which `more` ends, and its counts."""
    counts = [
        f"{len(passage.data):,} bytes",
        f"{len(passage.student):,} student tokens",
        f"{len(passage.teacher):,} teacher tokens",
    ]
    if passage.has_losses:
        counts.append(f"{sum(map(passage.is_kept, range(len(passage.student)))):,} kept")
    return (
        f"<section><h2>{escaped(passage.title + more)}</h2><p class=counts>{' · '.join(counts)}</p>"
        f"{picture(passage)}</section>"
    )


def table_of(label: str, rows: Sequence[Mapping[str, str]]) -> str:
    """A table of plain cells with the headings of all rows, in order of first appearance. Without
    rows: nothing."""
    headings = list(dict.fromkeys(name for row in rows for name in row))
    return plain_table(label, headings, [[row.get(name, "") for name in headings] for row in rows])


def plain_table(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain cells, under headings of which several may be equal. Without rows:
    nothing."""
    if not rows:
        return ""
    head = "".join(f"<th scope=col>{escaped(name)}</th>" for name in headings)
    body = []
    for name, *cells in rows:
        rest = "".join(f"<td>{escaped(cell)}</td>" for cell in cells)
        body.append(f"<tr><th scope=row>{escaped(name)}</th>{rest}</tr>")
    return (
        f"<div class=scroll role=region aria-label='{label}' tabindex=0><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
