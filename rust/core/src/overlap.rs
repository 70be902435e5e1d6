//! How much text student tokens share with the teacher tokens that they are mapped to.

use alloc::vec::Vec;
use core::ops;

use crate::batch::{Batch, one_row};
use crate::checks::expect_len;
use crate::error::{Error, Input};
use crate::mapping::{TokenRange, expect_rows, resolve_in_text};
use crate::memory::with_room;
use crate::offset::{Offset, Span};
use crate::ordered::non_empty;

/// How much text each student token shares with the teacher tokens of its range, from 0 to 1. `s` is its own span,
/// `t` the union of the non-empty teacher spans in the range. NaN for a token with an empty span.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Overlap {
    /// |s ∩ t| / |s ∪ t|.
    pub iou: Vec<f64>,
    /// |s ∩ t| / |s|: the share of the student token that the teacher tokens cover.
    pub ios: Vec<f64>,
}

/// The [`Overlap`] of each student token with the teacher tokens that it is mapped to. 0 for an unmapped token with a
/// non-empty span, NaN for an empty span.
///
/// `mapping` may be any mapping into the teacher's rows, for example from [`align`](crate::align) or from chunks. A
/// range may miss text of the token or lie far away from it. Teacher spans may repeat, nest and leave holes. Empty
/// ones may appear anywhere.
///
/// Time `O(M + N log M)` for ranges of any length, memory `O(M)`. Never panics.
///
/// Source: arXiv 2503.19123, section 2 and Fig. 3.
///
/// # Errors
/// [`Error::Length`] for a mapping of another length, [`Error::Range`] for a range that is neither
/// [`UNMAPPED`](crate::UNMAPPED) nor a range of teacher rows, [`Error::Memory`]; teacher spans as in
/// [`align`](crate::align).
///
/// # Example
/// ```
/// use vocagno::{align, overlap};
///
/// let (student, teacher) = ([[0, 5], [5, 9]], [[0, 2], [2, 7], [7, 9]]); // proof|read, pr|oofre|ad
/// let mapping = align(&student, &teacher)?; // pr|oofre, oofre|ad
/// let overlap = overlap(&student, &teacher, &mapping)?;
/// assert_eq!(overlap.ios, [1.0, 1.0]);
/// assert_eq!(overlap.iou, [5.0 / 7.0, 4.0 / 7.0]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn overlap<T: Offset>(student: &[Span<T>], teacher: &[Span<T>], mapping: &[TokenRange]) -> Result<Overlap, Error> {
    overlap_batch(&Batch::new(student, &one_row(student), teacher, &one_row(teacher))?, mapping)
}

/// [`overlap`] for every row of a ragged batch. `mapping` numbers teacher rows flat over the whole batch.
///
/// # Errors
/// As [`overlap`], and [`Error::OtherText`] for a range of teacher rows of another text.
pub fn overlap_batch<T: Offset>(batch: &Batch<'_, T>, mapping: &[TokenRange]) -> Result<Overlap, Error> {
    let (student, teacher) = (batch.student, batch.teacher);
    expect_len(Input::Mapping, student.len(), mapping.len())?;
    expect_rows(Input::Teacher, teacher.len())?;

    let num_tokens = batch.student_rows().num_tokens();
    let mut overlap = Overlap { iou: with_room(num_tokens)?, ios: with_room(num_tokens)? };
    for (row, tokens, others) in batch.iter() {
        let text = Text::checked(teacher, others, row)?;
        for token in tokens {
            let own = resolve_in_text(token, mapping[token], row, &text.all, teacher.len())?;
            let range = own.map_or(0..0, |own| text.index(own.start)..text.index(own.end));
            let [iou, ios] = text.shares(student[token], range);
            overlap.iou.push(iou);
            overlap.ios.push(ios);
        }
    }
    Ok(overlap)
}

/// The teacher's non-empty spans of one text, sorted.
struct Text<T> {
    spans: Vec<Span<T>>,
    /// The flat row of each span.
    rows: Vec<i32>,
    /// How much text the first `0, 1, ..., spans.len()` spans cover. Repeated and nested parts count once.
    covered: Vec<u64>,
    /// All flat rows of the text, including those of empty spans.
    all: ops::Range<usize>,
}

impl<T: Offset> Text<T> {
    fn checked(teacher: &[Span<T>], all: ops::Range<usize>, row: usize) -> Result<Self, Error> {
        let (spans, rows) = non_empty(Input::Teacher, &teacher[all.clone()], row, all.start)?;
        let (mut total, mut reach) = (0, T::MIN);
        let added = spans.iter().map(|&[start, end]| {
            total += length([start.max(reach), end]);
            reach = end; // ends do not decrease
            total
        });
        let mut covered = with_room(spans.len() + 1)?;
        covered.extend([0].into_iter().chain(added));
        Ok(Self { spans, rows, covered, all })
    }

    /// Number of spans before a flat row of this text.
    fn index(&self, flat: usize) -> usize {
        let before = flat - self.all.start; // rows before it, some of which may be empty spans
        // At most as many rows are missing from `rows` as there are empty spans: a small window holds the answer.
        let low = before.saturating_sub(self.all.len() - self.spans.len());
        let window = self.rows.get(low..before.min(self.rows.len())).unwrap_or_default();
        low + window.partition_point(|&row| usize::try_from(row).is_ok_and(|row| row < flat))
    }

    /// How much text the union of the spans of a range covers.
    fn length(&self, range: ops::Range<usize>) -> u64 {
        // Text that the first span shares with earlier spans counts too, so the first span is added whole.
        match self.spans.get(range.start) {
            Some(&first) if !range.is_empty() => {
                length(first) + (self.covered[range.end] - self.covered[range.start + 1])
            }
            _ => 0,
        }
    }

    /// How much of a student span the spans of a range cover.
    fn shared(&self, [start, end]: Span<T>, range: &ops::Range<usize>) -> u64 {
        let spans = &self.spans[range.clone()];
        let low = range.start + spans.partition_point(|span| span[1] <= start);
        let high = range.start + spans.partition_point(|span| span[0] < end);
        if low >= high {
            return 0;
        }
        // All these spans overlap the student span. The first starts first and the last ends last, so the parts that
        // they cover outside have no holes.
        self.length(low..high) - length([self.spans[low][0], start]) - length([end, self.spans[high - 1][1]])
    }

    /// IoU and IoS of a student span with the spans of a range.
    fn shares(&self, span: Span<T>, range: ops::Range<usize>) -> [f64; 2] {
        let own = length(span);
        if own == 0 {
            return [f64::NAN; 2];
        }
        let shared = self.shared(span, &range);
        [ratio(shared, own + (self.length(range) - shared)), ratio(shared, own)]
    }
}

/// Length of a span, 0 for an empty one. Sums over disjoint spans do not overflow.
fn length<T: Offset>([start, end]: Span<T>) -> u64 {
    if start < end { end.into().abs_diff(start.into()) } else { 0 }
}

#[expect(clippy::cast_precision_loss, reason = "rounding to the precision of the result")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::mapping::UNMAPPED;

    /// IoU and IoS of one student token with a range of teacher rows.
    fn shares(student: Span<i64>, teacher: &[Span<i64>], range: TokenRange) -> Result<[f64; 2], Error> {
        let found = overlap(&[student], teacher, &[range])?;
        Ok([found.iou[0], found.ios[0]])
    }

    #[test]
    fn repeats_nested_spans_and_holes_count_once() {
        let repeated = [[0, 4]; 5];
        assert_eq!(shares([0, 2], &repeated, [0, 5]), Ok([0.5, 1.0]));
        let nested = [[0, 2], [1, 8], [7, 8]];
        assert_eq!(shares([1, 5], &nested, [0, 3]), Ok([0.5, 1.0]));
        assert_eq!(shares([1, 5], &nested, [1, 3]), Ok([4.0 / 7.0, 1.0]));
        assert_eq!(shares([1, 5], &nested, [2, 3]), Ok([0.0, 0.0]));
        let holes = [[0, 2], [4, 6], [9, 10]];
        assert_eq!(shares([1, 5], &holes, [0, 3]), Ok([2.0 / 7.0, 0.5]));
        assert_eq!(shares([2, 4], &holes, [0, 3]), Ok([0.0, 0.0]));
    }

    #[test]
    fn empty_teacher_rows_cover_nothing() {
        let teacher = [[0, 0], [0, 2], [7, 7], [9, 1], [2, 4], [0, 0]];
        assert_eq!(shares([0, 4], &teacher, [0, 6]), Ok([1.0, 1.0]));
        assert_eq!(shares([0, 4], &teacher, [1, 4]), Ok([0.5, 0.5]));
        assert_eq!(shares([0, 4], &teacher, [2, 4]), Ok([0.0, 0.0]));
        assert_eq!(shares([3, 4], &teacher, [4, 6]), Ok([0.5, 1.0]));
    }

    #[test]
    fn unmapped_and_empty_student_tokens() {
        assert_eq!(shares([0, 4], &[[0, 4]], UNMAPPED), Ok([0.0, 0.0]));
        let empty = shares([4, 4], &[[0, 4]], [0, 1]).unwrap_or_default();
        assert!(empty.iter().all(|share| share.is_nan()));
    }

    #[test]
    fn the_longest_spans_do_not_overflow() {
        let all = [i64::MIN, i64::MAX];
        assert_eq!(shares(all, &[all, all], [0, 2]), Ok([1.0, 1.0]));
        assert_eq!(shares(all, &[[i64::MIN, 0], [0, i64::MAX]], [0, 2]), Ok([1.0, 1.0]));
        assert_eq!(shares([i64::MIN, 0], &[[0, i64::MAX]], [0, 1]), Ok([0.0, 0.0]));
    }

    #[test]
    fn rows_of_another_text_are_refused() {
        let spans = [[0, 1], [5, 6], [0, 1]];
        let with =
            |mapping: [TokenRange; 3]| overlap_batch(&Batch::new(&spans, &[0, 2, 3], &spans, &[0, 2, 3])?, &mapping);
        assert_eq!(with([[0, 1], [0, 2], [2, 3]]).map(|found| found.ios), Ok(vec![1.0; 3]));
        let error = with([[0, 1], [1, 3], [2, 3]]).map_err(|error| error.to_string());
        let message = "mapping: token 1: expected teacher rows 0 to 2, those of its text, row 0, got (1, 3)";
        assert_eq!(error, Err(message.to_owned()));
        let range = Error::Range { token: 2, range: [2, 4], items: "teacher tokens", len: 3 };
        assert_eq!(with([UNMAPPED, UNMAPPED, [2, 4]]), Err(range));
        let batch = Batch::new(&spans, &[0, 2, 3], &[[5, 9], [3, 4]], &[0, 0, 2]);
        let error = batch.and_then(|batch| overlap_batch(&batch, &[UNMAPPED; 3]));
        assert!(matches!(error, Err(Error::Unsorted { row: 1, token: 1, .. })));
    }
}
