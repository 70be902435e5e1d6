"""Normalizes the spelling of answers, by the rules of the paper's harness, in their order."""

import re
from functools import cache
from importlib import resources

_MATRICES = (
    (re.compile(r"\\begin\{array\}\{.*?\}"), r"\\begin{pmatrix}"),
    (re.compile(r"\\end\{array\}"), r"\\end{pmatrix}"),
)
_SPELLINGS = (
    ("bmatrix", "pmatrix"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    (r"\left", ""),
    (r"\right", ""),
    (r"\{", "{"),
    (r"\}", "}"),
)
_SIGNS = ((r"^{\circ}", ""), (r"^\circ", ""), (r"\$", ""), ("$", ""))
_ASSIGNED = tuple(
    (name + relation, "") for relation in ("=", r"\in", r"\to") for name in ("x", "y", "z")
)
_NAMES = (
    (r"\emptyset", "{}"),
    (r"(-\infty,\infty)", r"\mathbb{R}"),
    (r"\%", ""),
    ("%", ""),
    (" .", " 0."),
    ("{.", "{0."),
)
_WORDS = (("and", ""), (r"\mathbf", ""))
_LETTER = re.compile("[A-Za-z]")
_UNIT_TEXT = re.compile(r"\\text\{.*?\}$")
_TEXT = re.compile(r"\\text\{(.*?)\}")
_BOX = re.compile(r"\\mbox\{.*?\}")
_NO_FRACTION = re.compile(r"(\d+)\.0*([^\d]|$)")
_BARE_ROOT = re.compile(r"\\sqrt(\w+)")
_INTEGER = re.compile(r"0|-?[1-9]\d*")


def normalized(answer: object) -> str:
    r"""An answer of a model or a benchmark in the normalized spelling, for comparison.

    Two passes, as in the harness: the first removes all blanks, so more rules apply in the second.
    An answer that is only a unit (`\text{east}`) becomes empty.
    """
    return _pass(_pass(str(answer)))


def _pass(answer: str) -> str:
    text = answer.strip().replace("\n", "").rstrip(".").replace(r"\!", "")
    for pattern, spelling in _MATRICES:
        text = pattern.sub(spelling, text)
    text = _replaced(text, _SPELLINGS)
    text = _UNIT_TEXT.sub("", text).strip() or text
    text = _without_units(text)
    text = _in_digits(_replaced(text, _SIGNS))
    text = _replaced(_TEXT.sub(r"\1", text), _ASSIGNED)
    text = _replaced(text, _NAMES).replace("infinity", r"\infty")
    if r"\infty" not in text:
        text = text.replace("inf", r"\infty")
    text = _BOX.sub("", _replaced(text, _WORDS))
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    text = _NO_FRACTION.sub(r"\1\2", text)
    if text.startswith("."):
        text = f"0{text}"
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= 2:
        text = value
    text = _BARE_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    return _slash_as_fraction(_with_braced_fractions(text))


def _replaced(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _without_units(text: str) -> str:
    """Deletes unit words between non-word characters, but never the whole text.

    Runs twice, because a match takes the character that the next match would begin with.
    """
    if not _LETTER.search(text):  # every unit has one
        return text
    for _ in range(2):
        for pattern in _units():
            text = pattern.sub(r"\1\2", text) or text
    return text


@cache
def _units() -> list[re.Pattern[str]]:
    """The words in their order, then each with an s. A dot in a word matches any character."""
    lines = resources.files(__package__).joinpath("units.txt").read_text("utf-8").splitlines()
    words = [line for line in lines if line and not line.startswith("#")]
    return [
        re.compile(rf"(^|\W){word}($|\W)") for word in [*words, *(f"{word}s" for word in words)]
    ]


def _in_digits(text: str) -> str:
    """The number that a text spells out, if any (other words are ignored); else the text."""
    from word2number import w2n

    try:
        return str(w2n.word_to_num(text))
    except (ValueError, IndexError):
        return text


def _with_braced_fractions(text: str) -> str:
    r"""`\frac12` with braces; unchanged if a fraction ends before its denominator."""
    first, *fractions = text.split(r"\frac")
    braced = [first]
    for fraction in fractions:
        if fraction.startswith("{"):
            braced.append(fraction)
        elif len(fraction) < 2:
            return text
        else:
            above, below, rest = fraction[0], fraction[1], fraction[2:]
            below = below if below == "{" else f"{{{below}}}"
            braced.append(f"{{{above}}}{below}{rest}")
    return r"\frac".join(braced)


def _slash_as_fraction(text: str) -> str:
    r"""`a/b` of integers (or roots) as `\frac{a}{b}`."""
    above, slash, below = text.partition("/")
    parts = (above, below)
    if slash and "/" not in below and all("sqrt" in p or _INTEGER.fullmatch(p) for p in parts):
        return rf"\frac{{{above}}}{{{below}}}"
    return text
