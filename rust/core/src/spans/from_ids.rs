//! Spans from ids: the bytes of the ids, compared with the text or decoded to it.

use super::dropped_bytes::walk_over_dropped;
use super::piece_table::{DummyPrefix, PieceRole, PieceTable};
use crate::batch::Rows;
use crate::checks::{expect_len, text_len};
use crate::error::SpanError;
use crate::memory::{extend, filled_with};
use crate::offset::Span;

/// Writes the byte span of each id and proves the spans: the concatenated bytes of the ids, without dummy
/// prefixes, must equal `text`. Returns whether they do. If not, `out` holds zeros.
///
/// With [`PieceTable::dropping_bytes`] they must equal the text without its dropped bytes. The place of every piece is
/// then the only one possible. The token before a dropped byte gets it, with two exceptions: the token after it gets
/// white space, and the first bytes of a character whose next byte it begins with. The first token gets what is dropped
/// before it. Text of which no byte has a token is not proved.
///
/// There is no proof for a text that the tokenizer changed (normalisation), for an id outside the table, and for an
/// id without known bytes. A piece that is only a dummy prefix gets an empty span at its position. So does a special
/// token that is not in the text there. Time is linear in ids and text.
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
/// `proved` gets one flag per document. The spans of a document without a proof are zeros.
///
/// With the feature `rayon`, documents run in parallel if the call is made inside a rayon thread pool.
///
/// # Errors
/// As [`spans_from_ids`], for `cu_seqlens` that do not match the ids, and [`SpanError::Length`] unless `texts`
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
    let proved = walk(table, ids, text, out)
        .or_else(|| walk_over_dropped(table, table.dropped()?, ids, text, out)) // from the start: few texts need it
        .is_some();
    if !proved {
        out.fill([0; 2]);
    }
    Ok(proved)
}

/// Walks ids and text together. `None` at the first id that does not continue the text.
fn walk(table: &PieceTable, ids: &[i32], text: &[u8], out: &mut [Span<i32>]) -> Option<()> {
    let (mut rest, mut end) = (text, 0_i32);
    let (mut segment_start, mut first, mut skipped) = (true, true, false);
    for (span, &id) in out.iter_mut().zip(ids) {
        let (mut piece, role) = table.piece(id)?;
        if role == PieceRole::Special && !rest.starts_with(piece) {
            (*span, segment_start, skipped) = ([end; 2], true, true);
            continue;
        }
        let added = role != PieceRole::Plain;
        if segment_start && !added && table.has_dummy(rest, first) {
            piece = table.without_dummy(piece, skipped)?;
        }
        rest = rest.strip_prefix(piece)?;
        let start = end;
        end = start.checked_add(i32::try_from(piece.len()).ok()?)?;
        *span = [start, end];
        (segment_start, first) = (added, false);
    }
    rest.is_empty().then_some(())
}

/// Decodes a whole document from its ids to bytes, and writes the byte span of each id. Dummy prefixes and special
/// tokens are not part of the bytes. They get empty spans.
///
/// A tokenizer that inserts a space only before a text without one ([`DummyPrefix::Metaspace`]) gives "a" and " a"
/// the same ids, at the start of a text and after an added token. The bytes are then those without the space.
///
/// A special token may be written at the start of the text itself, as chat templates do. With
/// [`DummyPrefix::MetaspaceFirst`] no dummy prefix follows it, so a document that was cut behind such a token is not
/// noticed.
///
/// # Errors
/// [`SpanError::NoBytes`] for an id outside the table or without known bytes, and for a first piece without
/// the dummy prefix, which happens if a document was cut. [`SpanError::Length`] unless `out` holds one span per id,
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
    decode_row(table, ids, 0, false, out)
}

/// [`decode`] for a batch of documents: document `b` has the ids `cu_seqlens[b]..cu_seqlens[b + 1]`.
///
/// With `continues` they are later parts of documents, such as a response after its prompt: they start without a dummy
/// prefix, so a space there is in the text.
///
/// # Errors
/// As [`decode`], and for `cu_seqlens` that do not match the ids.
pub fn decode_batch(
    table: &PieceTable,
    ids: &[i32],
    cu_seqlens: &[i64],
    continues: bool,
    out: &mut [Span<i32>],
) -> Result<Vec<Vec<u8>>, SpanError> {
    expect_len("out", ids.len(), out.len())?;
    let rows = Rows::checked("cu_seqlens", cu_seqlens, ids.len())?;
    let mut texts = filled_with(Vec::new(), rows.count())?;
    rows.for_each(out, &mut texts, &|row, out, text| {
        *text = decode_row(table, &ids[rows.range(row)], row, continues, out)?;
        Ok(())
    })?;
    Ok(texts)
}

fn decode_row(
    table: &PieceTable,
    ids: &[i32],
    row: usize,
    continues: bool,
    out: &mut [Span<i32>],
) -> Result<Vec<u8>, SpanError> {
    let (mut text, mut end) = (Vec::new(), 0);
    let (mut segment_start, mut special_before) = (!continues, false);
    for (token, (span, &id)) in out.iter_mut().zip(ids).enumerate() {
        let refused = |why| SpanError::NoBytes { row, token, id, why };
        let (mut piece, role) = table.piece(id).ok_or(refused("has no known bytes"))?;
        if role == PieceRole::Special {
            (*span, segment_start, special_before) = ([end; 2], true, true);
            continue;
        }
        let added = role == PieceRole::Added;
        let is_literal =
            special_before && table.dummy_prefix == DummyPrefix::MetaspaceFirst && !piece.starts_with(b" ");
        if segment_start && !added && !is_literal && table.has_dummy(&[], text.is_empty() && !continues) {
            let why = "starts a text without this tokenizer's dummy prefix; was the document cut?";
            let rest = piece.strip_prefix(b" ").ok_or(refused(why))?;
            let next = || ids.get(token + 1).and_then(|&id| table.piece(id)).filter(|next| next.1 == PieceRole::Plain);
            let after = rest.first().or_else(|| next()?.0.first());
            // A space that is followed by a second space, or by no text, was in the text: the tokenizer inserted none.
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

    /// Spans of ids over [`VOCABULARY`] (9 is an unknown piece), or `None` if there is no proof.
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
    fn texts_without_a_proof() {
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

    #[test]
    fn a_continuation_starts_without_a_dummy_prefix_and_has_one_after_a_special_token() -> Result<(), SpanError> {
        for dummy_prefix in
            [DummyPrefix::None, DummyPrefix::Prepend, DummyPrefix::Metaspace, DummyPrefix::MetaspaceFirst]
        {
            let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], dummy_prefix)?;
            let mut spans = [[0; 2]; 3];
            let texts = decode_batch(&table, &[1, 2, 3], &[0, 2, 3], true, &mut spans)?;
            assert_eq!(texts, [b" aa".to_vec(), b" b".to_vec()], "{dummy_prefix:?}");
            assert_eq!(spans, [[0, 2], [2, 3], [0, 2]]);
            let after_special = decode_batch(&table, &[1, 4, 1], &[0, 3], true, &mut spans)?;
            let expected: &[u8] =
                if matches!(dummy_prefix, DummyPrefix::Prepend | DummyPrefix::Metaspace) { b" aa" } else { b" a a" };
            assert_eq!(after_special, [expected.to_vec()], "{dummy_prefix:?}");
        }
        Ok(())
    }

    #[test]
    fn no_dummy_prefix_of_the_first_text_follows_a_special_token_that_is_written() -> Result<(), SpanError> {
        let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], DummyPrefix::MetaspaceFirst)?;
        let mut spans = [[0; 2]; 3];
        assert_eq!(decode(&table, &[4, 2, 1], &mut spans)?, b"a a");
        assert_eq!(spans, [[0, 0], [0, 1], [1, 3]]);
        assert!(spans_from_ids(&table, &[4, 2, 1], b"a a", &mut spans)?);
        assert_eq!(spans, [[0, 0], [0, 1], [1, 3]]);
        assert_eq!(decode(&table, &[4, 1, 1], &mut spans)?, b"a a"); // a dummy prefix, as after BOS
        assert!(decode(&table, &[2, 1, 1], &mut spans).is_err());
        assert_eq!(decode_batch(&table, &[4, 1, 1], &[0, 3], true, &mut spans)?, [b" a a".to_vec()]);
        Ok(())
    }
}
