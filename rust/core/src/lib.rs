//! Aligns the tokens of one tokenizer (the *student*) with those of another (the *teacher*) by the text that both
//! cover, and transfers per-token losses from the teacher's tokens to the student's.
//!
//! ```
//! use vocagno::{Reduction, align, groups, reduce};
//!
//! // "proofread" as proof|read and as pr|oofre|ad, in bytes, and the teacher's losses in nats
//! let (student, teacher) = ([[0, 5], [5, 9]], [[0, 2], [2, 7], [7, 9]]);
//! let losses = [1.5_f32, 0.25, 0.75];
//!
//! let mapping = align(&student, &teacher)?; // teacher rows that share text with each student token
//! assert_eq!(mapping, [[0, 2], [1, 3]]);
//! assert_eq!(reduce(&losses, &mapping, Reduction::Max)?, [1.5, 0.75]);
//! assert_eq!(groups(&student, &teacher)?.teacher, [[0, 3]]); // no boundary inside is shared
//! # Ok::<(), vocagno::Error>(())
//! ```
//!
//! # Why this crate, and when not
//!
//! Mapping tokens by their text looks like ten lines of binary search. What those ten lines miss is what tokenizers
//! do: tokens without text in the middle of a sequence, several tokens with the span of one character, offsets that
//! leave out spaces, count characters or point into a normalised text. Every function here is compared with an oracle
//! of a few obvious lines on generated and fuzzed inputs of that kind, refuses what it cannot map, and says which token
//! it was. No function panics, on any input. There is no unsafe code, no dependency, and no `std`.
//!
//! It is also fast. Where both sides tile their text, a table from bytes to rows takes the place of the search: some 54
//! instructions a student token on x86-64. All other input takes linear time if spans are sorted.
//!
//! Use something else
//!
//! * to turn text into tokens: this crate takes offsets, or ids with the bytes of each id.
//! * if one tokenizer's tokens are always unions of the other's (words and their pieces): a loop does it.
//! * to align two different texts. [`align()`] compares positions in one text, not characters. Edit distances and
//!   sequence aligners do that.
//! * for distributions over two vocabularies. This crate moves one number a token.
//!
//! # Where what is
//!
//! Data flows in three steps:
//!
//! 1. [`spans`] of each side, from ids and text or from a tokenizer's own offsets.
//! 2. A [`mapping`] from the spans of both sides, and what can be said about it.
//! 3. One [`loss`] per student token from the mapping and the teacher's losses.
//!
//! A *span* is half-open, `[start, end)`. It is empty if `start >= end`. Plain functions take one text and allocate
//! their result. Variants whose names end in `_into` write it to a slice. `_batch` takes several texts as a
//! [`batch`]: flat arrays and `cu_seqlens`, the row boundaries, `B + 1` values from 0 to the number of tokens.
//!
//! Every [`Error`] says which input was refused, and where in it. A result for which there is not enough memory is
//! [`Error::Memory`], not an abort. Enumerations and structures may gain variants and fields: end a match with an arm
//! `_`.
//!
//! The feature `places` adds the module `places`, which checks spans: it finds tokens whose characters differ from the
//! text at their spans. It needs the Unicode tables of `unicode-normalization`.
//!
//! Source of the method: Shin et al., "VocAgnoLM", ICML 2025, arXiv 2503.19123.

#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std; // for proptest

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod batch;
pub mod error;
pub mod loss;
pub mod mapping;
#[cfg(feature = "places")]
pub mod places;
pub mod spans;

mod align;
mod checks;
mod chunks;
mod groups;
mod memory;
mod offset;
mod ordered;
mod overlap;
mod reasons;
mod reduce;
mod search;
mod starts;
mod tiling;

pub use batch::Batch;
pub use error::{Error, ErrorKind};
pub use loss::{Reduction, reduce, reduce_into};
pub use mapping::{
    Reason, TokenRange, UNMAPPED, align, align_batch, align_into, groups, overlap, starts, unmapped_reasons,
};
pub use spans::{DummyPrefix, PieceRole, PieceTable, Span, spans_from_ids};
