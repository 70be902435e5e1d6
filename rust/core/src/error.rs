use thiserror::Error;

/// Why an input was refused. Each variant names the argument and, where there is one, the row of the
/// batch (the document; 0 outside a batch), the token counted within that row, and the value.
///
/// Arguments carry the names of the Python package (`teacher_spans`, `student_cu_seqlens`).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpanError {
    /// A non-empty span that starts or ends before the non-empty span in front of it.
    #[error(
        "{argument}: row {row}, token {token}: span ({}, {}) comes after ({}, {}), \
         but non-empty spans must not decrease in start or end{}",
        span[0], span[1], previous[0], previous[1],
        if span[0] == 0 { " (where another text begins, cu_seqlens must say so)" } else { "" }
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
        /// The largest number that is possible.
        limit: usize,
        /// The number that came.
        got: usize,
    },

    /// An offset that the type of the spans cannot hold.
    #[error("{argument}: token {token}: expected offsets of at most {limit}, got {got}")]
    TooLarge {
        /// The argument that holds the offsets.
        argument: &'static str,
        /// Token, counted over all pairs.
        token: usize,
        /// The largest offset that is possible.
        limit: i64,
        /// The offset; one beyond 64 bits as the largest of these.
        got: u64,
    },

    /// Fewer items than there must be.
    #[error("{argument}: expected at least {expected}, got {got}")]
    TooFew {
        /// The argument that is too small.
        argument: &'static str,
        /// The smallest number that is possible.
        expected: usize,
        /// The number that came.
        got: usize,
    },

    /// A result that memory has no room for.
    #[error("no memory for a result of {bytes} bytes")]
    Memory {
        /// Bytes of the result.
        bytes: usize,
    },

    /// A document that 32-bit byte offsets cannot cover.
    #[error("texts: row {row}: expected at most 2147483647 bytes, got {bytes}")]
    TextTooLong {
        /// Row of the batch.
        row: usize,
        /// UTF-8 bytes of the document.
        bytes: usize,
    },

    /// An argument whose length does not fit the others.
    #[error("{argument}: expected {expected} items, got {got}")]
    Length {
        /// The argument with the wrong length.
        argument: &'static str,
        /// The length that the other arguments ask for.
        expected: usize,
        /// The length that came.
        got: usize,
    },

    /// Row boundaries without a single value; even an empty batch has the 0.
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

    /// Row boundaries that step back.
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

    /// Row boundaries that do not end with the last token.
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

    /// A range of the mapping that is neither [`UNMAPPED`](crate::UNMAPPED) nor non-empty and inside.
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
        /// How many of them there are.
        len: usize,
    },

    /// A range of the mapping whose rows belong to another text of the batch than the student token does.
    #[error(
        "mapping: token {token}: expected teacher rows {} to {}, those of its text, row {row}, got ({}, {})",
        rows[0], rows[1], range[0], range[1]
    )]
    OtherText {
        /// Student token, counted over the whole mapping.
        token: usize,
        /// Row of the batch that the token is in.
        row: usize,
        /// The range.
        range: [i32; 2],
        /// The teacher rows of that text, half-open.
        rows: [usize; 2],
    },

    /// An id that does not continue a document kept as ids.
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

    /// An offset before the text, past its end, or a start behind its end.
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
