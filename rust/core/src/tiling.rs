//! Alignment by a table from bytes to rows, for sorted student spans and teacher spans that tile a text. It takes
//! two loads per token instead of two searches.
//!
//! The table covers one window of the text at a time, so it stays in the first-level cache for any length of text.
//! It numbers rows within the window, so 16 bits are enough.
//!
//! Alternatives that were measured (ns per student token, random tiling spans of 1 to 8 bytes, one core of an AMD
//! EPYC, rustc 1.95; first rows of 2,048 tokens, then of 1,000,000):
//!
//! * This table: 2.8 and 3.8.
//! * The search of `search.rs`, which all other inputs take: 3.9 and 9.9. On a short row that is repeated, the branch
//!   predictor learns the whole row.
//! * A branch-free merge of both sides: 9.8 and 11.1. Each step waits for the previous load.
//! * `partition_point`: 17 and 40.
//! * Reducing losses window by window, while the ranges are in the cache: 4.6 and 7.8, against 4.9 and 7.5 for two
//!   passes. That does not justify a second kernel.
//! * Checking order and tiling in vectorised passes first: 70 instead of 54 instructions per token.

use crate::mapping::{TokenRange, UNMAPPED, to_row};
use crate::offset::{Offset, Span};
use crate::search::seek;

/// Bytes of text that the table covers.
const WINDOW: usize = 4_096;
const WINDOW_BYTES: i32 = 4_096;
/// Keeps an index inside the window, so no bounds check is needed.
const MASK: usize = WINDOW - 1;
/// Entries that every row writes at once. The next row overwrites the surplus ones.
const LANES: usize = 8;
/// Mean bytes per token above which writing the table costs more than searching.
const SPARSE: i64 = 16;
/// Number of tokens of both sides below which clearing the table costs more than it saves.
const FEW: usize = 128;

/// Writes the range of each student span, with rows numbered from `base`, and returns true.
///
/// Returns false, with unspecified contents of `out`, if the table would be wrong or slower than the search: few or
/// sparse tokens, teacher spans that do not tile, student spans that are out of order or empty.
///
/// The spans are checked while they are read: two passes over them first would double the cost.
pub(crate) fn align<T: Offset>(student: &[Span<T>], teacher: &[Span<T>], base: i32, out: &mut [TokenRange]) -> bool {
    let Some([text_start, text_end]) = text_of(student.len(), teacher) else {
        return false;
    };
    // Numbers of leading student tokens that end before the teacher's text, start before it, end before its end,
    // start before its end.
    let before = student.partition_point(|span| span[1] <= text_start);
    let begun = student.partition_point(|span| span[0] < text_start).max(before);
    let whole = student.partition_point(|span| span[1] <= text_end).max(before);
    let inside = student.partition_point(|span| span[0] < text_end).max(whole);
    let mut order = Order::default();
    let sorted = student[..begun].iter().chain(&student[inside..]).fold(true, |ok, span| ok & order.follows(span));
    if !sorted || begun > inside {
        return false;
    }
    out[..before].fill(UNMAPPED);
    out[inside..].fill(UNMAPPED);
    out[before..begun].fill([base; 2]);
    order = Order { previous: begun.checked_sub(1).map(|last| student[last]) };
    let mut table = [0; WINDOW + LANES];
    let (mut starts, mut ends) = (begun, before); // student tokens whose first row, whose last row is known
    let (mut window, mut row) = (text_start, 0);
    while starts < inside || ends < whole {
        let window_end = text_end.min(window.later(WINDOW_BYTES));
        let next_row = seek(teacher, row, false, |span| span[0] < window_end);
        if window_end <= window || !write_rows(&teacher[row..next_row], window, &mut table) {
            return false;
        }
        let number = base + to_row(row);
        let first_of = |span: &Span<T>| number + i32::from(table[span[0].bytes_from(window) & MASK]);
        let stop_of = |span: &Span<T>| number + i32::from(table[(span[1].bytes_from(window) - 1) & MASK]) + 1;

        let end_here = seek(&student[..whole], ends, false, |span| span[1] <= window_end);
        let (known, new) = (starts.min(end_here), starts.max(end_here));
        for (span, range) in student[ends..known].iter().zip(&mut out[ends..known]) {
            range[1] = stop_of(span); // the token starts in an earlier window
        }
        let last_end = order.previous.map_or(0, |span| span[1].bytes_from(window).wrapping_sub(1));
        let last_end = if order.previous.is_some_and(|span| span[1] > window) { last_end } else { 0 };
        if !write_ranges(&student[known..end_here], window, number, last_end, &table, &mut out[known..end_here]) {
            return false;
        }
        order.previous = student[..new].last().copied();
        let start_here = seek(&student[..inside], new, false, |span| span[0] < window_end);
        for (span, range) in student[new..start_here].iter().zip(&mut out[new..start_here]) {
            if span[0] < window || !order.follows(span) {
                return false;
            }
            range[0] = first_of(span);
        }
        (starts, ends) = (start_here, end_here);
        // The last row extends past the window or ends with it. In the second case the next row must start there,
        // which `write_rows` checks. A row that ends earlier leaves a hole.
        let end = teacher[next_row - 1][1];
        if end < window_end {
            return false;
        }
        let extends_past = end > window_end;
        (window, row) = (window_end, next_row - usize::from(extends_past));
    }
    for range in &mut out[whole.max(ends)..inside] {
        range[1] = base + to_row(teacher.len());
    }
    tile(&teacher[row.saturating_sub(1)..]) // rows after the last student token
}

/// Whether every span starts where its predecessor ends, and none is empty.
fn tile<T: Offset>(spans: &[Span<T>]) -> bool {
    let mut pairs = spans.iter().zip(spans.get(1..).unwrap_or_default());
    pairs.all(|(a, b)| a[1] == b[0]) && spans.iter().all(|span| span[0] < span[1])
}

/// Start and end of the teacher's text; `None` if the table does not pay off.
fn text_of<T: Offset>(num_student: usize, teacher: &[Span<T>]) -> Option<Span<T>> {
    let (start, end) = (teacher.first()?[0], teacher.last()?[1]);
    let tokens = num_student.saturating_add(teacher.len());
    let limit = i64::try_from(tokens).ok()?.saturating_mul(SPARSE);
    let bytes = end.into().checked_sub(start.into())?;
    (tokens >= FEW && (1..=limit).contains(&bytes)).then_some([start, end])
}

/// Checks that spans are sorted and not empty.
struct Order<T> {
    previous: Option<Span<T>>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { previous: None }
    }
}

impl<T: Offset> Order<T> {
    fn follows(&mut self, span: &Span<T>) -> bool {
        let follows = self.previous.is_none_or(|previous| previous[0] <= span[0] && previous[1] <= span[1]);
        self.previous = Some(*span);
        follows && span[0] < span[1]
    }
}

/// Writes into `table` for each byte of the window which row holds it. The first row holds the window's first byte.
/// Returns whether each row starts where its predecessor ends, and none is empty.
#[inline(never)] // its loop needs all registers: inlined it was half as fast
fn write_rows<T: Offset>(rows: &[Span<T>], window: T, table: &mut [u16; WINDOW + LANES]) -> bool {
    let Some(&[mut expected, _]) = rows.first() else {
        return false;
    };
    let mut tiles = expected <= window;
    let (mut at, mut lanes) = (0, [0_u16; LANES]);
    for &[start, end] in rows {
        tiles &= start == expected;
        expected = end;
        let place = at & MASK;
        table[place..place + LANES].copy_from_slice(&lanes);
        let stop = end.bytes_from(window);
        let after_first = stop.wrapping_sub(at).wrapping_sub(1); // bytes after the row's first byte
        if after_first >= LANES {
            if stop <= at {
                return false; // an empty row
            }
            table[place..stop.min(WINDOW).max(place)].fill(lanes[0]);
        }
        at = stop;
        lanes = lanes.map(|number| number.wrapping_add(1));
    }
    tiles
}

/// Writes the ranges of student spans that lie inside the window. Returns whether they do, are sorted and not empty.
/// The last byte of the span before them is at `last_end`.
#[inline(never)] // as above
fn write_ranges<T: Offset>(
    spans: &[Span<T>],
    window: T,
    number: i32,
    last_end: usize,
    table: &[u16; WINDOW + LANES],
    out: &mut [TokenRange],
) -> bool {
    // Offsets inside a window are below 2^12, and so are the steps between them. A span outside the window, a step
    // back or an empty span sets a higher bit.
    let mut bits = 0;
    let (mut last_start, mut last_end) = (0, last_end);
    for (&[start, end], range) in spans.iter().zip(out) {
        let (first, last) = (start.bytes_from(window), end.bytes_from(window).wrapping_sub(1));
        bits |= first | last;
        bits |= first.wrapping_sub(last_start) | last.wrapping_sub(last_end) | last.wrapping_sub(first);
        (last_start, last_end) = (first, last);
        *range = [number + i32::from(table[first & MASK]), number + i32::from(table[last & MASK]) + 1];
    }
    bits & !MASK == 0
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn spans(lengths: impl IntoIterator<Item = i32>) -> Vec<Span<i32>> {
        let mut end = 0;
        let tiled = lengths.into_iter().map(|length| {
            end += length;
            [end - length, end]
        });
        tiled.collect()
    }

    fn aligned(student: &[Span<i32>], teacher: &[Span<i32>]) -> Option<Vec<TokenRange>> {
        let mut out = vec![[7; 2]; student.len()];
        align(student, teacher, 10, &mut out).then_some(out)
    }

    #[test]
    fn tokens_across_windows() {
        let (student, teacher) = (spans([30; 333]), spans([10; 999])); // 4,096 lies inside tokens of both
        let expected: Vec<TokenRange> = (0..333).map(|row| [10 + 3 * row, 13 + 3 * row]).collect();
        assert_eq!(aligned(&student, &teacher), Some(expected));
        let back: Vec<TokenRange> = (0..999).map(|row| [10 + row / 3, 11 + row / 3]).collect();
        assert_eq!(aligned(&teacher, &student), Some(back));
    }

    #[test]
    fn a_token_longer_than_the_window() {
        let (long, short) = (spans([9_000]), spans([10; 900]));
        assert_eq!(aligned(&long, &short), Some(vec![[10, 910]]));
        assert_eq!(aligned(&short, &long), Some(vec![[10, 11]; 900]));
    }

    #[test]
    fn a_teacher_that_covers_less_or_more() {
        let student = spans([3; 200]);
        let teacher: Vec<_> = spans([2; 200]).into_iter().map(|span| span.map(|at| at + 100)).collect();
        let ranges = aligned(&student, &teacher).unwrap_or_default();
        assert_eq!(ranges[..33], [UNMAPPED; 33]);
        assert_eq!(ranges[33..35], [[10, 11], [11, 13]]); // bytes 99 to 102, 102 to 105
        assert_eq!(ranges[166..168], [[209, 210], UNMAPPED]); // bytes 498 to 501, from 501
    }

    #[test]
    fn a_hole_that_ends_at_the_border_of_a_window() {
        let (student, mut teacher) = (spans([2; 4_000]), spans([4; 2_000]));
        teacher[1_023] = [4_092, 4_094];
        assert!(aligned(&student, &teacher).is_none());
        teacher.drain(25..1_024); // no row holds bytes 100 to 4,096
        assert!(aligned(&student, &teacher).is_none());
    }

    #[test]
    fn disorder_at_the_border_of_a_window() {
        let (student, teacher) = (spans([8; 1_000]), spans([4; 2_000]));
        assert!(aligned(&student, &teacher).is_some());
        for border in [[4_088, 4_100], [4_097, 4_100]] {
            let mut teacher = teacher.clone();
            teacher[1_024] = border; // the row that starts at 4,096
            assert!(aligned(&student, &teacher).is_none(), "{border:?}");
        }
        let mut student = student;
        (student[511], student[512]) = ([4_088, 4_110], [4_096, 4_104]); // extends past, then ends before it
        assert!(aligned(&student, &teacher).is_none());
    }

    #[test]
    fn inputs_that_the_search_handles() {
        let (student, teacher) = (spans([3; 200]), spans([2; 300]));
        assert!(aligned(&student, &teacher).is_some());
        assert!(aligned(&student[..3], &teacher[..3]).is_none(), "few");
        assert!(aligned(&spans([200; 200]), &spans([100; 400])).is_none(), "sparse");
        assert!(aligned(&student, &[]).is_none());
        for (at, span) in [(0, [5, 6]), (100, [300, 300]), (100, [290, 303]), (199, [3, 6]), (150, [451, 450])] {
            let mut student = student.clone();
            student[at] = span;
            assert!(aligned(&student, &teacher).is_none(), "{at} {span:?}");
        }
        for (at, span) in [(100, [200, 200]), (100, [201, 202]), (100, [199, 202]), (299, [590, 600]), (0, [0, 3])] {
            let mut teacher = teacher.clone();
            teacher[at] = span;
            assert!(aligned(&student, &teacher).is_none(), "{at} {span:?}");
        }
    }
}
