"""The definitions, as directly as they can be written; slow and obvious."""

from fractions import Fraction
from math import ceil, fsum, inf, isfinite

import numpy as np


def align(student, teacher):
    """From the first to the last non-empty teacher span that shares text with the student's."""
    ranges = []
    for start, end in student:
        hit = [
            row
            for row, (first, last) in enumerate(teacher)
            if first < last and start < end and first < end and last > start
        ]
        ranges.append((hit[0], hit[-1] + 1) if hit else (-1, -1))
    return np.array(ranges, np.int32).reshape(-1, 2)


def align_by_bytes(student, teacher, num_bytes):
    """The same, from a table of the first and the last teacher row at each byte; O(bytes)."""
    first, last = np.full(num_bytes, len(teacher)), np.full(num_bytes, -1)
    rows, places = _bytes_of(teacher)
    last[places] = rows  # where a byte occurs twice, the later row is written last
    first[places[::-1]] = rows[::-1]
    ranges = np.full((len(student), 2), -1, np.int32)
    tokens, places = _bytes_of(student)
    if len(tokens):
        heads = np.flatnonzero(np.diff(tokens, prepend=-1))
        low = np.minimum.reduceat(first[places], heads)
        high = np.maximum.reduceat(last[places], heads)
        ranges[tokens[heads]] = np.where((high >= 0)[:, None], np.stack([low, high + 1], 1), -1)
    return ranges


def _bytes_of(spans):
    """Each byte of each span in order: which span it is of, and which byte of the text it is."""
    sizes = np.maximum(spans[:, 1] - spans[:, 0], 0)
    rows = np.repeat(np.arange(len(spans)), sizes)
    return rows, np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes - spans[:, 0], sizes)


def reduce(losses, mapping, how):
    """One number for each range; losses that are not finite do not exist."""
    result = []
    for first, stop in mapping:
        finite = [x for x in losses[first:stop] if np.isfinite(x)] if first >= 0 else []
        result.append(getattr(np, how)(np.array(finite, np.float64)) if finite else np.nan)
    return np.array(result, np.float64).astype(np.float32)


def reasons(student, teacher, mapping, losses=None):
    """0 mapped, 1 special, 2 truncated, 3 hole, 4 unscored."""
    ends = [end for start, end in teacher if start < end]
    result = []
    for (start, end), (first, stop) in zip(student, mapping, strict=True):
        if first >= 0:
            bare = losses is not None and not np.isfinite(losses[first:stop]).any()
            result.append(4 if bare else 0)
        elif start >= end:
            result.append(1)
        else:
            result.append(2 if not ends or start >= max(ends) else 3)
    return np.array(result, np.uint8)


def overlap(student, teacher, mapping):
    """IoU and IoS of each student token with its range, from sets of bytes."""
    result = []
    for (start, end), (first, stop) in zip(student, mapping, strict=True):
        token = set(range(start, end))
        rows = teacher[first:stop] if first >= 0 else []
        other = {byte for begin, last in rows for byte in range(begin, last)}
        both = len(token & other)
        result.append((both / len(token | other), both / len(token)) if token else (np.nan, np.nan))
    return np.array(result, np.float64).reshape(-1, 2).T


def groups(student, teacher):
    """Rows of both sides between neighbouring cuts, ends that no token lies across."""
    tokens = [tuple(span) for side in (student, teacher) for span in side if span[0] < span[1]]
    ends = sorted({end for _, end in tokens})
    cuts = [end for end in ends if not any(start < end < last for start, last in tokens)]
    ranges = []
    for before, cut in zip([-np.inf, *cuts], cuts, strict=False):
        sides = [
            [row for row, (a, b) in enumerate(side) if a < b and before <= a and b <= cut]
            for side in (student, teacher)
        ]
        if all(sides):
            ranges.append([(rows[0], rows[-1] + 1) for rows in sides])
    return np.array(ranges, np.int32).reshape(-1, 2, 2).swapaxes(0, 1)


def starts(student, teacher):
    """The teacher row that starts where each student token starts. A token starts at its first byte
    if no token before it reaches beyond that."""

    def places(spans):
        filled = [(row, start, end) for row, (start, end) in enumerate(spans) if start < end]
        reached = [
            max([end for _, _, end in filled[:at]], default=-1000) for at in range(len(filled))
        ]
        return {
            start: row for (row, start, _), end in zip(filled, reached, strict=True) if end <= start
        }

    student_row, teacher_row = places(student), places(teacher)
    rows = {row: teacher_row[start] for start, row in student_row.items() if start in teacher_row}
    return np.array([rows.get(row, -1) for row in range(len(student))], np.int32)


def weights(student_nll, teacher_loss, valid, top_fraction, unmapped, teacher_mean=None):
    """Eq. 4 for one scope, a list of tokens; `teacher_mean`: of the teacher's own tokens."""
    n = len(valid)
    scored = [valid[i] and np.isfinite(teacher_loss[i]) for i in range(n)]
    teacher = list(teacher_loss)
    competing = [i for i in range(n) if scored[i]]
    if unmapped == "mean":
        losses = [teacher_loss[i] for i in competing]
        mean = np.float32(sum(map(float, losses)) / len(losses)) if losses else 0.0
        mean = mean if teacher_mean is None else np.float32(teacher_mean)
        teacher = [teacher[i] if scored[i] else mean for i in range(n)]
        competing = [i for i in range(n) if valid[i]]
    kept = ceil(Fraction(str(top_fraction)) * len(competing))
    best = sorted(competing, key=lambda i: (-(student_nll[i] - teacher[i]), i))[:kept]
    result = [1.0 if i in best else 0.0 for i in range(n)]
    if unmapped == "include":
        result = [1.0 if valid[i] and not scored[i] else w for i, w in enumerate(result)]
    return result


def weights_of_units(nll, teacher, labels, groups, lines, sizes, of_groups, config):
    """Weights of one row under thresholds and lines, and the threshold.

    `of_groups`: the teacher's losses of groups, by which noise is told.
    """
    n = len(nll)
    grouped = [[k for k in range(n) if groups[k] == groups[i] >= 0] or [i] for i in range(n)]
    units = grouped if config.unit == "group" else [[i] for i in range(n)]
    heard = teacher if config.unit == "group" else of_groups
    is_heard = [labels[i] != -100 and isfinite(heard[i]) for i in range(n)]
    competes = [labels[i] != -100 and isfinite(teacher[i]) for i in range(n)]
    excess = [fsum(nll[k] for k in units[i]) / len(units[i]) - teacher[i] for i in range(n)]
    threshold = inf if config.max_threshold is None else config.max_threshold
    if config.ignores_excess:
        threshold = -inf
    ranked = sorted((excess[i] for i in range(n) if competes[i]), reverse=True)
    if config.top_fraction is not None and ranked:
        quota = ranked[ceil(round(config.top_fraction * len(ranked), 9)) - 1]
        threshold = min(threshold, quota)
    weights = []
    for i in range(n):
        if not competes[i]:
            weights.append(float(labels[i] != -100 and config.unmapped == "include"))
            continue
        weight = float(excess[i] >= threshold)
        line = [k for k in range(n) if lines[k] == lines[i] >= 0]
        near = [k for k in line if is_heard[k] and k not in grouped[i]]
        if config.window_max_loss is not None and near:
            size = sum(sizes[k] for k in near)
            loss = fsum(heard[k] for k in near)
            weight *= (loss + 8) / (size + 8) <= config.window_max_loss
        weights.append(weight)
    return weights, threshold
