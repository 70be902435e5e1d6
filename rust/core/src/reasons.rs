//! Why a student token has no teacher loss.

use alloc::vec::Vec;
use core::ops;

use crate::batch::{Batch, one_row};
use crate::checks::expect_len;
use crate::error::{Error, Input};
use crate::loss::{Loss, any_finite};
use crate::mapping::{TokenRange, expect_rows, resolve_in_text};
use crate::memory::with_room;
use crate::offset::{Offset, Span, is_empty};

/// Why a student token has no teacher loss. The numbers do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Reason {
    /// The token is mapped (and, if losses were given, has a finite one).
    Mapped = 0,
    /// Its span is empty: BOS, EOS, padding, a lone dummy prefix.
    Special = 1,
    /// It starts at or after the last teacher end of its row, or all teacher spans of the row are empty.
    Truncated = 2,
    /// Any other token without an overlapping teacher span. The teacher's tokenizer dropped its text.
    Hole = 3,
    /// It is mapped, but none of its teacher tokens has a finite loss.
    Unscored = 4,
}

impl From<Reason> for u8 {
    fn from(reason: Reason) -> Self {
        reason as Self
    }
}

/// Says for each student token whether it is mapped, and if not, why.
///
/// `mapping` is the result of [`align`](crate::align) for these spans. `losses` (nats) has one value per teacher row.
/// Teacher spans need no order.
///
/// Time `O(N + M)` for ranges of any length. With losses, memory is `O(M)` if a range starts with many NaN or
/// infinite losses.
///
/// # Errors
/// [`Error::Length`] for a mapping or losses of another length, [`Error::Range`] as in [`overlap`](crate::overlap()),
/// [`Error::TooMany`] for 2^31 teacher rows or more, [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::{Reason, align, unmapped_reasons};
///
/// let (student, teacher) = ([[0, 0], [0, 4], [4, 9]], [[0, 4]]);
/// let mapping = align(&student, &teacher)?;
/// let reasons = unmapped_reasons(&student, &teacher, &mapping, None::<&[f32]>)?;
/// assert_eq!(reasons, [Reason::Special, Reason::Mapped, Reason::Truncated]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn unmapped_reasons<T: Offset, L: Loss>(
    student: &[Span<T>],
    teacher: &[Span<T>],
    mapping: &[TokenRange],
    losses: Option<&[L]>,
) -> Result<Vec<Reason>, Error> {
    let (student_row, teacher_row) = (one_row(student), one_row(teacher));
    unmapped_reasons_batch(&Batch::new(student, &student_row, teacher, &teacher_row)?, mapping, losses)
}

/// [`unmapped_reasons`] for every row of a ragged batch. `mapping` numbers teacher rows flat over the whole batch.
///
/// # Errors
/// As [`unmapped_reasons`], and [`Error::OtherText`] for a range of teacher rows of another text.
pub fn unmapped_reasons_batch<T: Offset, L: Loss>(
    batch: &Batch<'_, T>,
    mapping: &[TokenRange],
    losses: Option<&[L]>,
) -> Result<Vec<Reason>, Error> {
    let (student, teacher) = (batch.student, batch.teacher);
    expect_len(Input::Mapping, student.len(), mapping.len())?;
    expect_rows(Input::Teacher, teacher.len())?;
    if let Some(losses) = losses {
        expect_len(Input::Losses, teacher.len(), losses.len())?;
    }

    let mut scored = losses.map(|losses| Scored { losses, counts: None });
    let mut reasons = with_room(batch.student_rows().num_tokens())?;
    for (row, tokens, own) in batch.iter() {
        let filled = teacher[own.clone()].iter().filter(|[start, end]| start < end);
        let last_end = filled.map(|&[_, end]| end).max();
        for token in tokens {
            let reason = match resolve_in_text(token, mapping[token], row, &own, teacher.len())? {
                None => why(student[token], last_end),
                Some(range) if scored.as_mut().map_or(Ok(true), |scored| scored.has_any(&range))? => Reason::Mapped,
                Some(_) => Reason::Unscored,
            };
            reasons.push(reason);
        }
    }
    Ok(reasons)
}

fn why<T: Offset>(span: Span<T>, last_end: Option<T>) -> Reason {
    if is_empty(&span) {
        Reason::Special
    } else if last_end.is_none_or(|last_end| span[0] >= last_end) {
        Reason::Truncated
    } else {
        Reason::Hole
    }
}

/// Number of losses of a range that are read one by one before all losses are counted.
const FEW: usize = 16;

/// Tells which ranges have a finite loss.
struct Scored<'a, L> {
    losses: &'a [L],
    /// How many of the first `0, 1, ..., M` losses are finite. Counted when a range first needs it.
    counts: Option<Vec<u32>>,
}

impl<L: Loss> Scored<'_, L> {
    #[inline]
    fn has_any(&mut self, range: &ops::Range<usize>) -> Result<bool, Error> {
        // Most ranges are short, and counting all losses first would cost more than reading these. Long ranges may
        // overlap, so reading each would not be linear.
        let few = range.start..range.end.min(range.start + FEW);
        Ok(any_finite(&self.losses[few]) || (range.len() > FEW && self.counted(range)?))
    }

    #[cold]
    fn counted(&mut self, range: &ops::Range<usize>) -> Result<bool, Error> {
        if self.counts.is_none() {
            let mut counts = with_room(self.losses.len() + 1)?;
            let mut total = 0_u32; // of fewer than 2^31 rows
            counts.push(total);
            counts.extend(self.losses.iter().map(|&loss| {
                total += u32::from(any_finite(&[loss]));
                total
            }));
            self.counts = Some(counts);
        }
        Ok(self.counts.as_ref().is_some_and(|counts| counts[range.start] < counts[range.end]))
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::align::align;
    use crate::mapping::UNMAPPED;

    #[test]
    fn every_reason_once() -> Result<(), Error> {
        let student = [[0, 0], [0, 2], [2, 4], [4, 6], [6, 8], [9, 12]];
        let teacher = [[0, 2], [4, 6], [6, 8], [0, 0]];
        let mapping = align(&student, &teacher)?;
        let losses = [1.0_f32, f32::INFINITY, 0.5, f32::NAN];
        let reasons = unmapped_reasons(&student, &teacher, &mapping, Some(&losses))?;
        let expected =
            [Reason::Special, Reason::Mapped, Reason::Hole, Reason::Unscored, Reason::Mapped, Reason::Truncated];
        assert_eq!(reasons, expected);
        assert_eq!(reasons.into_iter().map(u8::from).collect::<Vec<_>>(), [1, 0, 3, 4, 0, 2]);
        Ok(())
    }

    #[test]
    fn the_last_end_is_that_of_the_row() -> Result<(), Error> {
        let (student, teacher) = ([[3, 4], [3, 4], [3, 4]], [[0, 3], [0, 2], [5, 9], [0, 0]]);
        let mapping = [UNMAPPED; 3];
        let batch = Batch::new(&student, &[0, 1, 2, 3], &teacher, &[0, 1, 3, 4])?;
        let reasons = unmapped_reasons_batch(&batch, &mapping, None::<&[f32]>)?;
        assert_eq!(reasons, [Reason::Truncated, Reason::Hole, Reason::Truncated]);
        Ok(())
    }

    #[test]
    fn rows_of_another_text_are_refused() {
        let spans = [[0, 1], [0, 1]];
        let with = |mapping: [TokenRange; 2]| {
            unmapped_reasons_batch(&Batch::new(&spans, &[0, 1, 2], &spans, &[0, 1, 2])?, &mapping, None::<&[f32]>)
        };
        assert_eq!(with([[0, 1], [1, 2]]), Ok(vec![Reason::Mapped; 2]));
        let error = with([[0, 1], [0, 1]]).map_err(|error| error.to_string());
        let message = "mapping: token 1: expected teacher rows 1 to 2, those of its text, row 1, got (0, 1)";
        assert_eq!(error, Err(message.to_owned()));
    }

    #[test]
    fn long_ranges_of_nan_losses() -> Result<(), Error> {
        let teacher: Vec<Span<i32>> = (0..100).map(|at| [at, at + 1]).collect();
        let losses: Vec<f32> = (0..100).map(|at| if at == 60 { 1.0 } else { f32::NAN }).collect();
        let student = [[0, 100], [0, 60], [0, 61], [60, 100], [61, 100], [40, 60], [55, 80]];
        let mapping = align(&student, &teacher)?;
        let reasons = unmapped_reasons(&student, &teacher, &mapping, Some(&losses))?;
        let expected = [true, false, true, true, false, false, true];
        assert_eq!(reasons, expected.map(|scored| if scored { Reason::Mapped } else { Reason::Unscored }));
        Ok(())
    }

    #[test]
    fn many_long_ranges_take_linear_time() -> Result<(), Error> {
        let n = 100_000; // read one by one, 10^10 losses
        let (spans, mapping) = (vec![[0, 1]; n], vec![[0, 100_000]; n]);
        let losses = vec![f32::NAN; n];
        let reasons = unmapped_reasons(&spans, &spans, &mapping, Some(&losses))?;
        assert_eq!(reasons, vec![Reason::Unscored; n]);
        Ok(())
    }

    #[test]
    fn a_mapping_of_other_spans_is_refused() {
        let spans = [[0, 1]];
        let with = |mapping: &[TokenRange], losses: Option<&[f64]>| unmapped_reasons(&spans, &spans, mapping, losses);
        assert_eq!(with(&[], None), Err(Error::Length { input: Input::Mapping, expected: 1, got: 0 }));
        assert_eq!(with(&[[0, 1]], Some(&[])), Err(Error::Length { input: Input::Losses, expected: 1, got: 0 }));
        let range = Error::Range { token: 0, range: [0, 2], items: "teacher tokens", len: 1 };
        assert_eq!(with(&[[0, 2]], None), Err(range));
    }
}
