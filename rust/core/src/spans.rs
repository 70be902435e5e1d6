use crate::batch::{Rows, expect_len};
use crate::memory::{extend, filled_with, push, with_room};
use crate::{Span, SpanError};

/// Where a tokenizer puts a space in front of a text that has none; "segment" is the text before, between
/// or after added tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DummyPrefix {
    /// Nowhere.
    #[default]
    None,
    /// At the start of every segment, even one that begins with a space (legacy SentencePiece).
    Prepend,
    /// At the start of every segment that does not begin with a space.
    Metaspace,
    /// At the document's start, unless it begins with a space.
    MetaspaceFirst,
}

/// How an id comes into a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum PieceRole {
    /// A piece of the model.
    #[default]
    Plain = 0,
    /// An added token, found in the text by its literal content before the tokenizer runs.
    Added = 1,
    /// An added token that may also stand beside the text without being in it: BOS, EOS.
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

/// The bytes that each id of a lossless tokenizer stands for.
#[derive(Clone, Debug)]
pub struct PieceTable {
    bytes: Vec<u8>,
    /// Piece `id` is `bytes[ends[id - 1]..ends[id]]`; empty where the surface is unknown.
    ends: Vec<u32>,
    roles: Vec<PieceRole>,
    dummy_prefix: DummyPrefix,
}

impl PieceTable {
    /// Takes one item per id: its bytes (with spaces for `▁`), or `None` where they are unknown, and its role.
    ///
    /// # Errors
    /// [`SpanError::Length`] unless `roles` holds one role per piece, [`SpanError::TooMany`] for 4 GiB of
    /// pieces or more, [`SpanError::Memory`].
    pub fn new<P: AsRef<[u8]>>(
        pieces: impl IntoIterator<Item = Option<P>>,
        roles: &[PieceRole],
        dummy_prefix: DummyPrefix,
    ) -> Result<Self, SpanError> {
        let (mut bytes, mut ends) = (Vec::new(), with_room(roles.len())?);
        let mut own_roles = with_room(roles.len())?;
        extend(&mut own_roles, roles)?;
        for piece in pieces {
            if let Some(piece) = piece {
                extend(&mut bytes, piece.as_ref())?;
            }
            let Ok(end) = u32::try_from(bytes.len()) else {
                let (items, limit) = ("bytes in all", u32::MAX as usize);
                return Err(SpanError::TooMany { argument: "pieces", items, limit, got: bytes.len() });
            };
            push(&mut ends, end)?;
        }
        expect_len("roles", ends.len(), roles.len())?;
        Ok(Self { bytes, ends, roles: own_roles, dummy_prefix })
    }

    /// Number of ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no id at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of an id; `None` for an id outside the table or without known bytes.
    #[must_use]
    pub fn surface(&self, id: i32) -> Option<&[u8]> {
        self.piece(id).map(|(piece, _)| piece)
    }

    #[inline]
    fn piece(&self, id: i32) -> Option<(&[u8], PieceRole)> {
        let id = usize::try_from(id).ok()?;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { *self.ends.get(id - 1)? as usize };
        let piece = self.bytes.get(start..end)?;
        if piece.is_empty() { None } else { Some((piece, *self.roles.get(id)?)) }
    }

    /// Whether a space of the tokenizer's own may follow this id (`None`: the document's start).
    pub(crate) fn may_put_dummy_after(&self, before: Option<i32>) -> bool {
        match self.dummy_prefix {
            DummyPrefix::None => false,
            DummyPrefix::MetaspaceFirst => before.is_none(),
            DummyPrefix::Prepend | DummyPrefix::Metaspace => before.is_none_or(|id| {
                let role = usize::try_from(id).ok().and_then(|id| self.roles.get(id));
                role.is_some_and(|&role| role != PieceRole::Plain)
            }),
        }
    }

    /// Whether the tokenizer puts a space before what follows; `first` at the document's start.
    fn has_dummy(&self, rest: &[u8], first: bool) -> bool {
        match self.dummy_prefix {
            DummyPrefix::None => false,
            DummyPrefix::Prepend => true,
            DummyPrefix::Metaspace => !rest.starts_with(b" "),
            DummyPrefix::MetaspaceFirst => first && !rest.starts_with(b" "),
        }
    }
}

/// Writes the byte span of each id, and proves it: the bytes of the ids, one after the other and without
/// dummy prefixes, must be `text`. Returns whether they are; if not, `out` holds zeros.
///
/// Not proved are texts that the tokenizer changed (normalisation), ids outside the table, and ids without
/// known bytes. A piece that is nothing but a dummy prefix gets an empty span where it stands, and so does a
/// special token that is not written in the text there. Time is linear in ids and text.
///
/// # Errors
/// [`SpanError::Length`] unless `out` holds one span per id, [`SpanError::TextTooLong`] for a text of
/// 2^31 bytes or more.
///
/// # Example
/// ```
/// use vocagno::{DummyPrefix, PieceRole, PieceTable, spans_from_ids};
///
/// let table = PieceTable::new([Some(" proof"), Some("read"), None], &[PieceRole::Plain; 3], DummyPrefix::Prepend)?;
/// let mut spans = [[0; 2]; 2];
/// assert!(spans_from_ids(&table, &[0, 1], b"proofread", &mut spans)?);
/// assert_eq!(spans, [[0, 5], [5, 9]]);
/// assert!(!spans_from_ids(&table, &[0, 1], b"proofreads", &mut spans)?);
/// # Ok::<(), vocagno::SpanError>(())
/// ```
pub fn spans_from_ids(table: &PieceTable, ids: &[i32], text: &[u8], out: &mut [Span<i32>]) -> Result<bool, SpanError> {
    expect_len("out", ids.len(), out.len())?;
    spans_of_row(table, ids, text, 0, out)
}

/// [`spans_from_ids`] for a batch of documents: document `b` has the ids `cu_seqlens[b]..cu_seqlens[b + 1]`.
/// `proved` holds one flag per document; the spans of documents that are not proved are zeros.
///
/// With the feature `rayon`, and called inside a rayon thread pool, documents run in parallel.
///
/// # Errors
/// As [`spans_from_ids`], for `cu_seqlens` that do not fit the ids, and [`SpanError::Length`] unless `texts`
/// and `proved` hold one item per document.
pub fn spans_from_ids_batch<S: AsRef<[u8]> + Sync>(
    table: &PieceTable,
    ids: &[i32],
    cu_seqlens: &[i64],
    texts: &[S],
    out: &mut [Span<i32>],
    proved: &mut [bool],
) -> Result<(), SpanError> {
    expect_len("out", ids.len(), out.len())?;
    let rows = Rows::checked("cu_seqlens", cu_seqlens, ids.len())?;
    expect_len("texts", rows.count(), texts.len())?;
    expect_len("proved", rows.count(), proved.len())?;
    rows.for_each(out, proved, &|row, out, proved| {
        *proved = spans_of_row(table, &ids[rows.range(row)], texts[row].as_ref(), row, out)?;
        Ok(())
    })
}

fn spans_of_row(
    table: &PieceTable,
    ids: &[i32],
    text: &[u8],
    row: usize,
    out: &mut [Span<i32>],
) -> Result<bool, SpanError> {
    text_len(text, row)?;
    let proved = walk(table, ids, text, out).is_some();
    if !proved {
        out.fill([0; 2]);
    }
    Ok(proved)
}

/// The text's length in bytes, which 32-bit offsets must be able to number.
pub(crate) fn text_len(text: &[u8], row: usize) -> Result<i32, SpanError> {
    i32::try_from(text.len()).map_err(|_| SpanError::TextTooLong { row, bytes: text.len() })
}

/// Walks ids and text together; `None` at the first id that does not continue the text.
fn walk(table: &PieceTable, ids: &[i32], text: &[u8], out: &mut [Span<i32>]) -> Option<()> {
    let (mut rest, mut end) = (text, 0_i32);
    let (mut segment_start, mut first) = (true, true);
    for (span, &id) in out.iter_mut().zip(ids) {
        let (mut piece, role) = table.piece(id)?;
        if role == PieceRole::Special && !rest.starts_with(piece) {
            (*span, segment_start) = ([end; 2], true);
            continue;
        }
        let added = role != PieceRole::Plain;
        if segment_start && !added && table.has_dummy(rest, first) {
            piece = piece.strip_prefix(b" ")?;
        }
        rest = rest.strip_prefix(piece)?;
        let start = end;
        end = start.checked_add(i32::try_from(piece.len()).ok()?)?;
        *span = [start, end];
        (segment_start, first) = (added, false);
    }
    rest.is_empty().then_some(())
}

/// The bytes of a whole document kept as ids, and their spans: those of its pieces, without dummy prefixes and
/// special tokens, which get empty spans.
///
/// A tokenizer that puts a space before a text only where there is none ([`DummyPrefix::Metaspace`]) makes the
/// same ids of "a" and " a"; the bytes are then those without the space.
///
/// # Errors
/// [`SpanError::NoBytes`] for an id outside the table or without known bytes, and for a first piece without
/// the dummy prefix, as where a document was cut. [`SpanError::Length`] unless `out` holds one span per id,
/// [`SpanError::TextTooLong`], [`SpanError::Memory`].
///
/// # Example
/// ```
/// use vocagno::{DummyPrefix, PieceRole, PieceTable, decode};
///
/// let table = PieceTable::new([" proof", "read"].map(Some), &[PieceRole::Plain; 2], DummyPrefix::Prepend)?;
/// let mut spans = [[0; 2]; 2];
/// assert_eq!(decode(&table, &[0, 1], &mut spans)?, b"proofread");
/// assert_eq!(spans, [[0, 5], [5, 9]]);
/// assert!(decode(&table, &[1], &mut spans[..1]).is_err());
/// # Ok::<(), vocagno::SpanError>(())
/// ```
pub fn decode(table: &PieceTable, ids: &[i32], out: &mut [Span<i32>]) -> Result<Vec<u8>, SpanError> {
    expect_len("out", ids.len(), out.len())?;
    decode_row(table, ids, 0, out)
}

/// [`decode`] for a batch of documents: document `b` has the ids `cu_seqlens[b]..cu_seqlens[b + 1]`.
///
/// # Errors
/// As [`decode`], and for `cu_seqlens` that do not fit the ids.
pub fn decode_batch(
    table: &PieceTable,
    ids: &[i32],
    cu_seqlens: &[i64],
    out: &mut [Span<i32>],
) -> Result<Vec<Vec<u8>>, SpanError> {
    expect_len("out", ids.len(), out.len())?;
    let rows = Rows::checked("cu_seqlens", cu_seqlens, ids.len())?;
    let mut texts = filled_with(Vec::new(), rows.count())?;
    rows.for_each(out, &mut texts, &|row, out, text| {
        *text = decode_row(table, &ids[rows.range(row)], row, out)?;
        Ok(())
    })?;
    Ok(texts)
}

fn decode_row(table: &PieceTable, ids: &[i32], row: usize, out: &mut [Span<i32>]) -> Result<Vec<u8>, SpanError> {
    let (mut text, mut end) = (Vec::new(), 0);
    let mut segment_start = true;
    for (token, (span, &id)) in out.iter_mut().zip(ids).enumerate() {
        let refused = |why| SpanError::NoBytes { row, token, id, why };
        let (mut piece, role) = table.piece(id).ok_or(refused("has no known bytes"))?;
        if role == PieceRole::Special {
            (*span, segment_start) = ([end; 2], true);
            continue;
        }
        let added = role == PieceRole::Added;
        if segment_start && !added && table.has_dummy(&[], text.is_empty()) {
            let why = "starts a text without this tokenizer's dummy prefix; is the document cut?";
            let rest = piece.strip_prefix(b" ").ok_or(refused(why))?;
            let next = || ids.get(token + 1).and_then(|&id| table.piece(id)).filter(|next| next.1 == PieceRole::Plain);
            let after = rest.first().or_else(|| next()?.0.first());
            // A space that is not followed by text, or by a second one, was in the text: none was put before it.
            if table.dummy_prefix == DummyPrefix::Prepend || !matches!(after, None | Some(b' ')) {
                piece = rest;
            }
        }
        extend(&mut text, piece)?;
        let start = end;
        end = text_len(&text, row)?;
        (*span, segment_start) = ([start, end], added);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCABULARY: [&[u8]; 9] = [b" ", b" a", b"a", b" b", b"<s>", b"\xe2", b"\x88", b"\x91", b"  "];
    const ROLES: [PieceRole; 10] = {
        let mut roles = [PieceRole::Plain; 10];
        roles[4] = PieceRole::Special;
        roles
    };

    /// Spans of ids over [`VOCABULARY`] (9 is an unknown piece), or `None` if they are not proved.
    fn spans(dummy_prefix: DummyPrefix, ids: &[i32], text: &str) -> Option<Vec<Span<i32>>> {
        let pieces = VOCABULARY.map(Some).into_iter().chain([None]);
        let table = PieceTable::new(pieces, &ROLES, dummy_prefix).ok()?;
        let mut out = vec![[7; 2]; ids.len()];
        let proved = spans_from_ids(&table, ids, text.as_bytes(), &mut out).ok()?;
        assert!(proved || out.iter().all(|&span| span == [0; 2]));
        proved.then_some(out)
    }

    #[test]
    fn a_lone_dummy_prefix_is_empty_and_byte_fallback_splits_a_character() {
        let expected = vec![[0, 0], [0, 1], [1, 2], [2, 3]];
        assert_eq!(spans(DummyPrefix::Prepend, &[0, 5, 6, 7], "∑"), Some(expected.clone()));
        assert_eq!(spans(DummyPrefix::Metaspace, &[0, 5, 6, 7], "∑"), Some(expected.clone()));
        assert_eq!(spans(DummyPrefix::MetaspaceFirst, &[0, 5, 6, 7], "∑"), Some(expected));
        assert_eq!(spans(DummyPrefix::None, &[0, 5, 6, 7], "∑"), None);
    }

    #[test]
    fn a_leading_space_of_the_text() {
        assert_eq!(spans(DummyPrefix::Prepend, &[0, 1], " a"), Some(vec![[0, 0], [0, 2]]));
        assert_eq!(spans(DummyPrefix::Prepend, &[8, 2], " a"), Some(vec![[0, 1], [1, 2]]));
        assert_eq!(spans(DummyPrefix::Prepend, &[1], " a"), None);
        assert_eq!(spans(DummyPrefix::Metaspace, &[1], " a"), Some(vec![[0, 2]]));
        assert_eq!(spans(DummyPrefix::Metaspace, &[0, 1], " a"), None);
    }

    #[test]
    fn an_added_token_starts_a_segment() {
        let ids = [4, 1, 3, 4, 1];
        let expected = Some(vec![[0, 3], [3, 4], [4, 6], [6, 9], [9, 10]]);
        assert_eq!(spans(DummyPrefix::Prepend, &ids, "<s>a b<s>a"), expected);
        assert_eq!(spans(DummyPrefix::Metaspace, &ids, "<s>a b<s>a"), expected);
        assert_eq!(spans(DummyPrefix::MetaspaceFirst, &ids, "<s>a b<s>a"), None);
        assert_eq!(spans(DummyPrefix::MetaspaceFirst, &[4, 2, 3, 4, 2], "<s>a b<s>a"), expected);
        assert_eq!(spans(DummyPrefix::MetaspaceFirst, &[1, 4, 1], "a<s> a"), Some(vec![[0, 1], [1, 4], [4, 6]]));
        assert_eq!(spans(DummyPrefix::Prepend, &[2, 3], "a b"), None);
    }

    #[test]
    fn what_is_not_proved() {
        assert_eq!(spans(DummyPrefix::None, &[], ""), Some(vec![]));
        assert_eq!(spans(DummyPrefix::None, &[], "a"), None);
        assert_eq!(spans(DummyPrefix::None, &[2], ""), None);
        for id in [9, 10, -1, i32::MAX, i32::MIN] {
            assert_eq!(spans(DummyPrefix::None, &[2, id], "aa"), None, "{id}");
        }
    }

    #[test]
    fn a_batch_says_which_documents_are_proved() -> Result<(), SpanError> {
        let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], DummyPrefix::None)?;
        let (mut out, mut proved) = ([[7; 2]; 4], [true, false, true]);
        spans_from_ids_batch(&table, &[2, 1, 2, 2], &[0, 2, 2, 4], &["a a", "", "ab"], &mut out, &mut proved)?;
        assert_eq!(out, [[0, 1], [1, 3], [0, 0], [0, 0]]);
        assert_eq!(proved, [true, true, false]);
        let texts = spans_from_ids_batch(&table, &[2], &[0, 1], &[""; 2], &mut [[0; 2]], &mut [false]);
        assert_eq!(texts, Err(SpanError::Length { argument: "texts", expected: 1, got: 2 }));
        let roles = PieceTable::new(VOCABULARY.map(Some), &ROLES, DummyPrefix::None).map(|table| table.len());
        assert_eq!(roles, Err(SpanError::Length { argument: "roles", expected: 9, got: 10 }));
        Ok(())
    }
}
