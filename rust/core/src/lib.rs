//! Aligns the tokens of one tokenizer (the *student*) with those of another (the *teacher*) by the text that
//! they share, and carries per-token losses across.
//!
//! The way of the data: ids and text become spans ([`spans_from_ids`]; or a tokenizer's own offsets, through
//! [`chars_to_bytes`], [`restore_spaces`] and [`close`]), spans of both sides become a mapping ([`align`]), a mapping and the
//! teacher's losses become one loss per student token ([`reduce`]), and [`unmapped_reasons`] says why a token
//! has none. [`groups`] finds what both tokenizers agree on. How good a mapping is, [`overlap`] measures; [`chunk_map`] is the one that knows no text, to compare.
//!
//! A *span* is half-open, `[start, end)`; it is empty if `start >= end`. A *batch* is ragged: flat arrays and
//! `cu_seqlens`, the row boundaries, `B + 1` values from 0 to the number of tokens.
//!
//! ```
//! use vocagno::{Reduction, align, reduce};
//!
//! // "proofread" as proof|read and as pr|oofre|ad, and the teacher's losses in nats
//! let (student, teacher) = ([[0, 5], [5, 9]], [[0, 2], [2, 7], [7, 9]]);
//! let losses = [1.5_f32, 0.25, 0.75];
//!
//! let mapping = align(&student, &teacher)?;
//! assert_eq!(mapping, [[0, 2], [1, 3]]);
//! assert_eq!(reduce(&losses, &mapping, Reduction::Max)?, [1.5, 0.75]);
//! # Ok::<(), vocagno::SpanError>(())
//! ```
//!
//! The feature `rayon` alone changes nothing: it needs a pool. Batches that are called inside one, by
//! [`ThreadPool::install`](https://docs.rs/rayon/latest/rayon/struct.ThreadPool.html#method.install) or from a task of
//! rayon's, run their rows in parallel; everything else runs on the calling thread.
//!
#![cfg_attr(feature = "rayon", doc = "```")]
#![cfg_attr(not(feature = "rayon"), doc = "```ignore")]
//! let (spans, cu_seqlens) = ([[0, 5], [5, 9], [0, 7]], [0, 2, 3]); // two texts
//! let mut mapping = [[0; 2]; 3];
//! let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build()?;
//! pool.install(|| vocagno::align_batch(&spans, &cu_seqlens, &spans, &cu_seqlens, &mut mapping))?;
//! assert_eq!(mapping, [[0, 1], [1, 2], [2, 3]]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Nothing here panics, on any input, and a result without memory is [`SpanError::Memory`]. Enumerations and
//! structures may grow: match them with a last arm `_`.
//!
//! With the feature `places`, `Places` checks spans: it finds tokens that do not stand for the text at theirs.
//!
//! Source of the method: Shin et al., "VocAgnoLM", ICML 2025, arXiv 2503.19123.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod align;
mod batch;
mod chunks;
mod closing;
mod error;
mod groups;
mod memory;
mod offsets;
mod overlap;
mod pairs;
#[cfg(feature = "places")]
mod places;
mod reasons;
mod reduce;
mod spans;
mod tiling;
mod trimmed;

pub use align::{align, align_batch, align_into};
#[cfg(feature = "rayon")]
pub use batch::in_parts;
pub use chunks::{chunk_boundaries, chunk_map};
pub use closing::{TokenKind, close, close_batch};
pub use error::SpanError;
pub use groups::{Groups, groups};
pub use offsets::{chars_to_bytes, chars_to_bytes_batch};
pub use overlap::{Overlap, overlap};
pub use pairs::to_spans;
#[cfg(feature = "places")]
pub use places::{Disagreement, Places};
pub use reasons::{Reason, unmapped_reasons};
pub use reduce::{Loss, Reduction, reduce, reduce_into};
pub use spans::{DummyPrefix, PieceRole, PieceTable, decode, decode_batch, spans_from_ids, spans_from_ids_batch};
pub use trimmed::{close_ids_batch, restore_spaces};

/// Half-open `[start, end)` of a token in its document; empty if `start >= end`.
pub type Span<T> = [T; 2];

/// Half-open range of teacher rows, or [`UNMAPPED`].
pub type TokenRange = [i32; 2];

/// The range of a student token that no teacher token shares text with.
pub const UNMAPPED: TokenRange = [-1, -1];

/// An offset in a text: `i32` or `i64`.
pub trait Offset: Copy + Ord + Into<i64> + Send + Sync + sealed::Sealed + sealed::Place {
    /// The smallest value.
    const MIN: Self;
    /// The largest value.
    const MAX: Self;
}

impl Offset for i32 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

impl Offset for i64 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

mod sealed {
    /// Keeps the traits of this crate to the types that its kernels are tested with.
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}

    /// Losses as numbers.
    pub trait Value: Sized {
        /// Smaller and larger than any finite value.
        const BOUNDS: [Self; 2];
        /// The value, without rounding.
        fn to_f64(self) -> f64;
    }

    impl Value for f32 {
        const BOUNDS: [Self; 2] = [Self::NEG_INFINITY, Self::INFINITY];

        fn to_f64(self) -> f64 {
            f64::from(self)
        }
    }

    impl Value for f64 {
        const BOUNDS: [Self; 2] = [Self::NEG_INFINITY, Self::INFINITY];

        fn to_f64(self) -> f64 {
            self
        }
    }

    /// Offsets as places in a window, in their own width.
    pub trait Place {
        /// Bytes behind `origin`; anything for an offset before it.
        fn bytes_from(self, origin: Self) -> usize;
        /// The offset so many bytes later, or the largest one.
        fn later(self, bytes: i32) -> Self;
    }

    #[expect(clippy::cast_sign_loss, reason = "not negative, by its contract")]
    impl Place for i32 {
        fn bytes_from(self, origin: Self) -> usize {
            self.wrapping_sub(origin) as u32 as usize
        }
        fn later(self, bytes: i32) -> Self {
            self.saturating_add(bytes)
        }
    }

    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "not negative, by its contract")]
    impl Place for i64 {
        fn bytes_from(self, origin: Self) -> usize {
            self.wrapping_sub(origin) as usize
        }
        fn later(self, bytes: i32) -> Self {
            self.saturating_add(bytes.into())
        }
    }
}
