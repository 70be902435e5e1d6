"""What the teacher chose: the student's tokens as running text, kept ones marked, deeper for a
larger excess loss."""

import html

from vocagno.views.alignment import student_title
from vocagno.views.glyphs import token_label
from vocagno.views.passage import Passage

INTENSITY_NATS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Excess losses, in nats, at which the shade of a kept token deepens."""


def choice_html(passage: Passage) -> str:
    """One line of tokens, broken where the text is."""
    data = passage.data
    spans = []
    for row, token in enumerate(passage.student):
        is_kept = passage.is_kept(row)
        kind = "kept" if is_kept else "dropped"
        if passage.mapping[row][0] < 0:
            kind += " unmapped"
        if kind == "kept" and token.excess is not None:
            kind += f" {shade(token.excess)}"
        surface = html.escape(token_label(data, token.start, token.end, token.text)).replace(
            "␣", "<i>␣</i><wbr>"
        )
        surface = surface.replace("⏎", "<i>⏎</i>")
        tag = "mark" if is_kept else "span"
        spans.append(
            f'<{tag} class="{kind}" data-choice={row} title="{student_title(passage, row)}">'
            f"<bdo dir=ltr>{surface}</bdo></{tag}>"
        )
        if token.end > token.start and data[token.end - 1] == ord("\n"):
            spans.append("<br>")
    return f"<p class=choice>{''.join(spans)}</p>"


def shade(excess: float) -> str:
    """The class that says how deep a kept token of such an excess loss is marked."""
    return f"level{sum(excess >= nats for nats in INTENSITY_NATS)}"
