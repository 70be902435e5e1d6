"""What the teacher chose of one text, as one self-contained HTML page, or a fragment of a notebook.

No script and no network, as the other pages; what colours say, lines and borders say too.
"""

from collections.abc import Mapping, Sequence

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.choice import choice_html
from vocagno.views.glyphs import token_label
from vocagno.views.guidance_legend import guidance_legend
from vocagno.views.links import links_html
from vocagno.views.page import STYLE, escaped, whole_page
from vocagno.views.passage import Passage
from vocagno.views.verdicts import Verdict, verdicts


def guidance_page(
    passage: Passage,
    guidance: GuidanceConfig,
    *,
    introduction: str,
    summary_rows: Sequence[Mapping[str, str]],
) -> str:
    """The whole page as one HTML string: links with losses, the text with what is kept, numbers.

    Args:
        guidance: what the passage was ranked under.
        introduction, summary_rows: as of `render_page`.
    """
    return whole_page(
        "What the teacher chose",
        introduction,
        summary_rows,
        [guidance_legend(passage, guidance), *_sections(passage, guidance)],
        _LINKS_STYLE,
    )


def guidance_fragment(passage: Passage, guidance: GuidanceConfig) -> str:
    """The same for a page that is not ours: its style reaches nothing else."""
    body, legend = "".join(_sections(passage, guidance)), guidance_legend(passage, guidance)
    return (
        f"<div class=vocagno><style>{STYLE}{_LINKS_STYLE}</style>{body}"
        f"<details><summary>How to read this</summary>{legend}</details></div>"
    )


def _sections(passage: Passage, guidance: GuidanceConfig) -> list[str]:
    counts = (
        f"{len(passage.data):,} bytes · {len(passage.student):,} student tokens · "
        f"{len(passage.teacher):,} teacher tokens"
    )
    return [
        f"<section><h2>{escaped(passage.title)}</h2><p class=counts>{counts}</p>"
        f"{choice_html(passage)}</section>",
        f"<section><h2>Token by token</h2>{links_html(passage, guidance)}</section>",
        f"<section><details><summary>All numbers</summary>{_numbers(passage, guidance)}</details>"
        "</section>",
    ]


def _numbers(passage: Passage, guidance: GuidanceConfig) -> str:
    """A table with a line for each student token."""
    is_group = guidance.unit == "group"
    heads = [
        "", "student token", "student's loss", "teacher tokens, their losses",
        f"teacher's loss ({'group' if is_group else guidance.aggregation})",
        "excess of the group" if is_group else "excess",
    ]  # fmt: skip
    if guidance.window_max_loss is not None:
        heads.append("teacher's loss on its neighbours, a byte")
    if guidance.window_threshold is not None:
        heads.append("excess of its neighbours")
    if passage.has_soft_weights:
        heads.append("weight")
    heads.append("")
    head = "".join(f"<th scope=col>{escaped(name)}</th>" for name in heads)
    lines = [
        _line(passage, row, verdict, guidance)
        for row, verdict in enumerate(verdicts(passage, guidance))
    ]
    return (
        "<div class=scroll role=region aria-label='All numbers' tabindex=0><table class=numbers>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _line(passage: Passage, row: int, verdict: Verdict, guidance: GuidanceConfig) -> str:
    token, (first, stop) = passage.student[row], passage.mapping[row]
    label = token_label(passage.data, token.start, token.end, token.text)
    others = [
        f"<bdo dir=ltr>{escaped(_teacher_label(passage, place))}</bdo> "
        f"<i>{_nats(passage.teacher[place].nll)}</i>"
        for place in range(first, stop)
    ]
    mean = "" if token.unit_nll is None else f" <i>⌀ {_nats(token.unit_nll)}</i>"
    cells = [
        f"<td><bdo dir=ltr>{escaped(label)}</bdo>", f"<td>{_nats(token.nll)}{mean}",
        f"<td>{' · '.join(others) or '∅'}", f"<td>{_nats(token.teacher_loss)}",
        f"<td class=excess>{_nats(token.excess, '+')}",
    ]  # fmt: skip
    if guidance.window_max_loss is not None:
        cells.append(f"<td>{_nats(token.neighbours_loss)}")
    if guidance.window_threshold is not None:
        cells.append(f"<td>{_nats(token.neighbours_excess, '+')}")
    if passage.has_soft_weights:
        cells.append(f"<td class=weight>{token.weight:.2f}")
    cells.append(f"<td>{escaped(verdict.words(guidance))}")
    kind = "on" if verdict.kept else "off"
    return f"<tr class={kind}><th scope=row>{row}</th>{'</td>'.join(cells)}</td></tr>"


def _teacher_label(passage: Passage, row: int) -> str:
    token = passage.teacher[row]
    return token_label(passage.data, token.start, token.end, token.text)


def _nats(value: float | None, sign: str = "") -> str:
    return "none" if value is None else f"{value:{sign}.3f}".replace("-", "−")


_LINKS_STYLE = """
.vocagno{
.links,.tok,.numbers bdo{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.links{font-size:14px;--col:1ch;margin-top:18px;overflow-x:auto}
.tie{display:inline-grid;grid-template-columns:repeat(var(--n),1ch);grid-template-rows:auto 30px
auto;vertical-align:top;margin:0 2px 20px 0}
.tok{grid-row:1;margin:0 1.5px;padding:1px 0;text-align:center;border:1px solid var(--line);
border-radius:5px;white-space:pre;line-height:1.35;overflow:hidden}
.tok bdo{display:block}
.tok small{display:block;font:inherit;font-size:11px;font-variant-numeric:tabular-nums}
.tok .wide{display:inline-block;width:calc(2*var(--col));text-align:center}
.tok.student .excess{border-top:1px solid;margin:1px auto 0;width:5.2ch}
.tok.student.on{border:2px solid rgb(var(--heat));padding:0;
background:rgba(var(--heat),var(--shade,.07))}
.tok.student.on .excess{font-weight:700}
.tok.student.off{color:var(--faint)}
.tok.student.unmapped{border-style:dashed;background:none}
.tok.teacher{grid-row:3;align-self:start;background:var(--teacher-bg);color:var(--teacher);
border-color:transparent}
.tie .nothing{grid-column:1/-1;grid-row:3}
.tie .nothing.student{grid-row:1;align-self:end}
.tie svg{grid-row:2;grid-column:1/-1;width:100%;height:30px;display:block}
.tie line{vector-effect:non-scaling-stroke}
line.on{stroke:rgb(var(--heat));stroke-width:2}
line.off{stroke:var(--faint);stroke-width:1;stroke-dasharray:3 3}
.key{display:grid;grid-template-columns:auto 1fr;gap:8px 12px;align-items:center}
.key p{margin:0}
.key .tok.tok{grid-row:auto;justify-self:end}
table:not(.numbers) :nth-child(2){white-space:normal;overflow-wrap:anywhere;text-align:left}
.legend .tok.tok{display:inline-block;vertical-align:top;padding:0 .5ch;font-size:12px}
summary{cursor:pointer;font-weight:600}
.numbers td,.numbers th{padding:.3em 0 .3em 1.2em;font-size:.9rem}
.numbers td:nth-child(4),.numbers td:last-child{white-space:normal;text-align:left;min-width:17ch}
.numbers td:nth-child(2){text-align:left}
.numbers i{font-style:normal;color:var(--soft)}
.numbers .on .excess{font-weight:700}
.numbers .off td,.numbers .off i{color:var(--faint)}
}
"""
