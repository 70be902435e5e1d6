//! Checks of lengths and counts. Each error names the argument.

use crate::error::SpanError;

/// [`SpanError::Length`] unless `argument` has `expected` items.
pub(crate) fn expect_len(argument: &'static str, expected: usize, got: usize) -> Result<(), SpanError> {
    if expected == got { Ok(()) } else { Err(SpanError::Length { argument, expected, got }) }
}

/// [`SpanError::TooMany`] if `argument` has more than `limit` items.
pub(crate) fn expect_at_most(
    argument: &'static str,
    items: &'static str,
    limit: usize,
    got: usize,
) -> Result<(), SpanError> {
    if got <= limit { Ok(()) } else { Err(SpanError::TooMany { argument, items, limit, got }) }
}

/// The text's length in bytes, or [`SpanError::TextTooLong`] if it does not fit 32-bit offsets.
pub(crate) fn text_len(text: &[u8], row: usize) -> Result<i32, SpanError> {
    i32::try_from(text.len()).map_err(|_| SpanError::TextTooLong { row, bytes: text.len() })
}

/// Where a piece ends in the bytes of all pieces, of which there are `bytes` so far. [`SpanError::TooMany`] if that
/// does not fit 32 bits.
pub(crate) fn piece_end(bytes: usize) -> Result<u32, SpanError> {
    let (items, limit) = ("bytes in all", u32::MAX as usize);
    u32::try_from(bytes).map_err(|_| SpanError::TooMany { argument: "pieces", items, limit, got: bytes })
}
