"""A student next to several teachers: the numbers as CSV, and those of the paper's figures."""

import csv
import json

import pytest

from research.paper.teachers import COLUMNS, align_teachers, write_aligned, write_overlaps
from shared_data import real_tokenizer as real
from vocagno import TokenSpans, vocabulary_overlap


@pytest.fixture(scope="module")
def sides(tokenizers):
    student, teacher = (TokenSpans(tokenizers[name]) for name in ("llama", "byte-level"))
    return student, {"other": teacher, "same": student}


def test_the_overlaps_as_csv(sides, tmp_path):
    student, teachers = sides
    overlaps = {name: vocabulary_overlap(student, teacher) for name, teacher in teachers.items()}
    write_overlaps(tmp_path / "o.csv", "llama", overlaps)
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [(row["student"], row["teacher"], float(row["string_share"])) for row in rows]
    assert cells == [("llama", name, overlap.string_share) for name, overlap in overlaps.items()]


def test_the_mapping_as_csv(sides, tmp_path):
    student, teachers = sides
    pairs = align_teachers(("_s", student), teachers, "José has 17 − 4.")
    write_aligned(tmp_path / "t.csv", pairs)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == list(COLUMNS)
    assert len(rows) == sum(len(pair.mapping) for pair in pairs)
    at = iter(rows)
    for pair in pairs:
        for row, (first, stop) in enumerate(pair.mapping.tolist()):
            cells = dict(zip(header, next(at), strict=True))
            assert (cells["student"], cells["teacher"]) == ("_s", pair.teacher.tokenizer)
            assert cells["token"] == pair.student.tokens[row]
            assert [int(cells["start"]), int(cells["end"])] == pair.student.spans[row].tolist()
            mapped = [cells[name] for name in ("first", "stop", "teacher_tokens")]
            if first < 0:
                assert [cells["link"], *mapped] == ["unmapped", "", "", ""]
            else:
                assert mapped[:2] == [str(first), str(stop)]
                assert json.loads(mapped[2]) == pair.teacher.tokens[first:stop]


@pytest.mark.slow
def test_figure_1_of_the_paper():
    """TinyLlama shares 6.32 % of Qwen2.5's entries, and most of Mistral's."""
    student, *teachers = map(real, ("tinyllama", "qwen2.5", "mistral-v0.1"))
    shares = [vocabulary_overlap(student, teacher).string_share for teacher in teachers]
    assert [round(share, 4) for share in shares] == [0.0632, 0.7558]


@pytest.mark.slow
def test_figure_2_of_the_paper():
    """ "Probability, Uncertainty" in 4, 8, 6 and 7 tokens."""
    names = ("qwen2.5", "mistral-v0.1", "deepseek-llm")
    student = "tinyllama", real("tinyllama")
    pairs = align_teachers(student, {n: real(n) for n in names}, "Probability, Uncertainty")
    assert [*(len(pair.teacher.ids) for pair in pairs), len(pairs[0].student.ids)] == [4, 8, 6, 7]
    assert [pair.mapping.tolist() for pair in pairs] == [
        [[0, 1], [0, 1], [0, 1], [1, 2], [2, 3], [2, 4], [3, 4]],
        [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 7], [7, 8]],
        [[0, 1], [0, 1], [1, 2], [2, 3], [3, 4], [3, 5], [5, 6]],
    ]
    assert all(pair.coverage == 1 for pair in pairs)
