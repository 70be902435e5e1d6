"""Stored answers: what is read again, and what is refused by file and line."""

import json

import pytest

from vocagno.errors import InputError
from vocagno.evaluation.asking import Asked
from vocagno.evaluation.benchmarks import Item
from vocagno.evaluation.journal import Journal, check_same_run
from vocagno.evaluation.judging import Verdict

ASKED = Asked(Item(0, "?", "2", "2", None), "Question: ?", 10)
VERDICT = Verdict(None, False, True, ("extract",))


@pytest.fixture
def path(tmp_path):
    """A journal of one answer."""
    path = tmp_path / "gsm8k.jsonl"
    with Journal(path) as journal:
        journal.add(ASKED, "The answer is 2.", VERDICT)
    return path


def test_a_verdict_is_read_again(path):
    with Journal(path) as journal:
        assert journal.verdict(ASKED) == VERDICT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("idx", [0]),
        ("idx", True),
        ("prompt_hash", 5),
        ("room", "10"),
        ("gold", None),
        ("answer", 2),
        ("harness_match", "no"),
        ("math_verify", 1),
        ("undecided", 5),
    ],
)
def test_a_field_of_another_type_is_named(path, field, value):
    record = json.loads(path.read_text())
    with path.open("a") as file:
        file.write(json.dumps({**record, field: value}) + "\n")
    with pytest.raises(InputError) as error:
        Journal(path)
    assert f"gsm8k.jsonl, line 2: damaged ({field} is {value!r}); remove the line" in str(
        error.value
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff", "codec"),
        (b"[]", "not an object"),
        (b"{}", "no idx"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_line_of_something_else_is_named(path, line, message):
    path.write_bytes(line + b"\n")
    with pytest.raises(InputError, match=rf"gsm8k\.jsonl, line 1: damaged \(.*{message}"):
        Journal(path)


def test_a_damaged_note_of_the_run_is_named(tmp_path):
    (tmp_path / "run.json").write_text("5")
    with pytest.raises(InputError, match=r"run\.json: damaged \(not an object: 5\); use another"):
        check_same_run(tmp_path, {})
