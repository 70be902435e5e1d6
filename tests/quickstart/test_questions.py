"""Held-out questions from JSON Lines."""

import json

import pytest

from vocagno.errors import InputError
from vocagno.quickstart import questions


def test_questions_are_lines_of_json(tmp_path):
    path = tmp_path / "q.jsonl"
    strange = "a\u2028b\x85c"  # what Python's splitlines would break a line at
    rows = [
        {"question": strange, "answer": "1"},
        {"question": "1 + 1", "answer": 2, "idx": 7},
        {"question": "1 / 4", "answer": 0.250},
    ]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"\ufeff{text}\r\n \n".replace("0.25", "0.250"), encoding="utf-8")
    found = [(one.question, one.answer) for one in questions.read_questions(path)]
    assert found == [(strange, "1"), ("1 + 1", "2"), ("1 / 4", "0.250")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no questions in it; expected an object as"),
        (b"\xff\n", "not UTF-8"),
        (b'{"question": "a", "answer": "1"}\n{"question"', "line 2: not JSON"),
        (b'{"question": "a"}\n', r"line 1: no field `answer` \(its fields: question\); expected"),
        (b'\n{"question": "a", "answer": true}\n', "line 2: `answer` is True; expected"),
        (b'{"question": "a", "answer": NaN}\n', "line 1: `answer` is nan; expected"),
        (b"[1]\n", r"line 1: \[1\]; expected an object as"),
        (b"[" * 100_000, r"line 1: not JSON \(.*recursion"),
        (b'{"question": "a", "answer": "\\ud800"}\n', r"line 1: `answer` has half of a \\u pair"),
    ],
)
def test_wrong_questions_name_their_line(tmp_path, data, message):
    path = tmp_path / "q.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"q\.jsonl(, |: ){message}"):
        questions.read_questions(path)
