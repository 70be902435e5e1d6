"""One self-contained HTML page, or a fragment for a notebook.

No script and no network: inline CSS alone, light and dark, readable without colour.
"""

import html
from collections.abc import Mapping, Sequence

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.alignment import alignment_html
from vocagno.views.choice import choice_html
from vocagno.views.glyphs import visible_character
from vocagno.views.passage import Passage
from vocagno.views.rules import is_quota, least_kept, rule


def render_page(
    *,
    title: str,
    summary_rows: Sequence[Mapping[str, str]],
    passages: Sequence[Passage],
    introduction: str = "",
    guidance: GuidanceConfig | Mapping[str, GuidanceConfig] | None = None,
) -> str:
    """The whole page as one HTML string.

    Args:
        title: heading and window title.
        summary_rows: one mapping from column name to cell text a row; columns are those of the
            first row, whose first one names the row. Empty: no table.
        passages: what to draw; each once as alignment and, where it has losses, once as choice of
            tokens.
        introduction: a sentence or two of plain text under the title.
        guidance: what the passages were ranked under, for the legend; several rules by their names;
            default: the largest excess losses are kept.
    """
    sections = [_legend(passages, guidance), *map(_passage, passages)]
    return whole_page(title, introduction, summary_rows, sections)


def whole_page(
    title: str,
    introduction: str,
    summary_rows: Sequence[Mapping[str, str]],
    sections: Sequence[str],
    style: str = "",
) -> str:
    """A page of these sections, which are HTML already, under a heading.

    Args:
        title, introduction, summary_rows: as of `render_page`.
        style: CSS of the sections' own.
    """
    parts = [
        f"<header><h1>{escaped(title)}</h1>",
        f"<p class=lead>{escaped(introduction)}</p>" if introduction else "",
        "</header>",
        _summary(summary_rows),
        *sections,
    ]
    body = "\n".join(filter(None, parts))
    return _PAGE.format(title=escaped(title), style=STYLE + style, body=body)


def render_fragment(passage: Passage) -> str:
    """One passage for a page that is not ours (a notebook): its style reaches nothing else."""
    return (
        f"<div class=vocagno><style>{STYLE}</style>{_passage(passage)}"
        f"<details><summary>How to read this</summary>{_legend([passage])}</details></div>"
    )


def _legend(
    passages: Sequence[Passage],
    guidance: GuidanceConfig | Mapping[str, GuidanceConfig] | None = None,
) -> str:
    rules = guidance if isinstance(guidance, Mapping) else {"": guidance or GuidanceConfig()}
    parts = _CUT
    if any(passage.has_losses for passage in passages):
        parts += "".join(_choice(name, one) for name, one in rules.items())
    return f'<section class=legend aria-label="How to read this">{parts}</section>'


def _choice(name: str, guidance: GuidanceConfig) -> str:
    """How to read what was chosen under a rule."""
    is_group, is_soft = guidance.unit == "group", guidance.weight != "hard"
    return _CHOICE.format(
        heading=f"The choice, {escaped(name)}" if name else "The choice",
        excess=_GROUP if is_group else _TOKEN,
        rule=_QUOTA if is_quota(guidance) else escaped(rule(guidance)),
        kept=f"weight {least_kept(guidance):g} or more" if is_soft else "kept",
        dropped="of less weight" if is_soft else "dropped",
        unscored="\nor not of all the text of its group" if is_group else "",
    )  # fmt: skip


def _summary(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    head = "".join(f"<th scope=col>{escaped(name)}</th>" for name in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<th scope=row>{escaped(row.get(name, ''))}</th>"
            if i == 0
            else f"<td>{escaped(row.get(name, ''))}</td>"
            for i, name in enumerate(columns)
        )
        + "</tr>"
        for row in rows
    )
    return (
        "<div class=scroll role=region aria-label='Result' tabindex=0><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _passage(passage: Passage) -> str:
    counts = (
        f"{len(passage.data)} bytes · {len(passage.student)} student tokens · "
        f"{len(passage.teacher)} teacher tokens"
    )
    heading = f"<h2>{escaped(passage.title)}</h2>"
    if not passage.has_losses:
        return f"<section>{heading}<p class=counts>{counts}</p>{alignment_html(passage)}</section>"
    kept = sum(map(passage.is_kept, range(len(passage.student))))
    outcome = f"{kept} kept"
    if passage.has_soft_weights:
        least = f"{passage.least_kept:g}"
        outcome = f"weights add up to {passage.weight:.1f}, {kept} of {least} or more"
    return (
        f"<section>{heading}<p class=counts>{counts} · {outcome}</p>"
        f"<h3>How the two tokenizers cut it</h3>{alignment_html(passage)}"
        f"<h3>What the teacher chose</h3>{choice_html(passage)}</section>"
    )


def escaped(text: str) -> str:
    """Plain words for HTML; hidden characters made visible, blanks and line breaks left alone."""
    return html.escape("".join(c if c in " \n" else visible_character(c) for c in text))


_CUT = """<div>
<h3>The cut</h3>
<p>Each group runs to the next place where both tokenizers cut.
<span class="chip student">Above</span> the student's tokens,
<span class="chip teacher">below</span> the teacher's, the text between them.
A figure such as <small>3:1</small> says that three student tokens stand over one teacher token.</p>
<ul>
<li><span class="chip student unmapped">&lt;s&gt;</span> dashed, with <span class=nothing>∅</span>
opposite: unmapped, it shares no text with the other side.</li>
<li><span class="chip student">C2</span> two hexadecimal digits: one byte of a character.</li>
</ul>
<p>␣ is a space, ⏎ a line break; other hidden characters show their code. Point at a token for
its id and its bytes.</p>
</div>"""

_CHOICE = """<div>
<h3>{heading}</h3>
<p>{excess}: how much the student still has
to learn there, and can. {rule}</p>
<ul>
<li><mark class="kept level1">{kept}</mark> <mark class="kept level2">from 0.5</mark>
<mark class="kept level3">1</mark> <mark class="kept level4">2</mark>
<mark class="kept level5">4 nats</mark> underlined; the deeper, the larger the
excess.</li>
<li><span class=dropped>pale, not underlined</span>: {dropped}.</li>
<li><span class="chip student unscored">The</span> dotted, above: mapped, but the teacher has no
loss there{unscored}.</li>
<li><mark class="kept unmapped">&lt;s&gt;</mark> dashed: unmapped, so nothing to compare it
with.</li>
</ul>
</div>"""

_TOKEN = "A token's excess loss is the student's loss minus the teacher's"
_GROUP = (
    "The excess loss of a group, the fewest tokens of both sides that cover the same text, is the "
    "student's loss minus the teacher's, for each student token"
)
_QUOTA = "The largest ones are kept for training, the rest is only read."

STYLE = """
.vocagno{
&{color-scheme:light dark;--page:#fbfaf7;--card:#fff;--ink:#1d2329;--soft:#5c6670;
--faint:#6b747d;--line:#dfdcd3;
--student:#0a5fa8;--student-bg:#e6f0fa;--teacher:#8f4700;--teacher-bg:#fbeedd;
--heat:0,122,94;--heat-ink:#06251d;--gap:.36ch;--col:1.36ch}
@media (prefers-color-scheme:dark){&{--page:#14171a;--card:#1c2024;--ink:#e8e6e1;--soft:#a9b1b9;
--faint:#8a939c;--line:#343a40;--student:#86c1f7;--student-bg:#17304a;--teacher:#f3b573;
--teacher-bg:#432c13;--heat:38,190,150;--heat-ink:#f2fffa}}
&,*{box-sizing:border-box}
&{background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
h1{font-size:clamp(1.55rem,3.5vw,2.15rem);line-height:1.2;letter-spacing:-.015em;margin:0}
h2{font-size:1.2rem;margin:0}
h3{font-size:.82rem;letter-spacing:.03em;color:var(--soft);margin:1.5em 0 .5em}
p{margin:.3em 0 .7em}
.lead{color:var(--soft);max-width:68ch;margin:.6em 0 0}
.scroll{overflow-x:auto;margin-top:28px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.5em 0 .5em 1.4em;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
thead th{font-weight:500;font-size:.86rem;color:var(--soft);vertical-align:bottom;
white-space:normal}
tbody th{font-weight:600}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;margin-top:28px;
padding:clamp(16px,2.6vw,28px)}
.legend{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));
gap:4px 44px;background:none;border:0;padding:0;font-size:.92rem;color:var(--soft)}
.legend ul{list-style:none;margin:.4em 0;padding:0}
.legend li{margin:.4em 0}
.legend .chip{display:inline-block;padding:0 .35em;line-height:1.35;letter-spacing:.04em}
.counts{color:var(--faint);font-size:.86rem;margin:.2em 0 0;font-variant-numeric:tabular-nums}
.alignment,.choice,.chip,.nothing,.legend mark,.legend .dropped{
font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.alignment{font-size:15px;line-height:1.5;margin-top:10px;overflow-x:auto}
.group{display:inline-grid;grid-template-columns:repeat(var(--n),var(--col));position:relative;
vertical-align:top;margin:0 3px 20px 0;max-width:100%;overflow:visible}
.chip,.group b{letter-spacing:var(--gap);padding-left:calc(var(--gap)/2);white-space:pre}
.chip{margin:0 1px;line-height:1.5}
.chip.student{background:var(--student-bg);color:var(--student);border-radius:4px 4px 0 0;
border-top:2px solid}
.chip.teacher{background:var(--teacher-bg);color:var(--teacher);border-radius:0 0 4px 4px;
border-bottom:2px solid}
.chip bdo{margin:0 -1px}
.chip.student.unmapped,.chip.teacher.unmapped{border:1px dashed;border-radius:4px;background:none}
.chip.unmapped bdo{margin:0 -2px}
.chip.student.unscored{border-top:3px dotted}
.chip .wide,.group b.wide{letter-spacing:0}
.chip .wide{display:inline-block;width:calc(2*var(--col));text-align:center}
.group b{font-weight:400;color:var(--ink);margin:0}
.group b.wide{text-align:center;padding:0}
.nothing{color:var(--faint);text-align:center}
.group small,.legend small{font:600 11px/1.4 system-ui,sans-serif;color:var(--soft)}
.group small{position:absolute;left:0;right:0;top:100%}
.uneven::after{content:"";position:absolute;left:2px;right:2px;top:100%;height:4px;margin-top:-2px;
border:solid var(--faint);border-width:0 1px 1px}
.uneven small{padding-top:3px}
.choice{font-size:15px;line-height:1.95;overflow-wrap:anywhere;margin:0}
mark{color:inherit;background:none}
.kept{border-radius:3px 3px 0 0;border-bottom:2px solid rgb(var(--heat));color:var(--ink);
padding:1px 0;margin-right:1px;background:rgba(var(--heat),var(--shade,.07))}
.level1{--shade:.10}.level2{--shade:.22}.level3{--shade:.36}.level4{--shade:.52}.level5{--shade:.70}
.level4,.level5{color:var(--heat-ink)}
.kept.unmapped{background:none;border:1px dashed var(--soft);
border-bottom:2px solid rgb(var(--heat))}
.dropped{color:var(--faint)}
.dropped.unmapped{border:1px dashed var(--faint)}
.choice i{font-style:normal;opacity:.45}
bdo{unicode-bidi:isolate-override}
}
"""
"""Nested in a class of its own, so that it touches nothing else on a page."""

_PAGE = """<!DOCTYPE html>
<html lang=en><head><meta charset=utf-8>
<meta name=viewport content="width=device-width,initial-scale=1">
<title>{title}</title><style>{style}
body{{margin:0}}
body.vocagno{{min-height:100vh}}
main{{max-width:1120px;margin:0 auto;padding:clamp(20px,4vw,48px) clamp(14px,3vw,32px) 64px}}
</style></head>
<body class=vocagno><main>
{body}
</main></body></html>
"""
