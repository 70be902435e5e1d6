"""How to read the page of what a teacher chose: numbers and signs, by the rule of the choice."""

from vocagno.config.guidance import GuidanceConfig
from vocagno.views.page import escaped
from vocagno.views.passage import Passage
from vocagno.views.rules import is_quota, percent, rule


def guidance_legend(passage: Passage, guidance: GuidanceConfig) -> str:
    """The legend of a page that draws `passage`, as HTML."""
    is_group, is_soft = guidance.unit == "group", guidance.weight != "hard"
    least = f"{passage.least_kept:g}"
    words = (_GROUP if is_group else _TOKEN).format(aggregation=guidance.aggregation)
    parts = {
        "numbers": _numbers(passage, is_group=is_group),
        "words": words + (_WEIGHT if passage.has_soft_weights else ""),
        "rule": "", "tied": _NO_GROUP if is_group else _UNTIED,
        "kept": f"weight {least} or more" if is_soft else "kept",
        "dropped": "less" if is_soft else "dropped",
        "is_kept": "has its weight" if is_soft else "is kept or dropped",
        "why_kept": ". The deeper, the larger the excess loss.", "why_dropped": ".",
        "unmapped": _UNMAPPED[guidance.unmapped],
    }  # fmt: skip
    if is_quota(guidance):
        top = f": among the top {percent(guidance)}\nby excess loss. The deeper, the larger."
        parts |= {"why_kept": top, "why_dropped": ": the rest."}
    else:
        parts["rule"] = f"<p>{escaped(rule(guidance))}</p>\n"
    return _LEGEND.format(**parts)


def _numbers(passage: Passage, *, is_group: bool) -> str:
    """Those of a token that is an example."""
    numbers = ["4.20", "⌀3.80", "−2.10", "+1.70"] if is_group else ["4.20", "−2.10", "+2.10"]
    *before, excess = (f"<small>{number}</small>" for number in numbers)
    found = [*before, excess.replace("<small>", "<small class=excess>")]
    if passage.has_soft_weights:
        found.append("<small class=weight>×0.75</small>")
    return "".join(found)


_TOKEN = """A student token: the student's loss, minus the teacher's (the {aggregation} of the
tokens that it is tied to), which leaves the excess loss."""

_GROUP = """A student token: the student's loss; ⌀ the mean over its group, the fewest tokens of
both sides that cover the same text; minus the teacher's loss of that text, divided by the student
tokens of the group; which leaves the excess loss of the group."""

_WEIGHT = " Below them × the token's weight in the student's loss."

_UNTIED = ", ∅ opposite: tied to nothing."
_NO_GROUP = ": tied to nothing, as in no group whose losses are all known."

_UNMAPPED = {
    "include": "kept",
    "exclude": "dropped",
    "mean": "ranked with the mean teacher loss",
}

_LEGEND = """<section class=legend aria-label="How to read this"><div>
<h3>The numbers</h3>
<div class=key>
<span class="tok student on level2"><bdo>token</bdo>{numbers}</span>
<p>{words}</p>
<span class="tok teacher"><bdo>tok</bdo><small>2.10</small></span>
<p>Below it the teacher's tokens, each with its own loss. All losses in nats.</p>
</div>
</div><div>
<h3>The choice</h3>
{rule}<ul>
<li><span class="tok student on level4">{kept}</span> thick border, solid lines{why_kept}</li>
<li><span class="tok student off">{dropped}</span> thin border, dashed lines{why_dropped}</li>
<li><span class="tok student on unmapped">&lt;s&gt;</span>
<span class="tok student off unmapped">&lt;s&gt;</span> dashed border{tied}
Tokens without a teacher loss are {unmapped}.</li>
</ul>
<p>␣ is a space, ⏎ a line break; two hexadecimal digits are one byte of a character. Point at a
token for its id, its bytes and why it {is_kept}.</p>
</div></section>"""
