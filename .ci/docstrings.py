"""For the site: `Args:`, `Returns:` and the like in docstrings, on one line or more, as Markdown.

Griffe's Google style takes neither a text behind `Returns:` nor two names of one argument.
"""

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Cost|Source):(?: +(.*))?$")
_ARGUMENT = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    lines: list[str] = []
    indent = ""  # of the lines of a section, less what it is in Markdown
    listed = False
    for line in text.splitlines():
        if section := _SECTION.match(line):
            name, rest = section.groups()
            listed = name == "Args" and not rest
            lines += ["", f"**{name}:** {rest or ''}".rstrip(), *([""] if listed else [])]
            indent = "    "
        elif indent and line.startswith(indent):
            inner = line.removeprefix(indent)
            argument = _ARGUMENT.match(inner) if listed else None
            if argument:
                names = ", ".join(f"`{name}`" for name in argument[1].split(", "))
                inner = f"- {names}: {argument[2]}"
            elif not listed:
                inner = inner.strip()
            lines.append(inner)
        else:
            if line:
                indent = ""
            lines.append(line)
    return "\n".join(lines)
