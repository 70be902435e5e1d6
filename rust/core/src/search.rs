//! Alignment by search. Each search starts where the previous one ended, and doubles its steps from there.

use crate::mapping::{TokenRange, UNMAPPED};
use crate::offset::{Offset, Span, is_empty};

/// Steps taken one by one before the search doubles them: neighbouring tokens usually map to neighbouring rows.
const LINEAR_STEPS: usize = 8;

/// Finds each student span's range in `teacher`, whose spans must be sorted and not empty. `to_row` numbers them.
pub(crate) fn align<T: Offset>(
    student: &[Span<T>],
    teacher: &[Span<T>],
    out: &mut [TokenRange],
    to_row: impl Fn(usize) -> i32,
) {
    // Two cursors, as the ends of ranges move at their own pace. A span that starts or ends before the previous one
    // moves its cursor back, so student spans need no order.
    let (mut first, mut stop) = (0, 0);
    let mut previous = [T::MIN; 2];
    for (range, &span) in out.iter_mut().zip(student) {
        *range = UNMAPPED;
        if is_empty(&span) {
            continue;
        }
        let [start, end] = span;
        first = seek(teacher, first, start < previous[0], |candidate| candidate[1] <= start);
        stop = seek(teacher, stop, end < previous[1], |candidate| candidate[0] < end);
        previous = span;
        if first < stop {
            *range = [to_row(first), to_row(stop - 1) + 1];
        }
    }
}

/// The number of leading spans for which `before` holds. Searches from `from` by doubling steps: towards the start
/// if `back` is set (the answer is then at most `from`), otherwise towards the end.
#[inline]
pub(crate) fn seek<T: Offset>(spans: &[Span<T>], from: usize, back: bool, before: impl Fn(&Span<T>) -> bool) -> usize {
    if back {
        return seek_back(spans, from, before);
    }
    let mut low = from;
    for _ in 0..LINEAR_STEPS {
        match spans.get(low) {
            Some(span) if before(span) => low += 1,
            _ => return low,
        }
    }
    let mut step = LINEAR_STEPS;
    while spans.get(low + step).is_some_and(&before) {
        low += step + 1;
        step *= 2;
    }
    // The last probe, at `low + step`, failed or lay beyond the end: the boundary is not behind it.
    let high = spans.len().min(low + step);
    low + spans[low..high].partition_point(before)
}

fn seek_back<T: Offset>(spans: &[Span<T>], from: usize, before: impl Fn(&Span<T>) -> bool) -> usize {
    let (mut high, mut step) = (from, 1);
    let mut low = high.saturating_sub(step);
    while low > 0 && !before(&spans[low]) {
        (high, step) = (low, step * 2);
        low = high.saturating_sub(step);
    }
    low + spans[low..high].partition_point(before)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn seek_finds_the_boundary_from_every_start_in_both_directions() {
        let spans: Vec<Span<i32>> = (0..100).map(|at| [at, at + 1]).collect();
        for boundary in 0..=100 {
            let before = |span: &Span<i32>| span[0] < boundary;
            for from in 0..=100 {
                let back = i32::try_from(from).unwrap_or_default() > boundary;
                assert_eq!(seek(&spans, from, back, before), usize::try_from(boundary).unwrap_or_default());
            }
        }
    }
}
