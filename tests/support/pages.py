"""Pages, and a passage to draw."""

from html.parser import HTMLParser

from vocagno.views.passage import Passage, StudentToken, TeacherToken


def passage(text, student, teacher, *, excess=1.0, weight=1.0):
    """Tokens of these byte spans, mapped to every teacher token that shares bytes with them."""
    mapping = []
    for start, end in student:
        rows = [i for i, (a, b) in enumerate(teacher) if max(a, start) < min(b, end)]
        mapping.append((rows[0], rows[-1] + 1) if rows else (-1, -1))
    data = text.encode()
    return Passage(
        title="passage",
        text=text,
        student=[
            StudentToken(
                text=data[a:b].decode(errors="replace") or "<s>",
                start=a,
                end=b,
                nll=2.0 if mapping[i][0] >= 0 else None,
                teacher_loss=2.0 - excess if mapping[i][0] >= 0 else None,
                weight=weight,
            )
            for i, (a, b) in enumerate(student)
        ],
        teacher=[
            TeacherToken(
                text=data[a:b].decode(errors="replace") or "<|e|>", start=a, end=b, nll=1.0
            )
            for a, b in teacher
        ],
        mapping=mapping,
    )


class Balanced(HTMLParser):
    """Fails on a tag that is never closed or closed out of order."""

    VOID = ("br", "wbr", "meta")

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
