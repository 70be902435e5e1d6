//! The vocabulary of a lossless tokenizer: the bytes and the role of each id.

use alloc::vec::Vec;

use crate::checks::{expect_len, piece_end};
use crate::error::{Error, Input};
use crate::memory::{extend, push, with_room};

/// Where a tokenizer inserts a space in front of the text. A "segment" is the text before, between or after added
/// tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DummyPrefix {
    /// Nowhere.
    #[default]
    None,
    /// At the start of every segment, even if it starts with a space (legacy SentencePiece).
    Prepend,
    /// At the start of every segment that does not start with a space.
    Metaspace,
    /// At the start of the document, unless it starts with a space.
    MetaspaceFirst,
}

/// Where an id of a document comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum PieceRole {
    /// A piece of the model.
    #[default]
    Plain = 0,
    /// An added token, found in the text by its literal content before the tokenizer runs.
    Added = 1,
    /// An added token that may also appear without being in the text: BOS, EOS.
    Special = 2,
}

impl TryFrom<u8> for PieceRole {
    type Error = u8;

    fn try_from(role: u8) -> Result<Self, u8> {
        match role {
            0 => Ok(Self::Plain),
            1 => Ok(Self::Added),
            2 => Ok(Self::Special),
            other => Err(other),
        }
    }
}

/// The bytes and the role of each id of a lossless tokenizer.
#[derive(Clone, Debug)]
pub struct PieceTable {
    bytes: Vec<u8>,
    /// Piece `id` is `bytes[ends[id - 1]..ends[id]]`. It is empty if the surface is unknown.
    ends: Vec<u32>,
    roles: Vec<PieceRole>,
    pub(super) dummy_prefix: DummyPrefix,
    /// The bytes of text that give no token, if there are any.
    dropped: Option<[bool; 256]>,
}

impl PieceTable {
    /// Takes one item per id: its bytes (with spaces for `▁`), or `None` if they are unknown, and its role.
    ///
    /// # Errors
    /// [`Error::Length`] unless `roles` holds one role per piece, [`Error::TooMany`] for 4 GiB of
    /// pieces or more, [`Error::Memory`].
    pub fn new<P: AsRef<[u8]>>(
        pieces: impl IntoIterator<Item = Option<P>>,
        roles: &[PieceRole],
        dummy_prefix: DummyPrefix,
    ) -> Result<Self, Error> {
        // One buffer for all pieces: a vector of each would take 24 bytes more for each of up to 262,144 ids.
        let (mut bytes, mut ends) = (Vec::new(), with_room(roles.len())?);
        let mut own_roles = with_room(roles.len())?;
        extend(&mut own_roles, roles)?;
        for piece in pieces {
            if let Some(piece) = piece {
                extend(&mut bytes, piece.as_ref())?;
            }
            push(&mut ends, piece_end(bytes.len())?)?;
        }
        expect_len(Input::Roles, ends.len(), roles.len())?;
        Ok(Self { bytes, ends, roles: own_roles, dummy_prefix, dropped: None })
    }

    /// Declares that the tokenizer drops the bytes that no plain piece contains, as a byte-level BPE without an unknown
    /// token does. [`spans_from_ids`](crate::spans::spans_from_ids) then skips them in the text.
    #[must_use]
    pub fn dropping_bytes(mut self) -> Self {
        let mut dropped = [true; 256];
        for id in 0..self.len() {
            let piece = i32::try_from(id).ok().and_then(|id| self.piece(id));
            for &byte in piece.filter(|(_, role)| *role == PieceRole::Plain).map_or(&[][..], |(piece, _)| piece) {
                dropped[usize::from(byte)] = false;
            }
        }
        self.dropped = dropped.contains(&true).then_some(dropped);
        self
    }

    /// The bytes of text that give no token, if there are any.
    pub(super) fn dropped(&self) -> Option<&[bool; 256]> {
        self.dropped.as_ref()
    }

    /// Number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the table has no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of an id. `None` for an id outside the table or without known bytes.
    #[must_use]
    pub fn surface(&self, id: i32) -> Option<&[u8]> {
        self.piece(id).map(|(piece, _)| piece)
    }

    /// Bytes and role of an id. `None` as in [`PieceTable::surface`].
    #[inline]
    pub(super) fn piece(&self, id: i32) -> Option<(&[u8], PieceRole)> {
        let id = usize::try_from(id).ok()?;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { *self.ends.get(id - 1)? as usize };
        let piece = self.bytes.get(start..end)?;
        if piece.is_empty() { None } else { Some((piece, *self.roles.get(id)?)) }
    }

    /// Whether the tokenizer may insert a space after this id (`None`: at the start of the document).
    pub(super) fn may_put_dummy_after(&self, before: Option<i32>) -> bool {
        match self.dummy_prefix {
            DummyPrefix::None => false,
            DummyPrefix::MetaspaceFirst => before.is_none(),
            DummyPrefix::Prepend | DummyPrefix::Metaspace => before.is_none_or(|id| {
                let role = usize::try_from(id).ok().and_then(|id| self.roles.get(id));
                role.is_some_and(|&role| role != PieceRole::Plain)
            }),
        }
    }

    /// Whether the tokenizer inserts a space before the text `rest`. `first` is set at the start of the document.
    pub(super) fn has_dummy(&self, rest: &[u8], first: bool) -> bool {
        match self.dummy_prefix {
            DummyPrefix::None => false,
            DummyPrefix::Prepend => true,
            DummyPrefix::Metaspace => !rest.starts_with(b" "),
            DummyPrefix::MetaspaceFirst => first && !rest.starts_with(b" "),
        }
    }

    /// A piece without the space that the tokenizer inserted before it. `None` if the piece has none.
    /// `after_special` is set behind a special token that is not in the text.
    #[inline]
    pub(super) fn without_dummy<'a>(&self, piece: &'a [u8], after_special: bool) -> Option<&'a [u8]> {
        match piece.strip_prefix(b" ") {
            None if after_special && self.dummy_prefix == DummyPrefix::MetaspaceFirst => Some(piece), // see `decode`
            bare => bare,
        }
    }
}
