//! Mappings from student tokens to teacher tokens, and what can be said about two tokenizations of a text.
//!
//! A mapping has one [`TokenRange`] of teacher rows per student token. [`align`] makes it from the text that tokens
//! share, [`chunk_map`] is a baseline that ignores the text. [`unmapped_reasons`] says why a token has no loss,
//! [`overlap`] how well a mapping fits. [`groups`] finds the runs of tokens on which both tokenizers agree, [`starts`] the
//! places at which both start a token.

use core::ops;

pub use crate::align::{align, align_batch, align_batch_into, align_into};
pub use crate::chunks::{chunk_boundaries, chunk_map};
pub use crate::groups::{Groups, groups, groups_batch};
pub use crate::overlap::{Overlap, overlap, overlap_batch};
pub use crate::reasons::{Reason, unmapped_reasons, unmapped_reasons_batch};
pub use crate::starts::{starts, starts_batch, starts_batch_into};

use crate::checks::expect_at_most;
use crate::error::{Error, Input};

/// Half-open range of teacher rows, or [`UNMAPPED`].
pub type TokenRange = [i32; 2];

/// The range of a student token that shares no text with any teacher token.
pub const UNMAPPED: TokenRange = [-1, -1];

/// An `i32` numbers the rows, and `stop` is one past the last row.
pub(crate) const MAX_ROWS: usize = i32::MAX as usize;

/// [`Error::TooMany`] if a [`TokenRange`] cannot number `got` rows.
pub(crate) fn expect_rows(input: Input, got: usize) -> Result<(), Error> {
    expect_at_most(input, "rows", MAX_ROWS, got)
}

/// The number of a row, for a caller that has called [`expect_rows`].
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "checked against MAX_ROWS")]
pub(crate) fn to_row(index: usize) -> i32 {
    index as i32
}

/// The losses of `token`'s range: `None` for [`UNMAPPED`], an error for a range that is empty or out of bounds.
#[inline]
pub(crate) fn resolve<L>(token: usize, range: TokenRange, losses: &[L]) -> Result<Option<&[L]>, Error> {
    let [first, stop] = range.map(|row| row.cast_unsigned() as usize); // a negative row becomes one past every end
    if first < stop && stop <= losses.len() {
        return Ok(Some(&losses[first..stop]));
    }
    if range == UNMAPPED {
        return Ok(None);
    }
    Err(Error::Range { token, range, items: "losses", len: losses.len() })
}

/// The teacher rows of `token`'s range. They must belong to the token's own text: row `row` of the batch, with the
/// flat teacher rows `own`, of `len` teacher rows in total. `None` for [`UNMAPPED`].
#[inline]
pub(crate) fn resolve_in_text(
    token: usize,
    range: TokenRange,
    row: usize,
    own: &ops::Range<usize>,
    len: usize,
) -> Result<Option<ops::Range<usize>>, Error> {
    let [first, stop] = range.map(|row| row.cast_unsigned() as usize); // as above
    if own.start <= first && first < stop && stop <= own.end {
        return Ok(Some(first..stop));
    }
    if range == UNMAPPED {
        return Ok(None);
    }
    if first < stop && stop <= len {
        return Err(Error::OtherText { token, row, range, rows: [own.start, own.end] });
    }
    Err(Error::Range { token, range, items: "teacher tokens", len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rows_than_i32_can_number_are_refused() {
        assert!(expect_rows(Input::Teacher, MAX_ROWS).is_ok());
        assert!(expect_rows(Input::Teacher, MAX_ROWS + 1).is_err());
    }
}
