//! Where both tokenizations start a token: the teacher token that starts at the byte at which a student token starts.

use alloc::vec::Vec;

use crate::batch::Batch;
use crate::error::{Error, Input};
use crate::mapping::{expect_rows, to_row};
use crate::memory::filled_with;
use crate::offset::{Offset, Span, is_empty};
use crate::ordered::expect_order;

/// Finds, for each student token, the row of the teacher token that starts at the same place in the text; -1 if there
/// is none. There is at most one, and no teacher row is found twice.
///
/// A token *starts* where its span starts if the span is not empty and the non-empty span before it ends there or
/// earlier. So empty spans (special tokens, padding) start nowhere. Of several tokens with the span of one character,
/// the first one starts where the character starts. The others start inside it, and nobody knows where. The same
/// holds for a token whose span overlaps the one before it.
///
/// Both sides use one unit (bytes or characters). Time `O(N + M)`, no extra memory but the result. Never panics.
///
/// # Errors
/// [`Error::Unsorted`]: a non-empty span of either side starts or ends before its predecessor.
/// [`Error::TooMany`]: 2^31 teacher rows or more. [`Error::Memory`].
///
/// # Example
/// ```
/// let (student, teacher) = ([[0, 5], [5, 9], [9, 11]], [[0, 2], [2, 7], [7, 9], [9, 11]]); // proof|read|er, pr|oofre|ad|er
/// assert_eq!(vocagno::mapping::starts(&student, &teacher)?, [0, -1, 3]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn starts<T: Offset>(student: &[Span<T>], teacher: &[Span<T>]) -> Result<Vec<i32>, Error> {
    let mut out = filled_with(-1, student.len())?;
    expect_rows(Input::Teacher, teacher.len())?;
    starts_row(student, teacher, 0, 0, &mut out)?;
    Ok(out)
}

/// [`starts`] for every row of a ragged batch. Teacher rows are numbered flat over the whole batch.
///
/// # Errors
/// As [`starts`].
pub fn starts_batch<T: Offset>(batch: &Batch<'_, T>) -> Result<Vec<i32>, Error> {
    let mut out = filled_with(-1, batch.student_rows().num_tokens())?;
    starts_batch_into(batch, &mut out)?;
    Ok(out)
}

/// [`starts_batch`] into a slice with one item per student token of the batch, or of this [part](Batch::split) of it.
///
/// # Errors
/// As [`starts`], and [`Error::Length`] for a slice of another length. After an error the contents of `out` are
/// unspecified.
pub fn starts_batch_into<T: Offset>(batch: &Batch<'_, T>, out: &mut [i32]) -> Result<(), Error> {
    expect_rows(Input::Teacher, batch.teacher.len())?;
    batch.for_each(out, |row, student, teacher, base, row_out| starts_row(student, teacher, row, base, row_out))
}

/// One row of a batch whose teacher spans begin at the flat row `base`.
fn starts_row<T: Offset>(
    student: &[Span<T>],
    teacher: &[Span<T>],
    row: usize,
    base: usize,
    out: &mut [i32],
) -> Result<(), Error> {
    expect_order(Input::Student, student, row)?;
    expect_order(Input::Teacher, teacher, row)?;
    out.fill(-1);
    let mut others = starting(teacher).peekable();
    for (token, start) in starting(student) {
        // Both sides start at strictly increasing places, so one walk over both finds all equal ones.
        while others.next_if(|&(_, other)| other < start).is_some() {}
        if let Some((index, _)) = others.next_if(|&(_, other)| other == start) {
            out[token] = to_row(base + index);
        }
    }
    Ok(())
}

/// The tokens that start somewhere, and where: strictly increasing places.
fn starting<T: Offset>(spans: &[Span<T>]) -> impl Iterator<Item = (usize, T)> {
    let mut reached = T::MIN;
    spans.iter().enumerate().filter(|(_, span)| !is_empty(span)).filter_map(move |(token, &[start, end])| {
        // A token that starts inside the text of the previous one (a byte of its character) starts nowhere by itself.
        let is_free = reached <= start;
        reached = end;
        is_free.then_some((token, start))
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn equal_starts_are_found_and_ends_do_not_matter() {
        assert_eq!(starts(&[[0, 3], [3, 4], [4, 9]], &[[0, 1], [1, 4], [4, 5], [5, 9]]), Ok(vec![0, -1, 2]));
        assert_eq!(starts(&[[0, 1], [2, 3], [5, 6]], &[[2, 9]]), Ok(vec![-1, 0, -1]));
    }

    #[test]
    fn tokens_without_text_start_nothing() {
        let student = [[0, 0], [0, 4], [4, 4], [4, 6], [0, 0]];
        assert_eq!(starts(&student, &[[0, 0], [0, 4], [9, 2], [4, 6], [6, 6]]), Ok(vec![-1, 1, -1, 3, -1]));
        assert_eq!(starts(&student, &[[4, 4], [0, 0]]), Ok(vec![-1; 5]));
        assert_eq!(starts::<i32>(&[], &[[0, 1]]), Ok(vec![]));
        assert_eq!(starts(&[[0, 1]], &[]), Ok(vec![-1]));
    }

    #[test]
    fn the_first_of_the_tokens_of_one_character_starts_with_it() {
        let bytes = [[0, 2], [2, 6], [2, 6], [2, 6], [6, 7]]; // U+1F60A by offsets
        assert_eq!(starts(&bytes, &[[0, 2], [2, 6], [6, 7]]), Ok(vec![0, 1, -1, -1, 2]));
        assert_eq!(starts(&bytes, &bytes), Ok(vec![0, 1, -1, -1, 4]));
        // A space with the first bytes of a character, then the rest of the character: it does not start at 2.
        assert_eq!(starts(&[[1, 5], [2, 5], [5, 6]], &[[1, 2], [2, 5], [5, 6]]), Ok(vec![0, -1, 2]));
        // Spans that divide the character say where each token is.
        assert_eq!(starts(&[[0, 2], [2, 4]], &[[0, 1], [1, 2], [2, 4]]), Ok(vec![0, 2]));
    }

    #[test]
    fn extremes() {
        let all = [[i64::MIN, 0], [0, i64::MAX]];
        assert_eq!(starts(&all, &all), Ok(vec![0, 1]));
    }

    #[test]
    fn a_batch_numbers_flat_teacher_rows() -> Result<(), Error> {
        let (student, teacher) = ([[0, 2], [0, 2], [2, 4]], [[0, 1], [1, 2], [0, 2], [2, 4]]);
        let batch = Batch::new(&student, &[0, 1, 1, 3], &teacher, &[0, 2, 2, 4])?;
        assert_eq!(starts_batch(&batch)?, [0, 2, 3]);
        let refused = starts_batch_into(&batch, &mut [7; 2]);
        assert_eq!(refused, Err(Error::Length { input: Input::Out, expected: 3, got: 2 }));
        Ok(())
    }

    #[test]
    fn either_side_out_of_order_is_refused() {
        let disorder = [[0, 4], [0, 0], [2, 3]];
        for input in [Input::Student, Input::Teacher] {
            let sides: [&[Span<i32>]; 2] =
                if input == Input::Student { [&disorder, &[[0, 9]]] } else { [&[[0, 9]], &disorder] };
            let expected = Error::Unsorted { input, row: 0, token: 2, previous: [0, 4], span: [2, 3] };
            assert_eq!(starts(sides[0], sides[1]), Err(expected));
        }
    }
}
