"""Checks of JSON values against types: what passes, and how a fault is named."""

from typing import Any, TypedDict

import pytest

from vocagno.errors import InputError
from vocagno.system.records import Count, Finite, check_type


class Part(TypedDict):
    name: str
    size: Count | None


class Whole(TypedDict, total=False):
    losses: list[float | None]
    share: Finite
    pairs: list[tuple[float, int]]
    parts: dict[str, Part]
    metadata: Any


def test_a_valid_record_is_returned_itself():
    value = {
        "losses": [1, 2.5, None, float("nan"), -float("inf")],
        "share": 0.5,
        "pairs": [[1.0, 2], [3, 4, "more"]],
        "parts": {"a": {"name": "ß", "size": 3, "other": object()}, "b": {"name": ""}},
        "metadata": {"anything": []},
    }
    assert check_type(Whole, value, InputError) is value
    assert value["parts"]["b"]["size"] is None
    assert check_type(Whole, {}, InputError) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "expected an object, got a list"),
        ({"losses": None}, "losses: expected a list, got null"),
        ({"losses": [1.0, True]}, r"losses\[1\]: expected a number, got True"),
        ({"losses": [10**400]}, r"losses\[0\]: expected a number, got 10{39}\.\.\."),
        ({"share": float("inf")}, "share: expected a finite number, got inf"),
        ({"pairs": [[1.0]]}, r"pairs\[0\]: expected a list of at least 2, got one of 1"),
        ({"pairs": [[1.0, 2**63]]}, r"pairs\[0\]\[1\]: expected a whole number, got 9223372"),
        ({"parts": {"a": {}}}, r"parts\['a'\]: has no `name`"),
        ({"parts": {"a": {"name": "\ud800"}}}, r"parts\['a'\]\.name: expected text, got '\\ud800'"),
        ({"parts": {"\ud800": {}}}, r"parts\['\\ud800'\]: expected text"),
        ({"parts": {"a": {"name": "", "size": -1}}}, r"\.size: expected a whole number, 0 or more"),
    ],
)
def test_a_fault_is_named_by_its_place(value, words):
    with pytest.raises(InputError, match=words) as refused:
        check_type(Whole, value, InputError)
    assert str(refused.value).isprintable()
