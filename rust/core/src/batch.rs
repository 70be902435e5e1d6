//! Rows of a ragged batch: `cu_seqlens` checked once, then each row with its part of the output.

use std::ops::Range;

use crate::SpanError;

/// Least number of tokens for which a part of a batch is worth another thread.
#[cfg(feature = "rayon")]
const GRAIN: usize = 8_192;

/// Cumulative sequence lengths that start at 0, do not decrease and end with the last token.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a>(&'a [i64]);

impl<'a> Rows<'a> {
    pub(crate) fn checked(argument: &'static str, cu_seqlens: &'a [i64], tokens: usize) -> Result<Self, SpanError> {
        let (Some(&first), Some(&last)) = (cu_seqlens.first(), cu_seqlens.last()) else {
            return Err(SpanError::CuSeqlensEmpty { argument });
        };
        if first != 0 {
            return Err(SpanError::CuSeqlensStart { argument, value: first });
        }
        let pairs = cu_seqlens.iter().zip(cu_seqlens.iter().skip(1));
        for (index, (&previous, &value)) in pairs.enumerate() {
            if value < previous {
                return Err(SpanError::CuSeqlensDecreasing { argument, index: index + 1, previous, value });
            }
        }
        if usize::try_from(last) != Ok(tokens) {
            return Err(SpanError::CuSeqlensEnd {
                argument,
                index: cu_seqlens.len() - 1,
                expected: tokens,
                value: last,
            });
        }
        Ok(Self(cu_seqlens))
    }

    /// The rows of both sides of a batch: the boundaries of each, and how many tokens it has.
    pub(crate) fn of_both(student: (&'a [i64], usize), teacher: (&'a [i64], usize)) -> Result<(Self, Self), SpanError> {
        let student_rows = Self::checked("student_cu_seqlens", student.0, student.1)?;
        let teacher_rows = Self::checked("teacher_cu_seqlens", teacher.0, teacher.1)?;
        expect_len("teacher_cu_seqlens", student.0.len(), teacher.0.len())?;
        Ok((student_rows, teacher_rows))
    }

    pub(crate) fn count(self) -> usize {
        self.0.len() - 1
    }

    fn boundary(self, index: usize) -> usize {
        usize::try_from(self.0[index]).unwrap_or_default() // never negative, as checked
    }

    /// Tokens of a row.
    pub(crate) fn range(self, row: usize) -> Range<usize> {
        self.boundary(row)..self.boundary(row + 1)
    }

    /// Calls `work(row, tokens of the row in out, the row's item of per_row)` for every row, in parallel
    /// where the caller stands in a rayon pool. The first failing row in order gives the error.
    pub(crate) fn for_each<T: Send, P: Send>(
        self,
        out: &mut [T],
        per_row: &mut [P],
        work: &(impl Fn(usize, &mut [T], &mut P) -> Result<(), SpanError> + Sync),
    ) -> Result<(), SpanError> {
        self.part(0..self.count(), out, per_row, work)
    }

    fn part<T: Send, P: Send>(
        self,
        rows: Range<usize>,
        mut out: &mut [T],
        per_row: &mut [P],
        work: &(impl Fn(usize, &mut [T], &mut P) -> Result<(), SpanError> + Sync),
    ) -> Result<(), SpanError> {
        #[cfg(feature = "rayon")]
        if rows.len() > 1 && out.len() > GRAIN && rayon::current_thread_index().is_some() {
            let middle = rows.start.midpoint(rows.end);
            let (left, right) = out.split_at_mut(self.boundary(middle) - self.boundary(rows.start));
            let (left_items, right_items) = per_row.split_at_mut(middle - rows.start);
            let (left, right) = rayon::join(
                || self.part(rows.start..middle, left, left_items, work),
                || self.part(middle..rows.end, right, right_items, work),
            );
            return left.and(right);
        }
        for (row, item) in rows.zip(per_row) {
            let (head, tail) = out.split_at_mut(self.range(row).len());
            work(row, head, item)?;
            out = tail;
        }
        Ok(())
    }
}

/// [`SpanError::Length`] unless `got` items came for `argument`.
pub(crate) fn expect_len(argument: &'static str, expected: usize, got: usize) -> Result<(), SpanError> {
    if expected == got { Ok(()) } else { Err(SpanError::Length { argument, expected, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(cu_seqlens: &[i64], tokens: usize) -> String {
        match Rows::checked("student_cu_seqlens", cu_seqlens, tokens) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn boundaries_are_checked() {
        assert_eq!(error(&[0], 0), "accepted");
        assert_eq!(error(&[0, 0, 3], 3), "accepted");
        assert_eq!(error(&[], 0), "student_cu_seqlens: expected number of rows + 1 values, got none");
        assert_eq!(error(&[1, 3], 3), "student_cu_seqlens[0]: expected 0, got 1");
        assert_eq!(error(&[0, 3, 2, 3], 3), "student_cu_seqlens[2]: expected at least 3, the value before it, got 2");
        assert_eq!(error(&[0, 2], 3), "student_cu_seqlens[1]: expected 3, the number of tokens, got 2");
        assert_eq!(
            error(&[0, i64::MAX], 3),
            format!("student_cu_seqlens[1]: expected 3, the number of tokens, got {}", i64::MAX)
        );
    }
}
