//! Spans from the offsets that a tokenizer reports: converted to bytes, with trimmed spaces restored and holes closed.

pub(crate) mod chars_to_bytes;
pub(crate) mod close_holes;
pub(crate) mod restore_spaces;
mod white_space;

use self::close_holes::{TokenKind, close_batch};
use self::restore_spaces::restore_row;
use super::piece_table::PieceTable;
use crate::batch::{Rows, one_row};
use crate::checks::{expect_len, text_len};
use crate::error::{Error, Input};
use crate::memory::filled_with;
use crate::offset::Span;

/// [`restore_spaces`](crate::spans::restore_spaces), then [`close`](crate::spans::close), with kinds from the surfaces: a
/// token whose surface is one space is a [`TokenKind::Blank`], or a [`TokenKind::Prefix`] if the tokenizer may have
/// inserted it.
///
/// # Errors
/// As [`close`](crate::spans::close), and [`Error::Length`] unless there is one id per span.
///
/// # Example
/// ```
/// use vocagno::spans::{DummyPrefix, PieceRole, PieceTable, close_ids};
///
/// // "a  b" from a tokenizer that trims spaces: a|␣|␣b
/// let table = PieceTable::new(["a", " ", " b"].map(Some), &[PieceRole::Plain; 3], DummyPrefix::None)?;
/// let mut spans = [[0, 1], [2, 2], [3, 4]];
/// close_ids(&table, &[0, 1, 2], &mut spans, "a  b")?;
/// assert_eq!(spans, [[0, 1], [1, 2], [2, 4]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn close_ids(table: &PieceTable, ids: &[i32], spans: &mut [Span<i32>], text: &str) -> Result<(), Error> {
    close_ids_batch(table, ids, spans, Rows::new(&one_row(ids), ids.len())?, &[text])
}

/// [`close_ids`] for a batch of documents. `spans` are those of `rows`.
///
/// # Errors
/// As [`close_ids`], and [`Error::Length`] for ids or texts that are not those of `rows`.
pub fn close_ids_batch<S: AsRef<str>>(
    table: &PieceTable,
    ids: &[i32],
    spans: &mut [Span<i32>],
    rows: Rows<'_>,
    texts: &[S],
) -> Result<(), Error> {
    rows.expect_tokens(Input::Ids, ids.len())?;
    rows.expect_rows(Input::Texts, texts.len())?;
    expect_len(Input::Spans, rows.num_tokens(), spans.len())?;
    rows.for_each(spans, |row, tokens, row_spans| {
        text_len(texts[row].as_ref().as_bytes(), row)?;
        restore_row(table, &ids[tokens], texts[row].as_ref(), row_spans);
        Ok(())
    })?;
    let mut kinds = filled_with(TokenKind::Normal, ids.len())?;
    for (_, tokens) in rows.iter() {
        let ids = &ids[tokens.clone()];
        for (token, kind) in kinds[tokens].iter_mut().enumerate() {
            if table.surface(ids[token]) == Some(b" ") {
                let before = token.checked_sub(1).map(|before| ids[before]);
                *kind = if table.may_put_dummy_after(before) { TokenKind::Prefix } else { TokenKind::Blank };
            }
        }
    }
    close_batch(spans, rows, texts, &kinds)
}
