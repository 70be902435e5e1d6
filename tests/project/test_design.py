"""The page of the design: its list of types is that of a step."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny_models import tiny_llama
from vocagno.alignment.mapping import Groups
from vocagno.config.guidance import GuidanceConfig
from vocagno.config.options import DataConfig
from vocagno.data.rows import Row
from vocagno.guidance.collator import Collator
from vocagno.guidance.pieces import ScoresInOrder
from vocagno.teacher.score_store import DocumentScores
from vocagno.training.step import GuidedStudent

PAGE = Path(__file__).parents[2] / "docs" / "design.md"


def test_the_types_on_the_path_of_a_token():
    """All classes of the package of which the default rule makes an object between the rows and the
    gradient, with the two that it starts from."""
    spans = np.stack([np.arange(8), np.arange(8) + 1], 1).astype(np.int32)
    counts = np.array([[0], [8], [0]])
    row = Row(np.arange(8, dtype=np.int32), spans, *counts)
    scores = ScoresInOrder([DocumentScores(spans, np.ones(8, np.float16))])
    guidance, ends = GuidanceConfig(), np.zeros(20, bool)
    collator = Collator(scores, guidance, DataConfig(train="", seq_len=7), ends)
    student, made = GuidedStudent(tiny_llama(20), guidance), {"Row", "DocumentScores"}

    def note(frame, event, value):
        if event == "call" and frame.f_code.co_name == "__init__":
            value = frame.f_locals.get("self")
        elif not isinstance(value, tuple):  # a NamedTuple, which has no `__init__`
            return
        # `Groups` is what `vocagno.groups` returns to the function that compares them.
        if type(value).__module__.startswith("vocagno.") and not isinstance(value, Groups):
            made.add(type(value).__name__)

    sys.setprofile(note)
    try:
        batch = collator([row])
        output = student(**batch.to("cpu").inputs(), num_kept=batch.counts.kept)
        output.loss.backward()
    finally:
        sys.setprofile(None)
    assert batch.counts.predicted == 7
    path = PAGE.read_text(encoding="utf-8").partition("Types on this path")[2]
    listed = re.findall(r"^\| `(\w+)` \|", path.partition("A new column")[0], re.M)
    assert sorted(listed) == sorted(made)
    assert len(listed) <= 11
