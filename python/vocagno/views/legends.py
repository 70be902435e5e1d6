"""Legends of the pages, in words that follow the rule of the choice."""

from collections.abc import Mapping, Sequence

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.html import escaped
from vocagno.views.passage import Passage
from vocagno.views.rules import is_quota, percent, rule


def page_legend(passages: Sequence[Passage], rules: Mapping[str, GuidanceConfig]) -> str:
    """The legend of a page of passages; rules by their names."""
    has_losses = any(passage.has_losses for passage in passages)
    choices = [_choice(name, guidance) for name, guidance in rules.items() if has_losses]
    return _SECTION.format("".join([_CUT, *choices]))


_SECTION = '<section class=legend aria-label="How to read this">{}</section>'

_CUT = """<div>
<h3>The cut</h3>
<p>Each group runs to the next place where both tokenizers cut.
<span class="chip student">Above</span> the student's tokens,
<span class="chip teacher">below</span> the teacher's, the text between them.
A number such as <small>3:1</small> counts student tokens over teacher tokens.</p>
<ul>
<li><span class="chip student unmapped">&lt;s&gt;</span> dashed, with <span class=nothing>∅</span>
opposite: unmapped, it shares no text with the other side.</li>
<li><span class="chip student">C2</span> two hexadecimal digits: one byte of a character.</li>
</ul>
<p>␣ is a space, ⏎ a line break; other hidden characters show their code. Hover over a token
for its id and its bytes.</p>
</div>"""


def _choice(name: str, guidance: GuidanceConfig) -> str:
    is_group = guidance.unit == "group"
    excess = "A token's excess loss is the student's loss minus the teacher's"
    if is_group:
        excess = """The excess loss of a group, the fewest tokens of both sides that cover the same
text, is the student's loss minus the teacher's, for each student token"""
    quota = "The largest ones are kept for training, the rest is only read."
    return f"""<div>
<h3>The choice{f", {escaped(name)}" if name else ""}</h3>
<p>{excess}: how much the student still has
to learn there, and can. {quota if is_quota(guidance) else escaped(rule(guidance))}</p>
<ul>
<li><mark class="kept level1">kept</mark> <mark class="kept level2">from 0.5</mark>
<mark class="kept level3">1</mark> <mark class="kept level4">2</mark>
<mark class="kept level5">4 nats</mark> underlined; the deeper, the larger the
excess.</li>
<li><span class=dropped>pale, not underlined</span>: dropped.</li>
<li><span class="chip student unscored">The</span> dotted, above: mapped, but the teacher has no
loss there{" or not of all the text of its group" if is_group else ""}.</li>
<li><mark class="kept unmapped">&lt;s&gt;</mark> dashed: unmapped, so nothing to compare it
with.</li>
</ul>
</div>"""


def guidance_legend(guidance: GuidanceConfig) -> str:
    """The legend of a page of one passage, with the links and their losses."""
    why_kept, why_dropped, words = ". The deeper, the larger the excess loss.", ".", ""
    if is_quota(guidance):
        why_kept = f": among the top {percent(guidance)}\nby excess loss. The deeper, the larger."
        why_dropped = ": the rest."
    else:
        words = f"<p>{escaped(rule(guidance))}</p>\n"
    tied = ", ∅ opposite: tied to nothing."
    if guidance.unit == "group":
        tied = ": tied to nothing, as in no group whose losses are all known."
    return _SECTION.format(f"""<div>
<h3>The numbers</h3>
<div class=key>
{_numbers(guidance)}
<span class="tok teacher"><bdo>tok</bdo><small>2.10</small></span>
<p>Below it the teacher's tokens, each with its own loss. All losses in nats.</p>
</div>
</div><div>
<h3>The choice</h3>
{words}<ul>
<li><span class="tok student on level4">kept</span> thick border, solid lines{why_kept}</li>
<li><span class="tok student off">dropped</span> thin border, dashed lines{why_dropped}</li>
<li><span class="tok student on unmapped">&lt;s&gt;</span>
<span class="tok student off unmapped">&lt;s&gt;</span> dashed border{tied}
Tokens without a teacher loss are {_UNMAPPED[guidance.unmapped]}.</li>
</ul>
<p>␣ is a space, ⏎ a line break; two hexadecimal digits are one byte of a character. Hover over
a token for its id, its bytes and why it is kept or dropped.</p>
</div>""")


_UNMAPPED = {
    "include": "kept",
    "exclude": "dropped",
    "mean": "ranked with the mean teacher loss",
}


def _numbers(guidance: GuidanceConfig) -> str:
    """An example of a student token, with its numbers in words."""
    numbers = {"loss": "4.20", "teachers": "−2.10", "excess": "+2.10"}
    words = f"""the student's loss, minus the teacher's (the {guidance.aggregation} of the
tokens that it is tied to), which leaves the excess loss."""
    if guidance.unit == "group":
        numbers = {"loss": "4.20", "mean": "⌀3.80", "teachers": "−2.10", "excess": "+1.70"}
        words = """the student's loss; ⌀ the mean over its group, the fewest tokens of
both sides that cover the same text; minus the teacher's loss of that text, divided by the student
tokens of the group; which leaves the excess loss of the group."""
    small = "".join(f"<small class={kind}>{text}</small>" for kind, text in numbers.items())
    return f"""<span class="tok student on level2"><bdo>token</bdo>{small}</span>
<p>A student token: {words}</p>"""
