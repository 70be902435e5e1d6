"""Finds phrases that are not plain technical English, and names the better word.

    python3 .ci/words.py PATH ...

Reads docstrings, comments and strings of Python files, and Markdown without code. A phrase may
contain a line break. Prints file:line, phrase and better word; exits with 1 if there are any. A
line that contains `words: allow` (in Markdown in a comment) is skipped.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BETTER = {
    r"is no number|are no numbers|no finite number": "NaN or infinite",
    r"beside": "next to",
    r"anew|once more": "again",
    r"at one stroke": "atomically",
    r"dear": "expensive",
    r"(?:go|goes|going|went|gone) on": "resume, continue",
    r"left out|leaves? out|leaving out|leave (?:it|them|this|that) out": "skip, omit",
    r"alone": "only",
    r"in silence": "silently",
    r"nobody": "no process, no one",
    r"cut short": "truncated",
    r"mend(?:s|ed)?": "fix",
}
PHRASE = re.compile("|".join(rf"(\b(?:{phrase})\b)" for phrase in BETTER), re.IGNORECASE)
ALLOW = "words: allow"
# Blanks, or a line break with the end of a string, a comment sign or the start of a string.
BREAK = re.compile(r"""([ \t]*["']?[ \t]*\n[ \t]*(?:#[ \t]*|[rbf]{0,2}["'])?|[ \t]+)""")
FENCE = re.compile(r"\s*(```+|~~~+)")
F_STRING, FIELD = re.compile(r"[rR]?[fF]"), re.compile(r"\{[^{}]*\}")
CODE_OR_LINK = re.compile(r"`[^`]*`|\]\([^)]*\)")
STRINGS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
SUFFIXES = (".py", ".pyi", ".md")


def python_prose(text: str) -> list[str]:
    """The lines of a Python file with everything blanked but strings and comments."""
    lines = text.splitlines()
    kept = [""] * len(lines)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in STRINGS:
            (first, start), (last, stop) = token.start, token.end
            for row in range(first - 1, last):
                line = lines[row][:stop] if row == last - 1 else lines[row]
                if F_STRING.match(token.string):  # one token before Python 3.12
                    line = FIELD.sub(lambda field: "_" * len(field[0]), line)
                at = start if row == first - 1 else 0
                kept[row] = kept[row].ljust(at) + line[at:]
    return kept


def markdown_prose(text: str) -> list[str]:
    """The lines of a Markdown file without blocks of code, inline code and addresses of links."""
    kept, fence = [], ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            line = ""
        kept.append("" if fence else CODE_OR_LINK.sub("_", line))
    return kept


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and better word of each phrase in a file."""
    source = path.read_text(encoding="utf-8")
    lines = markdown_prose(source) if path.suffix == ".md" else python_prose(source)
    allowed = {n for n, line in enumerate(source.splitlines(), 1) if ALLOW in line}
    text, line_of, line = "", [], 1
    for number, piece in enumerate(BREAK.split("\n".join(lines))):
        text += " " if number % 2 else piece  # every other piece is a break
        line_of += [line] * (len(text) - len(line_of))
        line += piece.count("\n")
    for match in PHRASE.finditer(text):
        if (at := line_of[match.start()]) not in allowed:
            yield at, match[0], list(BETTER.values())[(match.lastindex or 1) - 1]


def main(arguments: list[str]) -> int:
    status = 0
    for path in map(Path, arguments):
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        files = [file for file in files if file.suffix in SUFFIXES]
        if not files:
            print(f"{path}: no {', '.join(SUFFIXES)} file")
            status = 1
        for file in files:
            for line, phrase, better in found(file):
                print(f"{file}:{line}: {phrase!r}; better: {better}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
