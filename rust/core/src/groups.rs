//! Groups: the shortest runs of tokens on which both tokenizers agree.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::batch::{Batch, one_row};
use crate::error::{Error, Input};
use crate::mapping::{TokenRange, expect_rows, to_row};
use crate::memory::{push, with_room};
use crate::offset::{Offset, Span};
use crate::ordered::{all_in_order, filled, non_empty};

/// The shortest runs of student and teacher tokens on which both tokenizers agree: no token of either side crosses
/// the boundary of a group. The two runs of a group cover the same text, except for text that one side drops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Groups {
    /// Student rows of each group, flat over the batch.
    pub student: Vec<TokenRange>,
    /// Teacher rows of each group, flat over the batch.
    pub teacher: Vec<TokenRange>,
    /// Boundaries of the batch's rows in `student` and `teacher`, from 0 to the number of groups.
    pub cu_seqlens: Vec<i64>,
}

/// Finds the [`Groups`] of one text, in its order.
///
/// Non-empty tokens that share text, directly or through other tokens, are in one group, together with all tokens
/// that [`align`](crate::align) maps them to. A token that shares text with no token of the other side is in no group.
/// Empty spans (special tokens) are in no group, but their rows may lie inside one. If both sides tile a text, the
/// groups tile it too, and a group ends wherever a token ends on both sides.
///
/// Time `O(N + M)`. Extra memory is needed only if empty spans lie between others. Never panics.
///
/// # Errors
/// [`Error::Unsorted`] for spans of either side, [`Error::TooMany`] for 2^31 rows or more, [`Error::Memory`].
///
/// # Example
/// ```
/// let (student, teacher) = ([[0, 5], [5, 9], [9, 11]], [[0, 2], [2, 7], [7, 9], [9, 11]]); // proof|read|er, pr|oofre|ad|er
/// let groups = vocagno::groups(&student, &teacher)?;
/// assert_eq!(groups.student, [[0, 2], [2, 3]]);
/// assert_eq!(groups.teacher, [[0, 3], [3, 4]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn groups<T: Offset>(student: &[Span<T>], teacher: &[Span<T>]) -> Result<Groups, Error> {
    groups_batch(&Batch::new(student, &one_row(student), teacher, &one_row(teacher))?)
}

/// [`groups`] for every row of a ragged batch. Rows of tokens are numbered flat over the whole batch.
///
/// # Errors
/// As [`groups`].
pub fn groups_batch<T: Offset>(batch: &Batch<'_, T>) -> Result<Groups, Error> {
    expect_rows(Input::Student, batch.student.len())?;
    expect_rows(Input::Teacher, batch.teacher.len())?;
    let mut groups = Groups { cu_seqlens: with_room(batch.student_rows().len() + 1)?, ..Groups::default() };
    groups.cu_seqlens.push(0);
    for (row, tokens, others) in batch.iter() {
        let base = (tokens.start, others.start);
        let student = Side::checked(Input::Student, &batch.student[tokens], row, base.0)?;
        let teacher = Side::checked(Input::Teacher, &batch.teacher[others], row, base.1)?;
        find(&student, &teacher, &mut groups)?;
        groups.cu_seqlens.push(i64::try_from(groups.student.len()).unwrap_or(i64::MAX)); // at most 2^31
    }
    Ok(groups)
}

/// The non-empty spans of one text, sorted.
struct Side<'a, T: Offset> {
    spans: Cow<'a, [Span<T>]>,
    /// The flat row of the first span.
    first: usize,
    /// The flat row of each span, if empty spans lie between them.
    rows: Option<Vec<i32>>,
}

impl<'a, T: Offset> Side<'a, T> {
    fn checked(input: Input, spans: &'a [Span<T>], row: usize, base: usize) -> Result<Self, Error> {
        let inner = filled(spans);
        let first = base + inner.start;
        if all_in_order(&spans[inner.clone()]) {
            return Ok(Self { spans: Cow::Borrowed(&spans[inner]), first, rows: None });
        }
        let (spans, rows) = non_empty(input, spans, row, base)?;
        Ok(Self { spans: Cow::Owned(spans), first, rows: Some(rows) })
    }

    /// The flat rows of the spans from `start` to `stop`. There must be at least one.
    fn range(&self, start: usize, stop: usize) -> TokenRange {
        let row = |at: usize| self.rows.as_ref().map_or(to_row(self.first + at), |rows| rows[at]);
        [row(start), row(stop - 1) + 1]
    }
}

/// Takes tokens while they start inside the text taken so far. A group ends where none does.
fn find<T: Offset>(student: &Side<'_, T>, teacher: &Side<'_, T>, found: &mut Groups) -> Result<(), Error> {
    let (own, other) = (&*student.spans, &*teacher.spans);
    let (mut s, mut t) = (0, 0);
    while s < own.len() && t < other.len() {
        let (first_s, first_t) = (s, t);
        // The group begins with the token that starts first, and at first reaches to its end.
        let mut reach = if own[s][0] <= other[t][0] { own[s][1] } else { other[t][1] };
        loop {
            let taken = s + t;
            take(own, &mut s, &mut reach);
            take(other, &mut t, &mut reach);
            if s + t == taken {
                break;
            }
        }
        // Otherwise the run is text that only one side has: it is in no group.
        if first_s < s && first_t < t {
            push(&mut found.student, student.range(first_s, s))?;
            push(&mut found.teacher, teacher.range(first_t, t))?;
        }
    }
    Ok(())
}

/// Takes the spans that start before `reach`, and moves `reach` to the end of the last of them.
#[inline]
fn take<T: Offset>(spans: &[Span<T>], at: &mut usize, reach: &mut T) {
    while let Some(&[start, end]) = spans.get(*at)
        && start < *reach
    {
        *reach = end.max(*reach);
        *at += 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec;

    use super::*;
    use crate::align::align;

    fn of(student: &[Span<i32>], teacher: &[Span<i32>]) -> Result<[Vec<TokenRange>; 2], String> {
        let found = groups(student, teacher).map_err(|error| error.to_string())?;
        Ok([found.student, found.teacher])
    }

    #[test]
    fn a_group_ends_where_a_token_ends_on_both_sides() {
        let found = of(&[[0, 2], [2, 4], [4, 5], [5, 9]], &[[0, 1], [1, 4], [4, 7], [7, 9]]);
        assert_eq!(found, Ok([vec![[0, 2], [2, 4]], vec![[0, 2], [2, 4]]]));
    }

    #[test]
    fn bytes_of_one_character_stay_together() {
        // U+1F60A as four tokens with the same span, and as one token.
        let found = of(&[[0, 4], [0, 4], [0, 4], [0, 4], [4, 5]], &[[0, 4], [4, 5]]);
        assert_eq!(found, Ok([vec![[0, 4], [4, 5]], vec![[0, 1], [1, 2]]]));
    }

    #[test]
    fn text_of_one_side_is_in_no_group() {
        assert_eq!(of(&[[0, 2], [2, 5], [5, 6]], &[[0, 2], [5, 6]]), Ok([vec![[0, 1], [2, 3]], vec![[0, 1], [1, 2]]]));
        assert_eq!(of(&[[0, 2], [7, 9]], &[[0, 2], [3, 5]]), Ok([vec![[0, 1]], vec![[0, 1]]]));
        assert_eq!(of(&[[0, 5], [5, 9]], &[[0, 3], [5, 9]]), Ok([vec![[0, 1], [1, 2]], vec![[0, 1], [1, 2]]]));
        assert_eq!(of(&[], &[[0, 3]]), Ok([vec![], vec![]]));
    }

    #[test]
    fn empty_spans_are_in_no_group_though_inside() {
        let found = of(&[[0, 0], [0, 2], [0, 0], [2, 4], [0, 0]], &[[0, 4], [4, 4], [0, 0]]);
        assert_eq!(found, Ok([vec![[1, 4]], vec![[0, 1]]]));
    }

    #[test]
    fn a_batch_numbers_flat_rows() -> Result<(), Error> {
        let (student, teacher) = ([[0, 2], [0, 1], [1, 2]], [[0, 1], [1, 2], [0, 2]]);
        let found = groups_batch(&Batch::new(&student, &[0, 1, 1, 3], &teacher, &[0, 2, 2, 3])?)?;
        assert_eq!(found.student, [[0, 1], [1, 3]]);
        assert_eq!(found.teacher, [[0, 2], [2, 3]]);
        assert_eq!(found.cu_seqlens, [0, 1, 1, 2]);
        assert_eq!(groups_batch::<i32>(&Batch::new(&[], &[0], &[], &[0])?)?.cu_seqlens, [0]);
        Ok(())
    }

    #[test]
    fn either_side_out_of_order_is_refused() {
        let message = |side| {
            format!(
                "{side}: row 0, token 1: span (0, 1) comes after (1, 2), but non-empty spans must not decrease in start or end \
                 (if another text starts here, cu_seqlens must have a boundary)"
            )
        };
        assert_eq!(of(&[[1, 2], [0, 1]], &[[0, 2]]), Err(message("student")));
        assert_eq!(of(&[[0, 2]], &[[1, 2], [0, 1]]), Err(message("teacher")));
        assert!(align(&[[1, 2], [0, 1]], &[[0, 2]]).is_ok());
    }
}
