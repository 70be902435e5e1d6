//! Byte spans of tokens: from ids and the bytes of each id, or from the offsets that a tokenizer reports.
//!
//! * [`spans_from_ids`] compares ids with the text. Where it succeeds, its spans are proved. [`decode`] gives text and
//!   spans from ids alone.
//! * [`chars_to_bytes`], [`restore_spaces`] and [`close`] make spans from a tokenizer's own offsets: in bytes, with
//!   trimmed spaces, without holes. [`close_ids`] takes the last two steps at once.
//! * [`to_spans`] converts offsets in the types of other crates, `(usize, usize)` or `[u32; 2]`.

mod dropped_bytes;
pub(crate) mod from_ids;
pub(crate) mod from_offsets;
pub(crate) mod from_pairs;
pub(crate) mod piece_table;

pub use self::from_ids::{
    decode, decode_batch, spans_from_ids, spans_from_ids_batch, spans_from_ids_batch_into, spans_from_ids_into,
};
pub use self::from_offsets::chars_to_bytes::{chars_to_bytes, chars_to_bytes_batch};
pub use self::from_offsets::close_holes::{TokenKind, close, close_batch};
pub use self::from_offsets::restore_spaces::restore_spaces;
pub use self::from_offsets::{close_ids, close_ids_batch};
pub use self::from_pairs::to_spans;
pub use self::piece_table::{DummyPrefix, PieceRole, PieceTable};
pub use crate::offset::{Offset, Span};
