//! The chunk baseline: a mapping that cuts both sequences into equal chunks and ignores the text.

use alloc::vec::Vec;

use crate::checks::expect_at_most;
use crate::error::{Error, Input};
use crate::mapping::{TokenRange, UNMAPPED, expect_rows};
use crate::memory::with_room;

/// Limit for the lengths of results, which are plain numbers in the arguments: a large one would allocate memory.
const MAX_ITEMS: usize = i32::MAX as usize;

/// The boundaries of `chunks` chunks of nearly equal size in a sequence of `n` tokens. These are `chunks + 1` values,
/// `i * n / chunks` rounded down. Chunk `i` holds the tokens from boundary `i` up to boundary `i + 1`. It is empty if
/// these are equal.
///
/// Source: arXiv 2503.19123, section 2.
///
/// # Errors
/// [`Error::TooFew`] for 0 chunks, [`Error::TooMany`] for 2^31 chunks or more, or 2^63 tokens or more,
/// [`Error::Memory`].
///
/// # Example
/// ```
/// assert_eq!(vocagno::mapping::chunk_boundaries(7, 3)?, [0, 2, 4, 7]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn chunk_boundaries(n: usize, chunks: usize) -> Result<Vec<i64>, Error> {
    expect_chunks(chunks)?;
    expect_at_most(Input::Chunks, "chunks", MAX_ITEMS, chunks)?;
    expect_at_most(Input::N, "tokens", usize::try_from(i64::MAX).unwrap_or(usize::MAX), n)?;
    let mut boundaries = with_room(chunks + 1)?;
    // No boundary exceeds n, which fits.
    boundaries.extend((0..=chunks).map(|index| i64::try_from(boundary(index, n, chunks)).unwrap_or(i64::MAX)));
    Ok(boundaries)
}

/// Maps each of `n_student` tokens to the `n_teacher` tokens of the same chunk: the half-open range of teacher rows
/// between the boundaries of the token's chunk, or [`UNMAPPED`] if that chunk has no teacher token.
///
/// Both sequences are cut by [`chunk_boundaries`]. Reducing losses over this mapping gives each token the loss of
/// its chunk. Time `O(N)` for any number of chunks.
///
/// Source: arXiv 2503.19123, section 6.1 and Table 2.
///
/// # Errors
/// [`Error::TooFew`] for 0 chunks, [`Error::TooMany`] for 2^31 tokens or more on either side,
/// [`Error::Memory`].
///
/// # Example
/// ```
/// assert_eq!(vocagno::mapping::chunk_map(4, 3, 2)?, [[0, 1], [0, 1], [1, 3], [1, 3]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn chunk_map(n_student: usize, n_teacher: usize, chunks: usize) -> Result<Vec<TokenRange>, Error> {
    expect_chunks(chunks)?;
    expect_rows(Input::NTeacher, n_teacher)?;
    expect_at_most(Input::NStudent, "tokens", MAX_ITEMS, n_student)?;
    let mut mapping = with_room(n_student)?;
    while mapping.len() < n_student {
        let chunk = chunk_of(mapping.len(), n_student, chunks);
        let [first, stop] = [chunk, chunk + 1].map(|index| boundary(index, n_teacher, chunks));
        let range = [first, stop].map(|row| i32::try_from(row).unwrap_or(i32::MAX));
        mapping.resize(boundary(chunk + 1, n_student, chunks), if first < stop { range } else { UNMAPPED });
    }
    Ok(mapping)
}

/// The chunk of a token: the last chunk whose first boundary is at most `token`.
fn chunk_of(token: usize, n: usize, chunks: usize) -> usize {
    // The largest c with boundary(c) <= token, that is c * n < (token + 1) * chunks.
    let below = (token as u128 + 1) * chunks as u128 - 1;
    usize::try_from(below / n as u128).unwrap_or(usize::MAX)
}

/// Boundary `index`, which is at most `n`. A product of two 64-bit numbers fits 128 bits.
fn boundary(index: usize, n: usize, chunks: usize) -> usize {
    usize::try_from(index as u128 * n as u128 / chunks as u128).unwrap_or(n)
}

fn expect_chunks(got: usize) -> Result<(), Error> {
    if got > 0 { Ok(()) } else { Err(Error::TooFew { input: Input::Chunks, expected: 1, got }) }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn more_chunks_than_tokens_leave_some_empty() {
        assert_eq!(chunk_boundaries(2, 5), Ok(vec![0, 0, 0, 1, 1, 2]));
        assert_eq!(chunk_boundaries(3, 5), Ok(vec![0, 0, 1, 1, 2, 3]));
        assert_eq!(chunk_map(2, 3, 5), Ok(vec![UNMAPPED, [2, 3]]));
        assert_eq!(chunk_map(2, 0, 1), Ok(vec![UNMAPPED; 2]));
        assert_eq!(chunk_map(0, 3, 4), Ok(vec![]));
        assert_eq!(chunk_boundaries(0, 2), Ok(vec![0; 3]));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = MAX_ITEMS;
        assert_eq!(chunk_map(1, most, usize::MAX), Ok(vec![[i32::MAX - 1, i32::MAX]]));
        assert_eq!(chunk_map(3, most, 1), Ok(vec![[0, i32::MAX]; 3]));
        assert_eq!(chunk_map(2, most, usize::MAX).map(|map| map.len()), Ok(2));
        assert_eq!(chunk_boundaries(most, 2), Ok(vec![0, i64::from(i32::MAX / 2), i64::from(i32::MAX)]));
        let thirds = [0, i64::MAX / 3, i64::MAX / 3 * 2, i64::MAX]; // 2^63 - 1 is 1 modulo 3
        assert_eq!(usize::try_from(i64::MAX).map(|n| chunk_boundaries(n, 3)), Ok(Ok(thirds.to_vec())));
    }

    #[test]
    fn sizes_are_checked_before_memory_is_allocated() {
        let none = Error::TooFew { input: Input::Chunks, expected: 1, got: 0 };
        assert_eq!(none.to_string(), "chunks: expected at least 1, got 0");
        assert_eq!(chunk_boundaries(1, 0).as_ref(), Err(&none));
        assert_eq!(chunk_map(1, 1, 0), Err(none));
        let (limit, got) = (MAX_ITEMS, usize::MAX);
        let too_many = |input, items| Error::TooMany { input, items, limit, got };
        assert_eq!(chunk_boundaries(1, got), Err(too_many(Input::Chunks, "chunks")));
        assert_eq!(chunk_map(got, 1, 1), Err(too_many(Input::NStudent, "tokens")));
        assert_eq!(chunk_map(1, got, 1), Err(too_many(Input::NTeacher, "rows")));
        let tokens = chunk_boundaries(got, 1);
        assert!(matches!(tokens, Err(Error::TooMany { input: Input::N, .. })), "{tokens:?}");
    }
}
