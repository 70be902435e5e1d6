//! Ragged batches: several documents in flat arrays, divided by `cu_seqlens`.
//!
//! [`Rows`] are row boundaries that were checked once. A [`Batch`] is the spans of both sides with their rows. The
//! functions whose names contain `_batch` take one of them.
//!
//! All functions run on the calling thread. To spread a batch over threads, [`Batch::split`] it (or [`Rows::split`])
//! and call the function for each part, with the part's own share of the output. Inputs remain those of the whole
//! batch, so numbers in results and errors do not depend on the split.
//!
//! ```
//! use vocagno::batch::Batch;
//! use vocagno::mapping::align_batch_into;
//!
//! let (spans, cu_seqlens) = ([[0, 5], [5, 9], [0, 7]], [0, 2, 3]); // two texts
//! let batch = Batch::new(&spans, &cu_seqlens, &spans, &cu_seqlens)?;
//! let mut mapping = [[0; 2]; 3];
//! if let Some((left, right)) = batch.split() {
//!     let (left_out, right_out) = mapping.split_at_mut(left.student_rows().num_tokens());
//!     let (first, second) = std::thread::scope(|scope| {
//!         let first = scope.spawn(|| align_batch_into(&left, left_out)); // or `rayon::join`
//!         (first.join(), align_batch_into(&right, right_out))
//!     });
//!     first.expect("no function panics").and(second)?;
//! }
//! assert_eq!(mapping, [[0, 1], [1, 2], [2, 3]]);
//! # Ok::<(), vocagno::Error>(())
//! ```

use core::ops::Range;

use crate::checks::expect_len;
use crate::error::{Error, Input};
use crate::offset::{Offset, Span};

/// Row boundaries (`cu_seqlens`) that start at 0, do not decrease and end with the number of tokens; or some
/// consecutive rows of them, after a [split](Rows::split).
///
/// Row `b` has the tokens `cu_seqlens[b]..cu_seqlens[b + 1]`. Functions that take rows read the inputs of the whole
/// batch, and write the output of these rows.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    cu_seqlens: &'a [i64],
    start: usize,
    stop: usize,
}

impl<'a> Rows<'a> {
    /// Checks the boundaries of a batch of `num_tokens` tokens.
    ///
    /// # Errors
    /// [`Error::CuSeqlensEmpty`], [`Error::CuSeqlensStart`], [`Error::CuSeqlensDecreasing`], [`Error::CuSeqlensEnd`].
    ///
    /// # Example
    /// ```
    /// use vocagno::batch::Rows;
    ///
    /// let rows = Rows::new(&[0, 2, 5], 5)?;
    /// assert!(rows.iter().eq([(0, 0..2), (1, 2..5)]));
    /// assert!(Rows::new(&[0, 2, 5], 6).is_err());
    /// # Ok::<(), vocagno::Error>(())
    /// ```
    pub fn new(cu_seqlens: &'a [i64], num_tokens: usize) -> Result<Self, Error> {
        Self::checked(Input::CuSeqlens, cu_seqlens, num_tokens)
    }

    fn checked(input: Input, cu_seqlens: &'a [i64], num_tokens: usize) -> Result<Self, Error> {
        let (Some(&first), Some(&last)) = (cu_seqlens.first(), cu_seqlens.last()) else {
            return Err(Error::CuSeqlensEmpty { input });
        };
        if first != 0 {
            return Err(Error::CuSeqlensStart { input, value: first });
        }
        let pairs = cu_seqlens.iter().zip(cu_seqlens.iter().skip(1));
        for (index, (&previous, &value)) in pairs.enumerate() {
            if value < previous {
                return Err(Error::CuSeqlensDecreasing { input, index: index + 1, previous, value });
            }
        }
        let stop = cu_seqlens.len() - 1;
        if usize::try_from(last) != Ok(num_tokens) {
            return Err(Error::CuSeqlensEnd { input, index: stop, expected: num_tokens, value: last });
        }
        Ok(Self { cu_seqlens, start: 0, stop })
    }

    /// Number of rows.
    #[must_use]
    pub fn len(self) -> usize {
        self.stop - self.start
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.stop
    }

    /// Number of tokens of all rows.
    #[must_use]
    pub fn num_tokens(self) -> usize {
        self.boundary(self.stop) - self.boundary(self.start)
    }

    /// The number of each row in the batch, and its tokens.
    pub fn iter(self) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        (self.start..self.stop).map(move |row| (row, self.range(row)))
    }

    /// Two parts with about equally many tokens, in order. `None` if there are fewer than two rows.
    #[must_use]
    pub fn split(self) -> Option<(Self, Self)> {
        if self.len() < 2 {
            return None;
        }
        let half = self.boundary(self.start).midpoint(self.boundary(self.stop));
        let inner = &self.cu_seqlens[self.start + 1..self.stop];
        let before = inner.partition_point(|&boundary| usize::try_from(boundary).is_ok_and(|at| at < half));
        Some(self.split_at((self.start + 1 + before).min(self.stop - 1)))
    }

    /// The rows before the batch's row `row`, and the others.
    fn split_at(self, row: usize) -> (Self, Self) {
        (Self { stop: row, ..self }, Self { start: row, ..self })
    }

    fn boundary(self, index: usize) -> usize {
        usize::try_from(self.cu_seqlens[index]).unwrap_or_default() // never negative, as checked
    }

    /// Tokens of a row of the batch.
    pub(crate) fn range(self, row: usize) -> Range<usize> {
        self.boundary(row)..self.boundary(row + 1)
    }

    /// [`Error::Length`] unless `input` has one item per token of the whole batch.
    pub(crate) fn expect_tokens(self, input: Input, got: usize) -> Result<(), Error> {
        expect_len(input, self.boundary(self.cu_seqlens.len() - 1), got)
    }

    /// [`Error::Length`] unless `input` has one item per row of the whole batch.
    pub(crate) fn expect_rows(self, input: Input, got: usize) -> Result<(), Error> {
        expect_len(input, self.cu_seqlens.len() - 1, got)
    }

    /// Calls `work(row, its tokens, these tokens in out)` for every row. `out` has one item per token of these rows.
    pub(crate) fn for_each<T>(
        self,
        mut out: &mut [T],
        mut work: impl FnMut(usize, Range<usize>, &mut [T]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (row, tokens) in self.iter() {
            let (row_out, others) = out.split_at_mut(tokens.len());
            work(row, tokens, row_out)?;
            out = others;
        }
        Ok(())
    }
}

/// The spans of both sides of a ragged batch: row `b` holds the spans `cu_seqlens[b]..cu_seqlens[b + 1]` of each side.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a, T> {
    pub(crate) student: &'a [Span<T>],
    pub(crate) teacher: &'a [Span<T>],
    student_rows: Rows<'a>,
    teacher_rows: Rows<'a>,
}

impl<'a, T: Offset> Batch<'a, T> {
    /// Checks the row boundaries of both sides. Spans are checked by the functions that need them in order.
    ///
    /// # Errors
    /// As [`Rows::new`], and [`Error::Length`] if the sides differ in their numbers of rows.
    pub fn new(
        student: &'a [Span<T>],
        student_cu_seqlens: &'a [i64],
        teacher: &'a [Span<T>],
        teacher_cu_seqlens: &'a [i64],
    ) -> Result<Self, Error> {
        let student_rows = Rows::checked(Input::StudentCuSeqlens, student_cu_seqlens, student.len())?;
        let teacher_rows = Rows::checked(Input::TeacherCuSeqlens, teacher_cu_seqlens, teacher.len())?;
        expect_len(Input::TeacherCuSeqlens, student_cu_seqlens.len(), teacher_cu_seqlens.len())?;
        Ok(Self { student, teacher, student_rows, teacher_rows })
    }

    /// The rows of the student.
    #[must_use]
    pub fn student_rows(&self) -> Rows<'a> {
        self.student_rows
    }

    /// The rows of the teacher.
    #[must_use]
    pub fn teacher_rows(&self) -> Rows<'a> {
        self.teacher_rows
    }

    /// Two parts with about equally many student tokens, in order. `None` if there are fewer than two rows.
    #[must_use]
    pub fn split(self) -> Option<(Self, Self)> {
        let (student_left, student_right) = self.student_rows.split()?;
        let (teacher_left, teacher_right) = self.teacher_rows.split_at(student_left.stop);
        let left = Self { student_rows: student_left, teacher_rows: teacher_left, ..self };
        Some((left, Self { student_rows: student_right, teacher_rows: teacher_right, ..self }))
    }

    /// The number of each row in the batch, with the student's and the teacher's tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> + 'a {
        let teacher_rows = self.teacher_rows;
        self.student_rows.iter().map(move |(row, tokens)| (row, tokens, teacher_rows.range(row)))
    }

    /// Calls `work(row, its student spans, its teacher spans, the flat row of the first of them, the tokens in out)` for
    /// every row. [`Error::Length`] unless `out` has one item per student token.
    pub(crate) fn for_each<O>(
        &self,
        out: &mut [O],
        work: impl Fn(usize, &[Span<T>], &[Span<T>], usize, &mut [O]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        expect_len(Input::Out, self.student_rows.num_tokens(), out.len())?;
        self.student_rows.for_each(out, |row, tokens, row_out| {
            let others = self.teacher_rows.range(row);
            let base = others.start;
            work(row, &self.student[tokens], &self.teacher[others], base, row_out)
        })
    }
}

/// The boundaries of a batch of one row.
pub(crate) fn one_row<T>(items: &[T]) -> [i64; 2] {
    [0, i64::try_from(items.len()).unwrap_or(i64::MAX)] // spans have 8 bytes or more, so their number fits
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::*;

    fn error(cu_seqlens: &[i64], tokens: usize) -> String {
        match Rows::new(cu_seqlens, tokens) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn boundaries_are_checked() {
        assert_eq!(error(&[0], 0), "accepted");
        assert_eq!(error(&[0, 0, 3], 3), "accepted");
        assert_eq!(error(&[], 0), "cu_seqlens: expected number of rows + 1 values, got none");
        assert_eq!(error(&[1, 3], 3), "cu_seqlens[0]: expected 0, got 1");
        assert_eq!(error(&[0, 3, 2, 3], 3), "cu_seqlens[2]: expected at least 3, the value before it, got 2");
        assert_eq!(error(&[0, 2], 3), "cu_seqlens[1]: expected 3, the number of tokens, got 2");
        assert_eq!(
            error(&[0, i64::MAX], 3),
            format!("cu_seqlens[1]: expected 3, the number of tokens, got {}", i64::MAX)
        );
    }

    #[test]
    fn parts_have_all_rows_in_order() -> Result<(), Error> {
        for cu_seqlens in [&[0, 4, 5, 6, 7][..], &[0, 0, 0, 9], &[0, 9, 9, 9], &[0, 1, 9], &[0, 0, 0]] {
            let rows = Rows::new(cu_seqlens, usize::try_from(cu_seqlens[cu_seqlens.len() - 1]).unwrap_or_default())?;
            let (left, right) = rows.split().ok_or(Error::Memory { bytes: 0 })?;
            assert!(!left.is_empty() && !right.is_empty());
            let parts: Vec<_> = left.iter().chain(right.iter()).collect();
            assert_eq!(parts, rows.iter().collect::<Vec<_>>());
            assert_eq!(left.num_tokens() + right.num_tokens(), rows.num_tokens());
        }
        assert!(Rows::new(&[0, 3], 3)?.split().is_none());
        assert!(Rows::new(&[0], 0)?.split().is_none());
        Ok(())
    }
}
