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


def words(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), name]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    return done.returncode, [line.partition("; better: ")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", PYTHON, ["a.py:1: 'beside'", "a.py:5: 'goes on'", "a.py:7: 'leave it out'"]),
        ("a.md", MARKDOWN, ["a.md:1: 'beside'", "a.md:6: 'goes on'"]),
    ],
)
def test_phrases_are_found_with_their_lines(tmp_path, name, text, expected):
    assert words(tmp_path, name, text.format("beside", "goes on", "out")) == (1, expected)
    assert words(tmp_path, name, text.format("next to", "is resumed", "in front")) == (0, [])


def test_a_line_can_be_allowed_and_a_missing_file_is_an_error(tmp_path):
    assert words(tmp_path, "a.py", "# a dear friend  words: allow\n")[0] == 0
    assert words(tmp_path, "a.txt", "beside")[0] == 1
