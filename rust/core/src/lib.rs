//! Aligns the tokens of one tokenizer (the *student*) with those of another (the *teacher*) by the text that both
//! cover, and transfers per-token losses from the teacher's tokens to the student's.
//!
//! Data flows in three steps:
//!
//! 1. Spans of each side. [`spans_from_ids`] computes them from ids and text. For a tokenizer's own offsets use
//!    [`chars_to_bytes`], [`restore_spaces`] and [`close`].
//! 2. A mapping from the spans of both sides: [`align`].
//! 3. One loss per student token from the mapping and the teacher's losses: [`reduce`].
//!
//! [`unmapped_reasons`] says why a token has no loss. [`groups`] finds the runs of tokens on which both tokenizers
//! agree. [`starts`] finds the places at which both tokenizers start a token. [`overlap`] measures how good a mapping
//! is. [`chunk_map`] is a baseline that ignores the text.
//!
//! A *span* is half-open, `[start, end)`. It is empty if `start >= end`. A *batch* is ragged: flat arrays and
//! `cu_seqlens`, the row boundaries. These are `B + 1` values from 0 to the number of tokens.
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
//! The feature `rayon` has an effect only inside a thread pool. A batch function that is called inside one, by
//! [`ThreadPool::install`](https://docs.rs/rayon/latest/rayon/struct.ThreadPool.html#method.install) or from another
//! rayon task, processes its rows in parallel. All other calls run on the calling thread.
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
//! No function panics, on any input. A result for which there is not enough memory is [`SpanError::Memory`].
//! Enumerations and structures may gain variants and fields: end a match with an arm `_`.
//!
//! The feature `places` adds `Places`, which checks spans: it finds tokens whose characters differ from the text at
//! their spans.
//!
//! Source of the method: Shin et al., "VocAgnoLM", ICML 2025, arXiv 2503.19123.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod align;
mod batch;
mod checks;
mod chunks;
mod error;
mod groups;
mod loss;
mod mapping;
mod memory;
mod offset;
mod ordered;
mod overlap;
#[cfg(feature = "places")]
mod places;
mod reasons;
mod reduce;
mod search;
mod spans;
mod starts;
mod tiling;

pub use align::{align, align_batch, align_into};
#[cfg(feature = "rayon")]
pub use batch::in_parts;
pub use chunks::{chunk_boundaries, chunk_map};
pub use error::SpanError;
pub use groups::{Groups, groups};
pub use loss::Loss;
pub use mapping::{TokenRange, UNMAPPED};
pub use offset::{Offset, Span};
pub use overlap::{Overlap, overlap};
#[cfg(feature = "places")]
pub use places::{Disagreement, Places};
pub use reasons::{Reason, unmapped_reasons};
pub use reduce::{Reduction, reduce, reduce_into};
pub use spans::from_ids::{decode, decode_batch, spans_from_ids, spans_from_ids_batch};
pub use spans::from_offsets::chars_to_bytes::{chars_to_bytes, chars_to_bytes_batch};
pub use spans::from_offsets::close_holes::{TokenKind, close, close_batch};
pub use spans::from_offsets::close_ids_batch;
pub use spans::from_offsets::restore_spaces::restore_spaces;
pub use spans::from_pairs::to_spans;
pub use spans::piece_table::{DummyPrefix, PieceRole, PieceTable};
pub use starts::{starts, starts_batch};
