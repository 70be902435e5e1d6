//! The definitions, as directly as they can be written; slow and obvious. The fuzz targets use them as well.
#![allow(dead_code, reason = "every target uses some")]

use std::collections::BTreeSet;

use vocagno::{Reduction, Span, TokenRange, UNMAPPED};

/// Algorithm 1 word by word, O(N * M).
pub(crate) fn align(student: &[Span<i64>], teacher: &[Span<i64>]) -> Vec<TokenRange> {
    let overlaps = |a: &Span<i64>, b: &Span<i64>| a[0] < a[1] && b[0] < b[1] && a[0] < b[1] && b[0] < a[1];
    let range = |span: &Span<i64>| {
        let first = teacher.iter().position(|other| overlaps(span, other));
        let last = teacher.iter().rposition(|other| overlaps(span, other));
        first.zip(last).map_or(UNMAPPED, |(first, last)| [index(first), index(last) + 1])
    };
    student.iter().map(range).collect()
}

/// The teacher row that starts where each student token starts, O(N * M); -1 without one. A token starts at its first
/// byte if no token before it reaches beyond that.
pub(crate) fn starts(student: &[Span<i64>], teacher: &[Span<i64>]) -> Vec<i32> {
    let starts_at = |spans: &[Span<i64>], token: usize, place: i64| {
        let is_filled = |span: &&Span<i64>| span[0] < span[1];
        let before = spans[..token].iter().filter(is_filled).all(|span| span[1] <= place);
        before && spans[token][0] == place && place < spans[token][1]
    };
    let row = |token: usize| {
        let place = student[token][0];
        (0..teacher.len()).find(|&row| starts_at(student, token, place) && starts_at(teacher, row, place))
    };
    (0..student.len()).map(|token| row(token).map_or(-1, index)).collect()
}

/// IoU and IoS of a student span with the teacher rows of a range, counted byte by byte; few and small ones.
pub(crate) fn overlap([start, end]: Span<i64>, teacher: &[Span<i64>], [first, stop]: TokenRange) -> [f64; 2] {
    let own: BTreeSet<i64> = (start..end).collect();
    let rows = usize::try_from(first).unwrap_or(0)..usize::try_from(stop).unwrap_or(0);
    let other: BTreeSet<i64> = teacher[rows].iter().flat_map(|&[start, end]| start..end).collect();
    let count = |bytes: usize| f64::from(index(bytes));
    let shared = count(own.intersection(&other).count());
    [shared / count(own.union(&other).count()), shared / count(own.len())]
        .map(|share| if own.is_empty() { f64::NAN } else { share })
}

/// Rows of both sides between neighbouring cuts, ends that no token lies across; where there are some of both sides.
pub(crate) fn groups(student: &[Span<i64>], teacher: &[Span<i64>]) -> Vec<[TokenRange; 2]> {
    let tokens: Vec<_> = student.iter().chain(teacher).filter(|span| span[0] < span[1]).collect();
    let ends: BTreeSet<i64> = tokens.iter().map(|span| span[1]).collect();
    let is_cut = |&&end: &&i64| !tokens.iter().any(|span| span[0] < end && end < span[1]);
    let cuts: Vec<i64> = ends.iter().filter(is_cut).copied().collect();
    let rows = |spans: &[Span<i64>], before: i64, cut: i64| {
        let inside = |span: &Span<i64>| span[0] < span[1] && before <= span[0] && span[1] <= cut;
        spans
            .iter()
            .position(inside)
            .zip(spans.iter().rposition(inside))
            .map(|(first, last)| [index(first), index(last) + 1])
    };
    let before = std::iter::once(i64::MIN).chain(cuts.iter().copied());
    let both = |(before, &cut)| rows(student, before, cut).zip(rows(teacher, before, cut));
    before.zip(&cuts).filter_map(both).map(|(own, other)| [own, other]).collect()
}

/// The first non-empty teacher span that is out of order.
pub(crate) fn unsorted(teacher: &[Span<i64>]) -> Option<usize> {
    let filled: Vec<usize> = (0..teacher.len()).filter(|&at| teacher[at][0] < teacher[at][1]).collect();
    let decreases = |pair: &&[usize]| (0..2).any(|end| teacher[pair[1]][end] < teacher[pair[0]][end]);
    filled.windows(2).find(decreases).map(|pair| pair[1])
}

pub(crate) fn index(value: usize) -> i32 {
    i32::try_from(value).expect("small")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "few and small numbers")]
pub(crate) fn reduce(losses: &[f64], [first, stop]: TokenRange, how: Reduction) -> f32 {
    let rows = usize::try_from(first).unwrap_or(0)..usize::try_from(stop).unwrap_or(0);
    let kept: Vec<f64> = losses[rows].iter().copied().filter(|loss| loss.is_finite()).collect();
    if kept.is_empty() {
        return f32::NAN;
    }
    let sum = || kept.iter().skip(1).fold(kept[0], |sum, loss| sum + loss);
    (match how {
        Reduction::Max => kept.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Reduction::Min => kept.iter().copied().fold(f64::INFINITY, f64::min),
        Reduction::Sum => sum(),
        Reduction::Mean => kept.iter().fold(0.0, |sum, loss| sum + loss) / kept.len() as f64,
        other => unreachable!("{other:?} has no definition here"),
    }) as f32
}

/// Whether the union of the non-empty spans is the whole text.
pub(crate) fn covers(spans: &[Span<i32>], text: &str) -> bool {
    let mut covered = 0;
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    for [start, end] in sorted {
        if start < end && start <= covered {
            covered = covered.max(end);
        }
    }
    covered == index(text.len())
}

/// Spans of tokens over a text of which some bytes are dropped, given the token of each byte that is not. Every dropped
/// byte gets a token: that of its character's byte before it, else of the one behind it; for a character without
/// any, that of the byte before it, or for white space of the byte behind it.
pub(crate) fn spans_over_dropped(text: &str, dropped: &BTreeSet<u8>, of_kept: &[i32]) -> Vec<Span<i32>> {
    let mut of_kept = of_kept.iter().copied();
    let owners: Vec<Option<i32>> =
        text.bytes().map(|byte| if dropped.contains(&byte) { None } else { of_kept.next() }).collect();
    let first = |range: std::ops::Range<usize>| owners[range].iter().copied().find_map(|owner| owner);
    let last = |range: std::ops::Range<usize>| owners[range].iter().rev().copied().find_map(|owner| owner);
    let mut spans: Vec<Span<i32>> = Vec::new();
    for (start, c) in text.char_indices() {
        let end = start + c.len_utf8();
        let next_kept = (end..owners.len()).find(|&at| owners[at].is_some());
        let blank_until_next = next_kept.is_some_and(|next| {
            let next = (0..=next).rev().find(|&at| text.is_char_boundary(at)).expect("0 is one");
            text[start..next].chars().all(char::is_whitespace)
        });
        for at in start..end {
            let in_character = last(start..at + 1).or_else(|| first(at..end));
            let beside = [last(0..start), first(end..owners.len())];
            let [one, other] = if blank_until_next { [beside[1], beside[0]] } else { beside };
            let Some(owner) = in_character.or(one).or(other) else { continue };
            while spans.len() <= usize::try_from(owner).expect("positive") {
                spans.push([index(at); 2]);
            }
            spans[usize::try_from(owner).expect("positive")][1] = index(at) + 1;
        }
    }
    spans
}

/// Row boundaries of rows of these lengths.
pub(crate) fn boundaries(lengths: impl Iterator<Item = usize>) -> Vec<i64> {
    let mut sum = 0;
    let ends = lengths.map(|length| {
        sum += i64::try_from(length).expect("small");
        sum
    });
    [0].into_iter().chain(ends).collect()
}
