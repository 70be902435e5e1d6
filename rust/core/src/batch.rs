//! Rows of a ragged batch: checks `cu_seqlens` once, then runs a function on each row and its part of the output.

#[cfg(feature = "rayon")]
use std::cell::Cell;
use std::ops::Range;

use crate::checks::expect_len;
use crate::error::SpanError;

/// Smallest number of tokens for which a part of a batch is worth another thread.
#[cfg(feature = "rayon")]
const GRAIN: usize = 8_192;

#[cfg(feature = "rayon")]
thread_local! {
    /// Largest number of parts into which a batch that starts on this thread is split.
    static PARTS: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `work` and splits each of its batches into at most `parts` parts. No more than `parts` threads of the pool
/// then work on one batch. The limit holds for batches that `work` starts on its own thread.
///
/// # Example
/// ```
/// let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build()?;
/// let (spans, cu_seqlens) = (vec![[0, 5]; 1_000], (0..=1_000).collect::<Vec<i64>>());
/// let mut mapping = vec![[0; 2]; 1_000];
/// let align = || vocagno::align_batch(&spans, &cu_seqlens, &spans, &cu_seqlens, &mut mapping);
/// pool.install(|| vocagno::in_parts(2, align))?; // on two of the eight threads at most
/// assert_eq!(mapping[999], [999, 1_000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "rayon")]
pub fn in_parts<R>(parts: usize, work: impl FnOnce() -> R) -> R {
    struct Before(usize);
    impl Drop for Before {
        fn drop(&mut self) {
            PARTS.set(self.0);
        }
    }
    let _before = Before(PARTS.replace(parts));
    work()
}

#[cfg(feature = "rayon")]
fn parts() -> usize {
    if rayon::current_thread_index().is_some() { PARTS.get() } else { 1 }
}

#[cfg(not(feature = "rayon"))]
fn parts() -> usize {
    1
}

/// Cumulative sequence lengths that start at 0, do not decrease and end with the number of tokens.
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

    /// The rows of both sides of a batch. Each side gives its boundaries and its number of tokens.
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

    /// Calls `work(row, tokens of the row in out, the row's item of per_row)` for every row, in parallel if the
    /// caller is inside a rayon pool. The error is that of the first row that fails.
    pub(crate) fn for_each<T: Send, P: Send>(
        self,
        out: &mut [T],
        per_row: &mut [P],
        work: &(impl Fn(usize, &mut [T], &mut P) -> Result<(), SpanError> + Sync),
    ) -> Result<(), SpanError> {
        self.part(0..self.count(), out, per_row, parts(), work)
    }

    fn part<T: Send, P: Send>(
        self,
        rows: Range<usize>,
        mut out: &mut [T],
        per_row: &mut [P],
        parts: usize,
        work: &(impl Fn(usize, &mut [T], &mut P) -> Result<(), SpanError> + Sync),
    ) -> Result<(), SpanError> {
        #[cfg(feature = "rayon")]
        if parts > 1 && rows.len() > 1 && out.len() > GRAIN {
            let middle = self.middle(&rows);
            let (left, right) = out.split_at_mut(self.boundary(middle) - self.boundary(rows.start));
            let (left_items, right_items) = per_row.split_at_mut(middle - rows.start);
            let (left, right) = rayon::join(
                || self.part(rows.start..middle, left, left_items, parts.div_ceil(2), work),
                || self.part(middle..rows.end, right, right_items, parts / 2, work),
            );
            return left.and(right);
        }
        #[cfg(not(feature = "rayon"))]
        let _ = parts;
        for (row, item) in rows.zip(per_row) {
            let (head, tail) = out.split_at_mut(self.range(row).len());
            work(row, head, item)?;
            out = tail;
        }
        Ok(())
    }

    /// The first row that starts at or after half of the tokens of `rows`. There must be at least two rows.
    #[cfg(feature = "rayon")]
    fn middle(self, rows: &Range<usize>) -> usize {
        let half = self.boundary(rows.start).midpoint(self.boundary(rows.end));
        let inner = &self.0[rows.start + 1..rows.end];
        let before = inner.partition_point(|&boundary| usize::try_from(boundary).is_ok_and(|at| at < half));
        (rows.start + 1 + before).min(rows.end - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of threads that work on a batch of many rows in a pool of eight.
    #[cfg(feature = "rayon")]
    fn threads_at_work(parts: usize) -> Result<usize, Box<dyn std::error::Error>> {
        let cu_seqlens: Vec<i64> = (0..=64).map(|row| row * 1_000).collect();
        let rows = Rows::checked("cu_seqlens", &cu_seqlens, 64_000)?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build()?;
        let mut threads = vec![None; 64];
        let work = |_: usize, _: &mut [u8], thread: &mut Option<usize>| {
            std::thread::sleep(std::time::Duration::from_millis(1)); // gives other threads time to take a part
            *thread = rayon::current_thread_index();
            Ok(())
        };
        pool.install(|| in_parts(parts, || rows.for_each(&mut vec![0; 64_000], &mut threads, &work)))?;
        threads.sort_unstable();
        threads.dedup();
        Ok(threads.len())
    }

    #[cfg(feature = "rayon")]
    #[test]
    fn no_more_threads_than_parts() -> Result<(), Box<dyn std::error::Error>> {
        assert_eq!(threads_at_work(1)?, 1);
        assert!(threads_at_work(3)? <= 3);
        assert!(threads_at_work(usize::MAX)? > 3, "without a limit other threads take parts");
        Ok(())
    }

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
