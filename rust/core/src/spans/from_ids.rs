//! Spans from ids: the bytes of the ids, compared with the text or decoded to it.

use alloc::vec::Vec;

use super::dropped_bytes::walk_over_dropped;
use super::piece_table::{DummyPrefix, PieceRole, PieceTable};
use crate::batch::Rows;
use crate::checks::{expect_len, text_len};
use crate::error::{Error, Input};
use crate::memory::{extend, filled_with, with_room};
use crate::offset::Span;

/// The byte span of each id, if it is proved: the concatenated bytes of the ids, without dummy prefixes, must equal
/// `text`. `None` if they do not.
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
/// [`Error::TextTooLong`] for a text of 2^31 bytes or more, [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::{DummyPrefix, PieceRole, PieceTable, spans_from_ids};
///
/// let table = PieceTable::new([Some(" proof"), Some("read"), None], &[PieceRole::Plain; 3], DummyPrefix::Prepend)?;
/// assert_eq!(spans_from_ids(&table, &[0, 1], b"proofread")?, Some(vec![[0, 5], [5, 9]]));
/// assert_eq!(spans_from_ids(&table, &[0, 1], b"proofreads")?, None);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn spans_from_ids(table: &PieceTable, ids: &[i32], text: &[u8]) -> Result<Option<Vec<Span<i32>>>, Error> {
    let mut out = filled_with([0; 2], ids.len())?;
    Ok(spans_from_ids_into(table, ids, text, &mut out)?.then_some(out))
}

/// [`spans_from_ids`] into a slice with one span per id. Returns whether the spans are proved. If not, `out` holds
/// zeros.
///
/// # Errors
/// As [`spans_from_ids`], and [`Error::Length`] for a slice of another length.
pub fn spans_from_ids_into(table: &PieceTable, ids: &[i32], text: &[u8], out: &mut [Span<i32>]) -> Result<bool, Error> {
    expect_len(Input::Out, ids.len(), out.len())?;
    spans_of_row(table, ids, text, 0, out)
}

/// [`spans_from_ids`] for a batch of documents, and for each document whether its spans are proved. The spans of a
/// document without a proof are zeros.
///
/// # Errors
/// As [`spans_from_ids`], and [`Error::Length`] for ids or texts that are not those of `rows`.
pub fn spans_from_ids_batch<S: AsRef<[u8]>>(
    table: &PieceTable,
    ids: &[i32],
    rows: Rows<'_>,
    texts: &[S],
) -> Result<(Vec<Span<i32>>, Vec<bool>), Error> {
    let (mut out, mut proved) = (filled_with([0; 2], rows.num_tokens())?, filled_with(false, rows.len())?);
    spans_from_ids_batch_into(table, ids, rows, texts, &mut out, &mut proved)?;
    Ok((out, proved))
}

/// [`spans_from_ids_batch`] into slices with one span per id and one flag per document of `rows`.
///
/// # Errors
/// As [`spans_from_ids_batch`], and [`Error::Length`] for slices of other lengths.
pub fn spans_from_ids_batch_into<S: AsRef<[u8]>>(
    table: &PieceTable,
    ids: &[i32],
    rows: Rows<'_>,
    texts: &[S],
    out: &mut [Span<i32>],
    proved: &mut [bool],
) -> Result<(), Error> {
    rows.expect_tokens(Input::Ids, ids.len())?;
    rows.expect_rows(Input::Texts, texts.len())?;
    expect_len(Input::Out, rows.num_tokens(), out.len())?;
    expect_len(Input::Proved, rows.len(), proved.len())?;
    let mut flags = proved.iter_mut();
    rows.for_each(out, |row, tokens, row_out| {
        let is_proved = spans_of_row(table, &ids[tokens], texts[row].as_ref(), row, row_out)?;
        flags.next().into_iter().for_each(|flag| *flag = is_proved);
        Ok(())
    })
}

fn spans_of_row(
    table: &PieceTable,
    ids: &[i32],
    text: &[u8],
    row: usize,
    out: &mut [Span<i32>],
) -> Result<bool, Error> {
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
    // A segment begins with the text and behind each added token: there a tokenizer may have put a dummy prefix.
    // `first`: no token with text yet. `skipped`: there was a special token that the text does not show, such as BOS.
    let (mut segment_start, mut first, mut skipped) = (true, true, false);
    for (span, &id) in out.iter_mut().zip(ids) {
        let (mut piece, role) = table.piece(id)?;
        if role == PieceRole::Special && !rest.starts_with(piece) {
            (*span, segment_start, skipped) = ([end; 2], true, true);
            continue;
        }
        let added = role != PieceRole::Plain;
        // Only at the start of a segment: anywhere else a space is text, and must be in it.
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

/// Decodes a whole document from its ids to bytes, and gives the byte span of each id. Dummy prefixes and special
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
/// [`Error::NoBytes`] for an id outside the table or without known bytes, and for a first piece without the dummy
/// prefix, which happens if a document was cut. [`Error::TextTooLong`], [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::spans::{DummyPrefix, PieceRole, PieceTable, decode};
///
/// let table = PieceTable::new([" proof", "read"].map(Some), &[PieceRole::Plain; 2], DummyPrefix::Prepend)?;
/// assert_eq!(decode(&table, &[0, 1])?, (b"proofread".to_vec(), vec![[0, 5], [5, 9]]));
/// assert!(decode(&table, &[1]).is_err());
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn decode(table: &PieceTable, ids: &[i32]) -> Result<(Vec<u8>, Vec<Span<i32>>), Error> {
    let mut spans = filled_with([0; 2], ids.len())?;
    let text = decode_row(table, ids, 0, false, &mut spans)?;
    Ok((text, spans))
}

/// [`decode`] for a batch of documents.
///
/// With `continues` they are later parts of documents, such as a response after its prompt: they start without a dummy
/// prefix, so a space there is in the text.
///
/// # Errors
/// As [`decode`], and [`Error::Length`] for ids that are not those of `rows`.
#[expect(clippy::type_complexity, reason = "the pair of `decode`, of which the texts are several")]
pub fn decode_batch(
    table: &PieceTable,
    ids: &[i32],
    rows: Rows<'_>,
    continues: bool,
) -> Result<(Vec<Vec<u8>>, Vec<Span<i32>>), Error> {
    rows.expect_tokens(Input::Ids, ids.len())?;
    let (mut texts, mut spans) = (with_room(rows.len())?, filled_with([0; 2], rows.num_tokens())?);
    rows.for_each(&mut spans, |row, tokens, row_spans| {
        texts.push(decode_row(table, &ids[tokens], row, continues, row_spans)?);
        Ok(())
    })?;
    Ok((texts, spans))
}

fn decode_row(
    table: &PieceTable,
    ids: &[i32],
    row: usize,
    continues: bool,
    out: &mut [Span<i32>],
) -> Result<Vec<u8>, Error> {
    let (mut text, mut end) = (Vec::new(), 0);
    let (mut segment_start, mut special_before) = (!continues, false);
    for (token, (span, &id)) in out.iter_mut().zip(ids).enumerate() {
        let refused = |why| Error::NoBytes { row, token, id, why };
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
    use alloc::vec;

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
        let proved = spans_from_ids_into(&table, ids, text.as_bytes(), &mut out).ok()?;
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
    fn a_batch_says_which_documents_are_proved() -> Result<(), Error> {
        let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], DummyPrefix::None)?;
        let (mut out, mut proved) = ([[7; 2]; 4], [true, false, true]);
        let (ids, rows, texts) = ([2, 1, 2, 2], Rows::new(&[0, 2, 2, 4], 4)?, ["a a", "", "ab"]);
        spans_from_ids_batch_into(&table, &ids, rows, &texts, &mut out, &mut proved)?;
        assert_eq!(out, [[0, 1], [1, 3], [0, 0], [0, 0]]);
        assert_eq!(proved, [true, true, false]);
        assert_eq!(spans_from_ids_batch(&table, &ids, rows, &texts)?, (out.to_vec(), proved.to_vec()));
        let texts = spans_from_ids_batch(&table, &[2], Rows::new(&[0, 1], 1)?, &[""; 2]);
        assert_eq!(texts, Err(Error::Length { input: Input::Texts, expected: 1, got: 2 }));
        let roles = PieceTable::new(VOCABULARY.map(Some), &ROLES, DummyPrefix::None).map(|table| table.len());
        assert_eq!(roles, Err(Error::Length { input: Input::Roles, expected: 9, got: 10 }));
        Ok(())
    }

    #[test]
    fn a_continuation_starts_without_a_dummy_prefix_and_has_one_after_a_special_token() -> Result<(), Error> {
        for dummy_prefix in
            [DummyPrefix::None, DummyPrefix::Prepend, DummyPrefix::Metaspace, DummyPrefix::MetaspaceFirst]
        {
            let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], dummy_prefix)?;
            let (texts, spans) = decode_batch(&table, &[1, 2, 3], Rows::new(&[0, 2, 3], 3)?, true)?;
            assert_eq!(texts, [b" aa".to_vec(), b" b".to_vec()], "{dummy_prefix:?}");
            assert_eq!(spans, [[0, 2], [2, 3], [0, 2]]);
            let after_special = decode_batch(&table, &[1, 4, 1], Rows::new(&[0, 3], 3)?, true)?.0;
            let expected: &[u8] =
                if matches!(dummy_prefix, DummyPrefix::Prepend | DummyPrefix::Metaspace) { b" aa" } else { b" a a" };
            assert_eq!(after_special, [expected.to_vec()], "{dummy_prefix:?}");
        }
        Ok(())
    }

    #[test]
    fn no_dummy_prefix_of_the_first_text_follows_a_special_token_that_is_written() -> Result<(), Error> {
        let table = PieceTable::new(VOCABULARY.map(Some), &ROLES[..9], DummyPrefix::MetaspaceFirst)?;
        let (text, spans) = decode(&table, &[4, 2, 1])?;
        assert_eq!(text, b"a a");
        assert_eq!(spans, [[0, 0], [0, 1], [1, 3]]);
        assert_eq!(spans_from_ids(&table, &[4, 2, 1], b"a a")?, Some(spans));
        assert_eq!(decode(&table, &[4, 1, 1])?.0, b"a a"); // a dummy prefix, as after BOS
        assert!(decode(&table, &[2, 1, 1]).is_err());
        assert_eq!(decode_batch(&table, &[4, 1, 1], Rows::new(&[0, 3], 3)?, true)?.0, [b" a a".to_vec()]);
        Ok(())
    }
}
