//! The mapping from student tokens to teacher tokens, for one text or a ragged batch.

use alloc::vec::Vec;

use crate::batch::Batch;
use crate::checks::expect_len;
use crate::error::{Error, Input};
use crate::mapping::{TokenRange, UNMAPPED, expect_rows, to_row};
use crate::memory::filled_with;
use crate::offset::{Offset, Span};
use crate::ordered::{all_in_order, filled, non_empty};
use crate::{search, tiling};

/// Maps each student span to the half-open range of teacher rows, from the first to the last non-empty
/// teacher span that overlaps it; [`UNMAPPED`] if there is none or the student span is empty.
///
/// Both sides use one unit (bytes or characters). Empty teacher spans (special tokens, padding) may appear
/// anywhere. They do not affect any range, but their rows may lie inside one. Student spans need no order.
///
/// Time `O(N log M)`, `O(N + M)` if the student spans are sorted too. Extra memory is needed only if empty
/// teacher spans lie between others. Never panics.
///
/// Source: arXiv 2503.19123, Algorithm 1.
///
/// # Errors
/// [`Error::Unsorted`]: a non-empty teacher span starts or ends before its predecessor, so a search
/// would skip tokens. [`Error::TooMany`]: 2^31 teacher rows or more. [`Error::Memory`].
///
/// # Example
/// ```
/// let (student, teacher) = ([[0, 5], [5, 9]], [[0, 2], [2, 7], [7, 9]]); // proof|read, pr|oofre|ad
/// assert_eq!(vocagno::align(&student, &teacher)?, [[0, 2], [1, 3]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn align<T: Offset>(student: &[Span<T>], teacher: &[Span<T>]) -> Result<Vec<TokenRange>, Error> {
    let mut out = filled_with([0; 2], student.len())?;
    align_into(student, teacher, &mut out)?;
    Ok(out)
}

/// [`align`] into a slice with one range per student span.
///
/// # Errors
/// As [`align`], and [`Error::Length`] for a slice of another length. After an error the contents of
/// `out` are unspecified.
pub fn align_into<T: Offset>(student: &[Span<T>], teacher: &[Span<T>], out: &mut [TokenRange]) -> Result<(), Error> {
    expect_len(Input::Out, student.len(), out.len())?;
    expect_rows(Input::Teacher, teacher.len())?;
    align_row(student, teacher, 0, 0, out)
}

/// [`align`] for every row of a ragged batch. The ranges number teacher rows flat over the whole batch.
///
/// # Errors
/// As [`align`].
///
/// # Example
/// ```
/// use vocagno::batch::Batch;
/// use vocagno::mapping::align_batch;
///
/// let (spans, cu_seqlens) = ([[0, 5], [5, 9], [0, 7]], [0, 2, 3]); // two texts
/// let batch = Batch::new(&spans, &cu_seqlens, &spans, &cu_seqlens)?;
/// assert_eq!(align_batch(&batch)?, [[0, 1], [1, 2], [2, 3]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn align_batch<T: Offset>(batch: &Batch<'_, T>) -> Result<Vec<TokenRange>, Error> {
    let mut out = filled_with([0; 2], batch.student_rows().num_tokens())?;
    align_batch_into(batch, &mut out)?;
    Ok(out)
}

/// [`align_batch`] into a slice with one range per student token of the batch, or of this [part](Batch::split) of it.
///
/// # Errors
/// As [`align_into`].
pub fn align_batch_into<T: Offset>(batch: &Batch<'_, T>, out: &mut [TokenRange]) -> Result<(), Error> {
    expect_rows(Input::Teacher, batch.teacher.len())?;
    batch.for_each(out, |row, student, teacher, base, row_out| align_row(student, teacher, row, base, row_out))
}

/// One row of a batch whose teacher spans begin at the flat row `base`.
fn align_row<T: Offset>(
    student: &[Span<T>],
    teacher: &[Span<T>],
    row: usize,
    base: usize,
    out: &mut [TokenRange],
) -> Result<(), Error> {
    // BOS, EOS and padding are usually at the ends. Without them most rows need no list of row numbers.
    let (inner, kept) = (filled(student), filled(teacher));
    let (first_row, kept) = (base + kept.start, &teacher[kept]);
    if tiling::align(&student[inner.clone()], kept, to_row(first_row), &mut out[inner.clone()]) {
        out[..inner.start].fill(UNMAPPED);
        out[inner.end..].fill(UNMAPPED);
    } else if all_in_order(kept) {
        search::align(student, kept, out, |index| to_row(first_row + index));
    } else {
        let (spans, rows) = non_empty(Input::Teacher, teacher, row, base)?;
        search::align(student, &spans, out, |index| rows[index]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn eos_or_padding_at_zero_stays_out_of_the_last_range() {
        let student = [[0, 3], [3, 9], [0, 0]];
        let teacher = [[0, 0], [0, 2], [2, 5], [5, 9], [0, 0], [0, 0], [0, 0]];
        assert_eq!(align(&student, &teacher), Ok(vec![[1, 3], [2, 4], UNMAPPED]));
    }

    #[test]
    fn empty_teacher_spans_inside_a_range_are_skipped_as_ends() {
        let teacher = [[0, 2], [0, 0], [2, 4], [7, 7], [4, 6]];
        assert_eq!(align(&[[0, 4], [2, 3], [5, 6]], &teacher), Ok(vec![[0, 3], [2, 3], [4, 5]]));
    }

    #[test]
    fn nested_and_repeated_teacher_spans_all_count() {
        assert_eq!(align(&[[6, 7], [7, 8], [6, 8]], &[[6, 8], [7, 8]]), Ok(vec![[0, 1], [0, 2], [0, 2]]));
        // U+1F60A in byte fallback: a marker and four bytes, all at (0, 1).
        let bytes = [[0, 1]; 5];
        assert_eq!(align(&[[0, 1], [1, 2]], &bytes), Ok(vec![[0, 5], UNMAPPED]));
        assert_eq!(align(&bytes, &[[0, 1]]), Ok(vec![[0, 1]; 5]));
    }

    #[test]
    fn a_lone_dummy_prefix_over_a_character_overlaps_what_the_character_overlaps() {
        assert_eq!(align(&[[0, 1]], &[[0, 1], [0, 1]]), Ok(vec![[0, 2]]));
        assert_eq!(align(&[[0, 1]], &[[0, 0], [0, 3]]), Ok(vec![[1, 2]]));
    }

    #[test]
    fn gaps_and_ends_are_unmapped() {
        let teacher = [[0, 2], [5, 6]];
        assert_eq!(align(&[[2, 5], [6, 9], [4, 6]], &teacher), Ok(vec![UNMAPPED, UNMAPPED, [1, 2]]));
        assert_eq!(align::<i32>(&[], &teacher), Ok(vec![]));
        assert_eq!(align(&[[0, 1]], &[]), Ok(vec![UNMAPPED]));
        assert_eq!(align(&[[0, 1]], &[[3, 3], [0, 0]]), Ok(vec![UNMAPPED]));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let all = [[i64::MIN, i64::MAX]];
        assert_eq!(align(&all, &all), Ok(vec![[0, 1]]));
        assert_eq!(align(&[[i64::MAX, i64::MIN]], &all), Ok(vec![UNMAPPED]));
        let halves = [[i32::MIN, 0], [0, i32::MAX]];
        assert_eq!(align(&[[i32::MIN, i32::MAX], [-1, 0], [0, 1]], &halves), Ok(vec![[0, 2], [0, 1], [1, 2]]));
    }

    #[test]
    fn teacher_spans_out_of_order_are_refused_with_row_and_token() {
        let teacher = [[0, 4], [0, 0], [2, 3]];
        let error = align(&[[0, 1]], &teacher).map_err(|error| error.to_string());
        let message = "teacher: row 0, token 2: span (2, 3) comes after (0, 4), \
                       but non-empty spans must not decrease in start or end";
        assert_eq!(error, Err(message.to_owned()));
        let flat = [[0, 9], [5, 6], [4, 9]];
        let batch = Batch::new(&[[0, 1], [0, 1]], &[0, 1, 2], &flat, &[0, 1, 3]);
        let refused = batch.and_then(|batch| align_batch(&batch));
        let expected = Error::Unsorted { input: Input::Teacher, row: 1, token: 1, previous: [5, 6], span: [4, 9] };
        assert_eq!(refused, Err(expected));
    }

    #[test]
    fn a_batch_numbers_flat_teacher_rows() -> Result<(), Error> {
        let (student, teacher) = ([[0, 2], [0, 2], [2, 4]], [[0, 1], [1, 2], [0, 3], [3, 4]]);
        let batch = Batch::new(&student, &[0, 1, 1, 3], &teacher, &[0, 2, 2, 4])?;
        assert_eq!(align_batch(&batch)?, [[0, 2], [2, 3], [2, 4]]);
        let refused = align_batch_into(&batch, &mut [[7; 2]; 2]);
        assert_eq!(refused, Err(Error::Length { input: Input::Out, expected: 3, got: 2 }));
        let refused = Batch::new(&student, &[0, 3], &teacher, &[0, 2, 4]).map(|_| ());
        assert_eq!(refused, Err(Error::Length { input: Input::TeacherCuSeqlens, expected: 2, got: 3 }));
        Ok(())
    }

    #[test]
    fn far_jumps_in_both_directions() {
        let teacher: Vec<Span<i32>> = (0..10_000).map(|i| [i, i + 1]).collect();
        let student: Vec<Span<i32>> = (0..10_000).map(|i| i * 7_919 % 10_000).map(|i| [i, i + 1]).collect();
        assert_eq!(align(&student, &teacher), Ok(student.clone()));
    }
}
