"""The word list of the linters finds phrases in prose, and only there."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "words.py"
PYTHON = '''"""Stored {0} the ids."""

beside = 1  # a name is not prose
text = f"the run goes {{beside}}"  # the run
# {1}
raise ValueError(
    "remove the token, or leave it "
    "{2} of the text"
)
'''
MARKDOWN = """Stored {0} the ids, `beside` [them](beside.md).

```
beside
```
The run {1}
{2}.
"""
BAD, GOOD = ("beside", "goes on", "out"), ("next to", "is resumed", "in front")


def words(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), name]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", PYTHON, [(1, "beside"), (5, "goes on"), (7, "leave it out")]),
        ("a.md", MARKDOWN, [(1, "beside"), (6, "goes on")]),
    ],
)
def test_phrases_are_found_with_their_lines(tmp_path, name, text, expected):
    shown = words(tmp_path, name, text.format(*BAD))
    found = [f"{name}:{line}: {phrase!r}; better: " for line, phrase in expected]
    lines = shown.stdout.splitlines()
    assert shown.returncode == 1
    assert [line[: len(start)] for line, start in zip(lines, found, strict=True)] == found


@pytest.mark.parametrize(("name", "text"), [("a.py", PYTHON), ("a.md", MARKDOWN)])
def test_clean_text_passes(tmp_path, name, text):
    shown = words(tmp_path, name, text.format(*GOOD))
    assert (shown.returncode, shown.stdout) == (0, "")


def test_a_line_can_be_allowed_and_a_missing_file_is_an_error(tmp_path):
    assert words(tmp_path, "a.py", "# a dear friend  words: allow\n").returncode == 0
    assert words(tmp_path, "a.txt", "beside").returncode == 1
