//! Checks of lengths and counts. Each error names the input.

use crate::error::{Error, Input};

/// [`Error::Length`] unless `input` has `expected` items.
pub(crate) fn expect_len(input: Input, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::Length { input, expected, got }) }
}

/// [`Error::TooMany`] if `input` has more than `limit` items.
pub(crate) fn expect_at_most(input: Input, items: &'static str, limit: usize, got: usize) -> Result<(), Error> {
    if got <= limit { Ok(()) } else { Err(Error::TooMany { input, items, limit, got }) }
}

/// The text's length in bytes, or [`Error::TextTooLong`] if it does not fit 32-bit offsets.
pub(crate) fn text_len(text: &[u8], row: usize) -> Result<i32, Error> {
    i32::try_from(text.len()).map_err(|_| Error::TextTooLong { row, bytes: text.len() })
}

/// Where a piece ends in the bytes of all pieces, of which there are `bytes` so far. [`Error::TooMany`] if that does
/// not fit 32 bits.
pub(crate) fn piece_end(bytes: usize) -> Result<u32, Error> {
    let (items, limit) = ("bytes in all", u32::MAX as usize);
    u32::try_from(bytes).map_err(|_| Error::TooMany { input: Input::Pieces, items, limit, got: bytes })
}
