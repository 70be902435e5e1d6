"""Spans drawn at random."""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st


@st.composite
def ordered_spans(draw, with_empty=True):
    """Spans as tokenizers give them: gaps, repeats, nesting, and empty ones anywhere."""
    cuts = sorted(draw(st.sets(st.integers(0, 30), max_size=12)))
    spans = [[a, b] for a, b in pairwise(cuts) for _ in range(draw(st.integers(0, 3)))]
    for span in spans:  # nest: a later token may start later and end where the last one ended
        if span[1] - span[0] > 1 and draw(st.booleans()):
            span[0] += 1
    spans.sort(key=lambda span: (span[1], span[0]))
    starts = np.maximum.accumulate([span[0] for span in spans]) if spans else []
    spans = [[int(start), span[1]] for start, span in zip(starts, spans, strict=True)]
    spans = [span for span in spans if span[0] < span[1]]
    if with_empty:
        for _ in range(draw(st.integers(0, 3))):
            where = draw(st.integers(0, len(spans)))
            spans.insert(where, draw(st.sampled_from([[0, 0], [7, 7], [9, 2], [30, 30]])))
    return np.array(spans, np.int64).reshape(-1, 2)


any_spans = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=12).map(
    lambda spans: np.array(spans, np.int64).reshape(-1, 2)
)


def random_spans(rng):
    """Fast ordered spans for a hundred thousand cases: gaps, repeats, nesting, empty ones."""
    n = int(rng.integers(0, 7))
    starts = np.sort(rng.integers(0, 12, n))
    ends = np.maximum.accumulate(starts + rng.integers(1, 5, n)) if n else starts
    spans = np.stack([starts, ends], 1)
    empty = rng.random(n) < 0.15
    spans[empty] = rng.choice([[0, 0], [3, 3], [12, 12], [8, 1]], int(empty.sum()))
    return spans


def random_batch(rng, texts):
    """The spans of both sides of each text, and the boundaries as `align` takes them."""
    students, teachers = ([random_spans(rng) for _ in range(texts)] for _ in range(2))
    cu_seqlens = (np.cumsum([0, *map(len, side)]) for side in (students, teachers))
    return students, teachers, row_boundaries(*cu_seqlens)


def row_boundaries(student, teacher):
    """The boundaries of the rows of both sides, as `align` takes them."""
    return {"student_cu_seqlens": student, "teacher_cu_seqlens": teacher}


def in_batch(mappings, boundaries):
    """The mappings of single texts with the rows that they have in the batch."""
    before = boundaries["teacher_cu_seqlens"]
    pairs = zip(mappings, before, strict=False)
    return np.concatenate([np.where(mapping < 0, mapping, mapping + row) for mapping, row in pairs])
