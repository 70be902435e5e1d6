//! Errors: what was refused, in which input, and where in it.

use core::fmt;

/// A side of an alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The tokens that are mapped.
    Student,
    /// The tokens that they are mapped to.
    Teacher,
}

/// The parameter of a function that an [`Error`] is about. `Display` writes [`Input::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is the parameter of its name")]
pub enum Input {
    Student,
    Teacher,
    StudentCuSeqlens,
    TeacherCuSeqlens,
    CuSeqlens,
    Mapping,
    Losses,
    Spans,
    Offsets,
    Pairs,
    Ids,
    Texts,
    Proved,
    Kinds,
    Pieces,
    Roles,
    Out,
    Chunks,
    N,
    NStudent,
    NTeacher,
}

impl Input {
    /// The name of the parameter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Student => "student",
            Self::Teacher => "teacher",
            Self::StudentCuSeqlens => "student_cu_seqlens",
            Self::TeacherCuSeqlens => "teacher_cu_seqlens",
            Self::CuSeqlens => "cu_seqlens",
            Self::Mapping => "mapping",
            Self::Losses => "losses",
            Self::Spans => "spans",
            Self::Offsets => "offsets",
            Self::Pairs => "pairs",
            Self::Ids => "ids",
            Self::Texts => "texts",
            Self::Proved => "proved",
            Self::Kinds => "kinds",
            Self::Pieces => "pieces",
            Self::Roles => "roles",
            Self::Out => "out",
            Self::Chunks => "chunks",
            Self::N => "n",
            Self::NStudent => "n_student",
            Self::NTeacher => "n_teacher",
        }
    }

    /// The side that the parameter belongs to. `None` if it belongs to both or to neither.
    #[must_use]
    pub const fn side(self) -> Option<Side> {
        match self {
            Self::Student | Self::StudentCuSeqlens | Self::NStudent => Some(Side::Student),
            Self::Teacher | Self::TeacherCuSeqlens | Self::NTeacher => Some(Side::Teacher),
            _ => None,
        }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an [`Error`] is about, without the details. [`Error::kind`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Non-empty spans decrease.
    Order,
    /// A number is too small or too large.
    Size,
    /// Two inputs have lengths that do not fit each other.
    Length,
    /// Row boundaries do not divide the tokens of a batch.
    Boundaries,
    /// A range of a mapping is not one of the teacher's rows of its text.
    Mapping,
    /// An id has no bytes.
    Decoding,
    /// An offset lies outside the text.
    Outside,
    /// There is not enough memory for the result.
    Memory,
}

/// Why an input was refused. Each variant has the input and, where they apply, the row of the batch (the document; 0
/// outside a batch), the token counted within that row, and the value.
///
/// A message begins with the name of the input, as [`Input`] displays it, unless [`Error::input`] is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A non-empty span that starts or ends before the previous non-empty span.
    Unsorted {
        /// The spans.
        input: Input,
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
    TooMany {
        /// The input that is too large.
        input: Input,
        /// What is counted.
        items: &'static str,
        /// The largest allowed number.
        limit: usize,
        /// The number of items.
        got: usize,
    },

    /// An offset that the type of the spans cannot hold. The input is [`Input::Pairs`].
    TooLarge {
        /// Index of the pair.
        token: usize,
        /// The largest allowed offset.
        limit: i64,
        /// The offset, or `u64::MAX` if it does not fit 64 bits.
        got: u64,
    },

    /// Fewer items than required.
    TooFew {
        /// The input that is too small.
        input: Input,
        /// The smallest allowed number.
        expected: usize,
        /// The number of items.
        got: usize,
    },

    /// A result for which there is not enough memory.
    Memory {
        /// Size of the result in bytes.
        bytes: usize,
    },

    /// A document that is too long for 32-bit byte offsets. The input is [`Input::Texts`].
    TextTooLong {
        /// Row of the batch.
        row: usize,
        /// UTF-8 bytes of the document.
        bytes: usize,
    },

    /// An input whose length does not match the other inputs.
    Length {
        /// The input with the wrong length.
        input: Input,
        /// The length that the other inputs require.
        expected: usize,
        /// Its length.
        got: usize,
    },

    /// Row boundaries without any value. Even an empty batch has the value 0.
    CuSeqlensEmpty {
        /// The boundaries.
        input: Input,
    },

    /// Row boundaries that do not start at 0.
    CuSeqlensStart {
        /// The boundaries.
        input: Input,
        /// The first boundary.
        value: i64,
    },

    /// Row boundaries that decrease.
    CuSeqlensDecreasing {
        /// The boundaries.
        input: Input,
        /// Index of the boundary.
        index: usize,
        /// The boundary before it.
        previous: i64,
        /// The boundary.
        value: i64,
    },

    /// Row boundaries that do not end with the number of tokens.
    CuSeqlensEnd {
        /// The boundaries.
        input: Input,
        /// Index of the last boundary.
        index: usize,
        /// Number of tokens.
        expected: usize,
        /// The last boundary.
        value: i64,
    },

    /// A range of the mapping that is empty or out of bounds, and not [`UNMAPPED`](crate::UNMAPPED).
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

    /// An id that cannot be decoded. The input is [`Input::Ids`].
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
    OutsideText {
        /// The offsets.
        input: Input,
        /// Row of the batch.
        row: usize,
        /// Token within the row.
        token: usize,
        /// The pair of offsets.
        span: [i64; 2],
        /// Length of the text.
        len: usize,
        /// Unit of the offsets: characters or bytes.
        unit: &'static str,
    },
}

impl Error {
    /// What the error is about, without the details.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsorted { .. } => ErrorKind::Order,
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::TooFew { .. } | Self::TextTooLong { .. } => {
                ErrorKind::Size
            }
            Self::Memory { .. } => ErrorKind::Memory,
            Self::Length { .. } => ErrorKind::Length,
            Self::CuSeqlensEmpty { .. }
            | Self::CuSeqlensStart { .. }
            | Self::CuSeqlensDecreasing { .. }
            | Self::CuSeqlensEnd { .. } => ErrorKind::Boundaries,
            Self::Range { .. } | Self::OtherText { .. } => ErrorKind::Mapping,
            Self::NoBytes { .. } => ErrorKind::Decoding,
            Self::OutsideText { .. } => ErrorKind::Outside,
        }
    }

    /// The input that the error is about. `None` if there is not enough memory.
    #[must_use]
    pub const fn input(&self) -> Option<Input> {
        match *self {
            Self::Unsorted { input, .. }
            | Self::TooMany { input, .. }
            | Self::TooFew { input, .. }
            | Self::Length { input, .. }
            | Self::CuSeqlensEmpty { input }
            | Self::CuSeqlensStart { input, .. }
            | Self::CuSeqlensDecreasing { input, .. }
            | Self::CuSeqlensEnd { input, .. }
            | Self::OutsideText { input, .. } => Some(input),
            Self::TooLarge { .. } => Some(Input::Pairs),
            Self::TextTooLong { .. } => Some(Input::Texts),
            Self::Range { .. } | Self::OtherText { .. } => Some(Input::Mapping),
            Self::NoBytes { .. } => Some(Input::Ids),
            Self::Memory { .. } => None,
        }
    }

    /// The row of the batch, if the error is about one. It is 0 outside a batch.
    #[must_use]
    pub const fn row(&self) -> Option<usize> {
        match *self {
            Self::Unsorted { row, .. }
            | Self::TextTooLong { row, .. }
            | Self::OtherText { row, .. }
            | Self::NoBytes { row, .. }
            | Self::OutsideText { row, .. } => Some(row),
            _ => None,
        }
    }

    /// The index of the token, range, pair or boundary that was refused, if the error is about one. The variants say
    /// from where it counts.
    #[must_use]
    pub const fn index(&self) -> Option<usize> {
        match *self {
            Self::Unsorted { token, .. }
            | Self::TooLarge { token, .. }
            | Self::Range { token, .. }
            | Self::OtherText { token, .. }
            | Self::NoBytes { token, .. }
            | Self::OutsideText { token, .. } => Some(token),
            Self::CuSeqlensStart { .. } => Some(0),
            Self::CuSeqlensDecreasing { index, .. } | Self::CuSeqlensEnd { index, .. } => Some(index),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(input) = self.input() {
            write!(f, "{input}")?; // so that nobody who renames inputs has to know the messages
        }
        match *self {
            Self::Unsorted { row, token, previous: [first, last], span: [start, end], .. } => {
                write!(
                    f,
                    ": row {row}, token {token}: span ({start}, {end}) comes after ({first}, {last}), \
                     but non-empty spans must not decrease in start or end"
                )?;
                let next_text = " (if another text starts here, cu_seqlens must have a boundary)";
                f.write_str(if start == 0 { next_text } else { "" })
            }
            Self::TooMany { items, limit, got, .. } => write!(f, ": expected at most {limit} {items}, got {got}"),
            Self::TooLarge { token, limit, got } => {
                write!(f, ": token {token}: expected offsets of at most {limit}, got {got}")
            }
            Self::TooFew { expected, got, .. } => write!(f, ": expected at least {expected}, got {got}"),
            Self::Memory { bytes } => write!(f, "not enough memory for a result of {bytes} bytes"),
            Self::TextTooLong { row, bytes } => {
                write!(f, ": row {row}: expected at most {} bytes, got {bytes}", i32::MAX)
            }
            Self::Length { expected, got, .. } => write!(f, ": expected {expected} items, got {got}"),
            Self::CuSeqlensEmpty { .. } => f.write_str(": expected number of rows + 1 values, got none"),
            Self::CuSeqlensStart { value, .. } => write!(f, "[0]: expected 0, got {value}"),
            Self::CuSeqlensDecreasing { index, previous, value, .. } => {
                write!(f, "[{index}]: expected at least {previous}, the value before it, got {value}")
            }
            Self::CuSeqlensEnd { index, expected, value, .. } => {
                write!(f, "[{index}]: expected {expected}, the number of tokens, got {value}")
            }
            Self::Range { token, range: [first, stop], items, len } => write!(
                f,
                ": token {token}: expected (-1, -1) or 0 <= first < stop <= {len}, the number of {items}, \
                 got ({first}, {stop})"
            ),
            Self::OtherText { token, row, range: [first, stop], rows: [from, to] } => write!(
                f,
                ": token {token}: expected teacher rows {from} to {to}, those of its text, row {row}, \
                 got ({first}, {stop})"
            ),
            Self::NoBytes { row, token, id, why } => write!(f, ": row {row}, token {token}: id {id} {why}"),
            Self::OutsideText { row, token, span: [start, end], len, unit, .. } => write!(
                f,
                ": row {row}, token {token}: expected 0 <= start <= end <= {len}, the text's length in {unit}, \
                 got ({start}, {end})"
            ),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn an_error_says_what_and_where() {
        let (previous, span) = ([1, 2], [0, 1]);
        let error = Error::Unsorted { input: Input::Teacher, row: 3, token: 7, previous, span };
        assert_eq!((error.kind(), error.row(), error.index()), (ErrorKind::Order, Some(3), Some(7)));
        assert_eq!(error.input().and_then(Input::side), Some(Side::Teacher));
        let error = Error::CuSeqlensEnd { input: Input::CuSeqlens, index: 2, expected: 3, value: 4 };
        assert_eq!((error.kind(), error.row(), error.index()), (ErrorKind::Boundaries, None, Some(2)));
        assert_eq!(error.input().and_then(Input::side), None);
        assert_eq!(Error::Memory { bytes: 8 }.input(), None);
        assert_eq!(Error::Memory { bytes: 8 }.to_string(), "not enough memory for a result of 8 bytes");
    }
}
