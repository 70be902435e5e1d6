//! Spans from the offsets that a tokenizer reports: converted to bytes, with trimmed spaces restored and holes closed.

pub(crate) mod chars_to_bytes;
pub(crate) mod close_holes;
pub(crate) mod restore_spaces;
mod white_space;

use self::close_holes::{TokenKind, close_batch};
use self::restore_spaces::restore_row;
use super::piece_table::PieceTable;
use crate::batch::Rows;
use crate::checks::{expect_len, text_len};
use crate::error::SpanError;
use crate::memory::filled_with;
use crate::offset::Span;

/// [`restore_spaces`](crate::restore_spaces), then [`close`](crate::close), for a batch: document `b` has the ids
/// `cu_seqlens[b]..cu_seqlens[b + 1]`. A token whose surface is one space is a [`TokenKind::Blank`], or a
/// [`TokenKind::Prefix`] if the tokenizer may have inserted it.
///
/// # Errors
/// As [`close_batch`](crate::close_batch), and [`SpanError::Length`] unless there is one id per span.
pub fn close_ids_batch<S: AsRef<str> + Sync>(
    table: &PieceTable,
    ids: &[i32],
    spans: &mut [Span<i32>],
    cu_seqlens: &[i64],
    texts: &[S],
) -> Result<(), SpanError> {
    expect_len("ids", spans.len(), ids.len())?;
    let rows = Rows::checked("cu_seqlens", cu_seqlens, spans.len())?;
    expect_len("texts", rows.count(), texts.len())?;
    let mut nothing = vec![(); rows.count()];
    rows.for_each(spans, &mut nothing, &|row, spans, ()| {
        text_len(texts[row].as_ref().as_bytes(), row)?;
        restore_row(table, &ids[rows.range(row)], texts[row].as_ref(), spans);
        Ok(())
    })?;
    let mut kinds = filled_with(TokenKind::Normal, ids.len())?;
    for row in 0..rows.count() {
        let ids = &ids[rows.range(row)];
        for (token, kind) in kinds[rows.range(row)].iter_mut().enumerate() {
            if table.surface(ids[token]) == Some(b" ") {
                let before = token.checked_sub(1).map(|before| ids[before]);
                *kind = if table.may_put_dummy_after(before) { TokenKind::Prefix } else { TokenKind::Blank };
            }
        }
    }
    close_batch(spans, cu_seqlens, texts, &kinds)
}
