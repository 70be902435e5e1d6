"""Pages, and a passage to draw."""

from html.parser import HTMLParser

from vocagno.views.passage import Passage, StudentToken, Token


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
            Token(text=data[a:b].decode(errors="replace") or "<|e|>", start=a, end=b, nll=1.0)
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


def cut(text, *pieces):
    """Byte spans of consecutive pieces; a number is a piece of so many bytes."""
    spans, start = [], 0
    for piece in pieces:
        end = start + (piece if isinstance(piece, int) else len(piece.encode()))
        spans.append((start, end))
        start = end
    assert start == len(text.encode())
    return spans


HARD = "Zoë ½🙂e\u0301 數 <b>\n\u202e\x00\tok\n\n"


BYTES = len(HARD.encode())


CASES = {
    "words": passage("one two", cut("one two", "one", " two"), cut("one two", "o", "ne t", "wo")),
    "bytes": passage(HARD, [(i, i + 1) for i in range(BYTES)], [(0, BYTES)]),
    "one token": passage(HARD, [(0, BYTES)], [(i, i + 1) for i in range(BYTES)]),
    "bos, eos, padding": passage("ab", [(0, 0), (0, 2), (2, 2)], [(0, 0), (0, 1), (1, 2), (0, 0)]),
    "gaps": passage("a b c", [(0, 1), (2, 3)], [(0, 1), (4, 5)]),
    "repeated spans": passage("🙂", [(0, 4)] * 4, [(0, 4), (0, 4)]),
    "nested spans": passage(" 𝒜", [(0, 5), (1, 5)], [(0, 5)]),
    "empty text": passage("", [(0, 0)], []),
    "no tokens": passage("text", [], []),
}
