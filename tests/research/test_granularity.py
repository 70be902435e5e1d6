"""Chunks against chunks: the measure against sets of characters."""

import csv
import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from families import HARD_TEXTS, TEXTS
from research.paper.granularity import CHUNKS, granularity, in_characters, write_csv
from vocagno import TokenSpans
from vocagno.errors import InputError

PAIRS = [
    ("llama", "byte-level"),
    ("byte-level", "llama"),
    ("byte-level-trimmed", "unigram"),
    ("unigram", "byte-level-nfc"),
    ("llama", "word-piece"),
    ("llama", "llama"),
]


@pytest.fixture(scope="module")
def spans(tokenizers):
    return {name: TokenSpans(tokenizer) for name, tokenizer in tokenizers.items()}


def characters_of(text):
    """Which character each byte of the text belongs to."""
    return [number for number, character in enumerate(text) for _ in character.encode()]


def stream(tokenizer, texts):
    """The characters of each token, as sets, of all texts in a row."""
    character_sets, before = [], 0
    for text in texts:
        of_byte = characters_of(text)
        for start, end in tokenizer.encode([text]).spans:
            character_sets.append({before + of_byte[byte] for byte in range(start, end)})
        before += len(text)
    return character_sets


def extent(tokens):
    """All characters from the first to the last of some tokens."""
    every = set().union(*tokens)
    return set(range(min(every), max(every) + 1)) if every else set()


def expected_shares(student, teacher, seq_len, chunks):
    """IoU and IoS of each chunk with text; of each token if `chunks` is None."""
    shares = []
    for start in range(0, len(student) - seq_len + 1, seq_len):
        seq = student[start : start + seq_len]
        text = extent(seq)
        hit = [i for i, token in enumerate(teacher) if token & text]
        other = teacher[hit[0] : hit[-1] + 1] if hit else []
        if chunks is None:
            met = [[i for i, token in enumerate(other) if token & chars] for chars in seq]
            pairs = [
                (chars, set().union(*other[rows[0] : rows[-1] + 1]) if rows else set())
                for chars, rows in zip(seq, met, strict=True)
            ]
        else:
            cuts = [[i * len(side) // chunks for i in range(chunks + 1)] for side in (seq, other)]
            pairs = [
                (extent(seq[a:b]), extent(other[c:d]))
                for a, b, c, d in zip(cuts[0], cuts[0][1:], cuts[1], cuts[1][1:], strict=False)
            ]
        shares += [(len(s & t) / len(s | t), len(s & t) / len(s)) for s, t in pairs if s]
    return np.array(shares).reshape(-1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("student", "teacher"), PAIRS)
@settings(max_examples=25)
@given(
    texts=st.lists(st.sampled_from(HARD_TEXTS[:15] + TEXTS[:6]), min_size=4, max_size=12),
    seq_len=st.integers(1, 60),
    batch=st.integers(1, 12),
)
def test_shares_are_those_of_sets_of_characters(spans, student, teacher, texts, seq_len, batch):
    student, teacher = spans[student], spans[teacher]
    left, right = stream(student, texts), stream(teacher, texts)
    batches = [texts[i : i + batch] for i in range(0, len(texts), batch)]
    if len(left) < seq_len:
        with pytest.raises(InputError, match="not even one sequence"):
            granularity(student, teacher, batches, seq_len=seq_len)
        return
    overlap = granularity(student, teacher, batches, seq_len=seq_len)
    assert overlap.sequences == len(left) // seq_len
    assert overlap.student_tokens + overlap.left_out_tokens == len(left)
    assert overlap.documents == len(texts)
    assert [level.chunks for level in overlap.levels] == [
        *(count for count in CHUNKS if count <= seq_len),
        None,
    ]
    for level in overlap.levels:
        shares = expected_shares(left, right, seq_len, level.chunks)
        assert level.counted == len(shares)
        means = shares.mean(axis=0) if len(shares) else (0, 0)
        np.testing.assert_allclose((level.iou, level.ios), means, rtol=1e-12)


def test_spans_in_characters(spans):
    texts = ["a😊é", "", "é x"]
    tokens = spans["byte-level"].encode(texts)
    character_spans = in_characters(tokens, texts)
    expected = [
        [min(characters), max(characters) + 1] for characters in stream(spans["byte-level"], texts)
    ]
    assert character_spans.tolist() == expected
    assert character_spans.tolist().count([1, 2]) > 1  # the parts of the emoji share it
    llama = in_characters(spans["llama"].encode(["∑"]), ["∑"])
    assert llama.tolist() == [[0, 0], [0, 1], [0, 1], [0, 1]]  # the lone dummy prefix stays empty


def test_the_same_tokenizer_shares_everything(spans):
    overlap = granularity(spans["llama"], spans["llama"], [TEXTS], seq_len=100)
    assert {(level.iou, level.ios) for level in overlap.levels} == {(1.0, 1.0)}
    assert [level.counted // overlap.sequences for level in overlap.levels] == [*CHUNKS[:7], 100]
    assert overlap.teacher_tokens == overlap.student_tokens


def test_the_levels_as_csv(spans, tmp_path):
    overlap = granularity(spans["llama"], spans["byte-level"], [TEXTS], seq_len=4)
    write_csv(tmp_path / "g.csv", [overlap])
    with (tmp_path / "g.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["chunks"] for row in rows] == ["1", "2", "4", "token"]
    assert float(rows[1]["iou"]) == pytest.approx(overlap.levels[1].iou, abs=1e-6)
    assert json.loads(json.dumps(asdict(overlap)))["levels"][3]["chunks"] is None
