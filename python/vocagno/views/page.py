"""Self-contained HTML pages, and fragments of them for a notebook.

No script and no network: inline CSS only, light and dark, readable without colour.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from vocagno.config.guidance import PAPERS_RULE, GuidanceConfig
from vocagno.views.glyphs import number
from vocagno.views.html import alignment_html, choice_html, escaped, links_html
from vocagno.views.legends import guidance_legend, page_legend
from vocagno.views.passage import Passage, Token
from vocagno.views.verdicts import Verdict, verdicts

_Cell = tuple[str, str, str]
"""Heading of the column, class, and HTML."""


def render_page(
    *,
    title: str,
    summary_rows: Sequence[Mapping[str, str]],
    passages: Sequence[Passage],
    introduction: str = "",
    guidance: GuidanceConfig | Mapping[str, GuidanceConfig] | None = None,
) -> str:
    """A page of passages.

    Args:
        title: heading and window title.
        summary_rows: one mapping from column name to cell text a row; a row may lack columns. The
            first column names the rows. Empty: no table.
        passages: each is drawn as alignment and, if it has losses, as choice of tokens.
        introduction: a sentence or two of plain text under the title.
        guidance: the rule that ranked the passages, for the legend; several rules by their names.
            Default: the largest excess losses are kept.
    """
    rules = guidance if isinstance(guidance, Mapping) else {"": guidance or PAPERS_RULE}
    legend = page_legend(passages, rules)
    body = [table_of("Result", summary_rows), legend, *map(section_of, passages)]
    return page_of(title, introduction, body)


def render_fragment(passage: Passage) -> str:
    """One passage for a notebook: its style applies to nothing else there."""
    return _fragment(section_of(passage), page_legend([passage], {"": PAPERS_RULE}))


def guidance_page(
    passage: Passage,
    guidance: GuidanceConfig,
    *,
    introduction: str,
    summary_rows: Sequence[Mapping[str, str]],
) -> str:
    """A page of one passage: the text with the kept tokens, the links with losses, all numbers.

    Args:
        guidance: the rule that ranked the passage.
        introduction, summary_rows: as of `render_page`.
    """
    legend, sections = guidance_legend(passage, guidance), _guidance_sections(passage, guidance)
    body = [table_of("Result", summary_rows), legend, sections]
    return page_of("What the teacher chose", introduction, body)


def guidance_fragment(passage: Passage, guidance: GuidanceConfig) -> str:
    """The sections of `guidance_page` for a notebook."""
    return _fragment(_guidance_sections(passage, guidance), guidance_legend(passage, guidance))


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


def _fragment(body: str, legend: str) -> str:
    return (
        f"<div class=vocagno><style>{_style()}</style>{body}"
        f"<details><summary>How to read this</summary>{legend}</details></div>"
    )


@cache
def _style() -> str:
    return files("vocagno.views").joinpath("page.css").read_text(encoding="utf-8")


def section_of(passage: Passage, more: str = "") -> str:
    """A passage as alignment and, if it has losses, as choice of tokens; `more` ends its title."""
    heading = _heading(passage, more)
    if not passage.has_losses:
        return f"<section>{heading}</p>{alignment_html(passage)}</section>"
    kept = sum(map(passage.is_kept, range(len(passage.student))))
    outcome = f"{kept} kept"
    if passage.has_soft_weights:
        least = f"{passage.least_kept:g}"
        outcome = f"weights add up to {passage.weight:.1f}, {kept} of {least} or more"
    return (
        f"<section>{heading} · {outcome}</p>"
        f"<h3>How the two tokenizers cut it</h3>{alignment_html(passage)}"
        f"<h3>What the teacher chose</h3>{choice_html(passage)}</section>"
    )


def _guidance_sections(passage: Passage, guidance: GuidanceConfig) -> str:
    return (
        f"<section>{_heading(passage)}</p>{choice_html(passage)}</section>"
        f"<section><h2>Token by token</h2>{links_html(passage, guidance)}</section>"
        "<section><details><summary>All numbers</summary>"
        f"{_numbers(passage, guidance)}</details></section>"
    )


def _heading(passage: Passage, more: str = "") -> str:
    """Title and counts, in a paragraph that is still open."""
    return (
        f"<h2>{escaped(passage.title + more)}</h2><p class=counts>{len(passage.data):,} bytes · "
        f"{len(passage.student):,} student tokens · {len(passage.teacher):,} teacher tokens"
    )


def table_of(label: str, rows: Sequence[Mapping[str, str]]) -> str:
    """A table of plain cells with the headings of all rows, in order of first appearance. Without
    rows: nothing."""
    headings = list(dict.fromkeys(name for row in rows for name in row))
    return plain_table(label, headings, [[row.get(name, "") for name in headings] for row in rows])


def plain_table(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain cells, under headings of which several may be equal. Without rows:
    nothing."""
    lines = [
        [(name, "", escaped(cell)) for name, cell in zip(headings, row, strict=True)]
        for row in rows
    ]
    return _table(label, "", [("", line) for line in lines])


def _numbers(passage: Passage, guidance: GuidanceConfig) -> str:
    """A table with a line for each student token."""
    lines = [
        ("on" if verdict.kept else "off", list(_cells(passage, row, guidance, verdict)))
        for row, verdict in enumerate(verdicts(passage, guidance))
    ]
    return _table("All numbers", "numbers", lines)


def _cells(
    passage: Passage, row: int, guidance: GuidanceConfig, verdict: Verdict
) -> Iterator[_Cell]:
    token, is_group = passage.student[row], guidance.unit == "group"
    mean = "" if token.unit_nll is None else f" <i>⌀ {_nats(token.unit_nll)}</i>"
    others = (passage.teacher[place] for place in range(*passage.mapping[row]))
    losses = [f"{_label(passage, other)} <i>{_nats(other.nll)}</i>" for other in others]
    source = "group" if is_group else guidance.aggregation
    yield "", "", str(row)
    yield "student token", "", _label(passage, token)
    yield "student's loss", "", _nats(token.nll) + mean
    yield "teacher tokens, their losses", "", " · ".join(losses) or "∅"
    yield f"teacher's loss ({source})", "", _nats(token.teacher_loss)
    yield "excess of the group" if is_group else "excess", "excess", _nats(token.excess, "+.3f")
    if guidance.window_max_loss is not None:
        yield "teacher's loss on its neighbours, a byte", "", _nats(token.neighbours_loss)
    if guidance.window_threshold is not None:
        yield "excess of its neighbours", "", _nats(token.neighbours_excess, "+.3f")
    if passage.has_soft_weights:
        yield "weight", "weight", f"{token.weight:.2f}"
    yield "", "", escaped(verdict.words(guidance))


def _label(passage: Passage, token: Token) -> str:
    return f"<bdo dir=ltr>{escaped(passage.label(token))}</bdo>"


def _nats(value: float | None, form: str = ".3f") -> str:
    return number(value, form).replace("-", "−")


def _table(label: str, kind: str, lines: Sequence[tuple[str, Sequence[_Cell]]]) -> str:
    """Lines with their classes; the headings are those of the first. Without lines: nothing."""
    if not lines:
        return ""
    head = "".join(f"<th scope=col>{escaped(heading)}</th>" for heading, _, _ in lines[0][1])
    body = []
    for line_kind, ((_, _, name), *cells) in lines:
        rest = "".join(f"<td{_class(cell_kind)}>{html}</td>" for _, cell_kind, html in cells)
        body.append(f"<tr{_class(line_kind)}><th scope=row>{name}</th>{rest}</tr>")
    return (
        f"<div class=scroll role=region aria-label='{label}' tabindex=0><table{_class(kind)}>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _class(kind: str) -> str:
    return f" class={kind}" if kind else ""
