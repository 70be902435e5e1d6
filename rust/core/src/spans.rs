//! Byte spans of tokens: from ids and the bytes of each id, or from the offsets that a tokenizer reports.

mod dropped_bytes;
pub(crate) mod from_ids;
pub(crate) mod from_offsets;
pub(crate) mod from_pairs;
pub(crate) mod piece_table;
