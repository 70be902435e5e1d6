//! The one error type of the crate.

use thiserror::Error;

/// Why an input was rejected. Each variant names the argument and, if they apply, the row of the batch (the
/// document; 0 outside a batch), the token counted within that row, and the value.
///
/// Arguments have the names of the Python package (`teacher_spans`, `student_cu_seqlens`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpanError {
    /// A non-empty span that starts or ends before the previous non-empty span.
    #[error(
        "{argument}: row {row}, token {token}: span ({}, {}) comes after ({}, {}), \
         but non-empty spans must not decrease in start or end{}",
        span[0], span[1], previous[0], previous[1],
        if span[0] == 0 { " (if another text starts here, cu_seqlens must have a boundary)" } else { "" }
    )]
    Unsorted {
        /// The argument that holds the spans.
        argument: &'static str,
        /// Row of the batch.
        row: usize,
        /// Token within the row.
        token: usize,
        /// The last non-empty span before `span`.
        previous: [i64; 2],
        /// The span out of order.
        span: [i64; 2],
    },

    /// More items than a 32-bit result can number.
    #[error("{argument}: expected at most {limit} {items}, got {got}")]
    TooMany {
        /// The argument that is too large.
        argument: &'static str,
        /// What is counted.
        items: &'static str,
        /// The largest allowed number.
        limit: usize,
        /// The given number.
        got: usize,
    },

    /// An offset that the type of the spans cannot hold.
    #[error("{argument}: token {token}: expected offsets of at most {limit}, got {got}")]
    TooLarge {
        /// The argument that holds the offsets.
        argument: &'static str,
        /// Token, counted over all pairs.
        token: usize,
        /// The largest allowed offset.
        limit: i64,
        /// The given offset, or `u64::MAX` if it does not fit 64 bits.
        got: u64,
    },

    /// Fewer items than required.
    #[error("{argument}: expected at least {expected}, got {got}")]
    TooFew {
        /// The argument that is too small.
        argument: &'static str,
        /// The smallest allowed number.
        expected: usize,
        /// The given number.
        got: usize,
    },

    /// A result for which there is not enough memory.
    #[error("not enough memory for a result of {bytes} bytes")]
    Memory {
        /// Size of the result in bytes.
        bytes: usize,
    },

    /// A document that is too long for 32-bit byte offsets.
    #[error("texts: row {row}: expected at most 2147483647 bytes, got {bytes}")]
    TextTooLong {
        /// Row of the batch.
        row: usize,
        /// UTF-8 bytes of the document.
        bytes: usize,
    },

    /// An argument whose length does not match the other arguments.
    #[error("{argument}: expected {expected} items, got {got}")]
    Length {
        /// The argument with the wrong length.
        argument: &'static str,
        /// The length that the other arguments require.
        expected: usize,
        /// The given length.
        got: usize,
    },

    /// Row boundaries without any value. Even an empty batch has the value 0.
    #[error("{argument}: expected number of rows + 1 values, got none")]
    CuSeqlensEmpty {
        /// The argument that holds the boundaries.
        argument: &'static str,
    },

    /// Row boundaries that do not start at 0.
    #[error("{argument}[0]: expected 0, got {value}")]
    CuSeqlensStart {
        /// The argument that holds the boundaries.
        argument: &'static str,
        /// The first boundary.
        value: i64,
    },

    /// Row boundaries that decrease.
    #[error("{argument}[{index}]: expected at least {previous}, the value before it, got {value}")]
    CuSeqlensDecreasing {
        /// The argument that holds the boundaries.
        argument: &'static str,
        /// Index of the boundary.
        index: usize,
        /// The boundary before it.
        previous: i64,
        /// The boundary.
        value: i64,
    },

    /// Row boundaries that do not end with the number of tokens.
    #[error("{argument}[{index}]: expected {expected}, the number of tokens, got {value}")]
    CuSeqlensEnd {
        /// The argument that holds the boundaries.
        argument: &'static str,
        /// Index of the last boundary.
        index: usize,
        /// Number of tokens.
        expected: usize,
        /// The last boundary.
        value: i64,
    },

    /// A range of the mapping that is empty or out of bounds, and not [`UNMAPPED`](crate::UNMAPPED).
    #[error(
        "mapping: token {token}: expected (-1, -1) or 0 <= first < stop <= {len}, \
         the number of {items}, got ({}, {})",
        range[0], range[1]
    )]
    Range {
        /// Student token, counted over the whole mapping.
        token: usize,
        /// The range.
        range: [i32; 2],
        /// What the range numbers.
        items: &'static str,
        /// Number of these items.
        len: usize,
    },

    /// A range of the mapping whose teacher rows belong to another text of the batch than the student token.
    #[error(
        "mapping: token {token}: expected teacher rows {} to {}, those of its text, row {row}, got ({}, {})",
        rows[0], rows[1], range[0], range[1]
    )]
    OtherText {
        /// Student token, counted over the whole mapping.
        token: usize,
        /// Row of the batch that contains the token.
        row: usize,
        /// The range.
        range: [i32; 2],
        /// The teacher rows of that text, half-open.
        rows: [usize; 2],
    },

    /// An id that cannot be decoded.
    #[error("ids: row {row}, token {token}: id {id} {why}")]
    NoBytes {
        /// Row of the batch.
        row: usize,
        /// Token within the row.
        token: usize,
        /// The id.
        id: i32,
        /// What is wrong with it.
        why: &'static str,
    },

    /// An offset before the start of the text or past its end, or a start after its end.
    #[error(
        "{argument}: row {row}, token {token}: expected 0 <= start <= end <= {len}, \
         the text's length in {unit}, got ({}, {})",
        span[0], span[1]
    )]
    OutsideText {
        /// The argument that holds the offsets.
        argument: &'static str,
        /// Row of the batch.
        row: usize,
        /// Token within the row.
        token: usize,
        /// The offsets.
        span: [i64; 2],
        /// Length of the text.
        len: usize,
        /// Unit of the offsets: characters or bytes.
        unit: &'static str,
    },
}
