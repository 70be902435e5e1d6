use crate::batch::{Rows, expect_len};
use crate::memory::filled_with;
use crate::spans::text_len;
use crate::{PieceTable, Span, SpanError, TokenKind};

/// Gives tokens back the spaces that their tokenizer cut from their offsets (`trim_offsets`): as many as
/// their surface begins and ends with, where the text has them and no other token holds them.
///
/// `spans` are byte spans in order, on character boundaries; spans outside the text are left for
/// [`close`](crate::close) to refuse. Time is linear in tokens and in the spaces of their surfaces.
///
/// # Errors
/// [`SpanError::Length`] unless `spans` holds one span per id, [`SpanError::TextTooLong`].
///
/// # Example
/// ```
/// use vocagno::{DummyPrefix, PieceRole, PieceTable, restore_spaces};
///
/// // "x\n  y" as x|⏎␣|␣y, trimmed to x|⏎|y
/// let table = PieceTable::new(["x", "\n ", " y"].map(Some), &[PieceRole::Plain; 3], DummyPrefix::None)?;
/// let mut spans = [[0, 1], [1, 2], [4, 5]];
/// restore_spaces(&table, &[0, 1, 2], "x\n  y", &mut spans)?;
/// assert_eq!(spans, [[0, 1], [1, 3], [3, 5]]);
/// # Ok::<(), vocagno::SpanError>(())
/// ```
pub fn restore_spaces(table: &PieceTable, ids: &[i32], text: &str, spans: &mut [Span<i32>]) -> Result<(), SpanError> {
    expect_len("ids", spans.len(), ids.len())?;
    text_len(text.as_bytes(), 0)?;
    restore_row(table, ids, text, spans);
    Ok(())
}

/// [`restore_spaces`], then [`close`](crate::close), for a batch: document `b` has the ids
/// `cu_seqlens[b]..cu_seqlens[b + 1]`. A token whose surface is one space counts as blank, and as a prefix where
/// the table's tokenizer may have put it there itself.
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
    crate::close_batch(spans, cu_seqlens, texts, &kinds)
}

fn restore_row(table: &PieceTable, ids: &[i32], text: &str, spans: &mut [Span<i32>]) {
    let text = text.as_bytes();
    let mut covered = 0; // end of the text that the tokens before hold
    let mut next = NextStart::default();
    for token in 0..spans.len() {
        let limit = next.after(token, spans, text.len());
        if let Some(span) = table.surface(ids[token]).and_then(|piece| grown(piece, text, spans[token], covered, limit))
        {
            spans[token] = span;
        }
        covered = covered.max(offset(spans[token][1]).unwrap_or_default());
    }
}

/// The first start of a token with a width behind a given one; looks at every token once.
#[derive(Default)]
struct NextStart {
    token: usize,
}

impl NextStart {
    fn after(&mut self, token: usize, spans: &[Span<i32>], len: usize) -> usize {
        self.token = self.token.max(token + 1);
        while spans.get(self.token).is_some_and(|span| span[0] >= span[1]) {
            self.token += 1;
        }
        spans.get(self.token).and_then(|span| offset(span[0])).unwrap_or(len)
    }
}

/// The span with the missing spaces of `piece` at both ends, between `covered` and `limit`; `None` if the
/// span is not inside the text.
fn grown(piece: &[u8], text: &[u8], [start, end]: Span<i32>, covered: usize, limit: usize) -> Option<Span<i32>> {
    let (mut start, mut end) = (offset(start)?, offset(end)?);
    let held = text.get(start..end)?;
    let leading = spaces(piece.iter());
    if leading == piece.len() && held.is_empty() {
        // All spaces, its position at the end of them, or at their start where the text begins with them.
        let before = start.checked_sub(leading).filter(|&from| from >= covered && is_spaces(text, from, start));
        let from = before.or(Some(covered).filter(|&from| from + leading <= limit))?;
        (start, end) = (from, from + leading);
        return if is_spaces(text, start, end) { Some([start, end].map(index)) } else { None };
    }
    let missing = leading - spaces(held.iter().take(leading));
    if let Some(from) = start.checked_sub(missing).filter(|&from| from >= covered && is_spaces(text, from, start)) {
        start = from;
    }
    let trailing = spaces(piece.iter().rev());
    let missing = trailing - spaces(held.iter().rev().take(trailing));
    if end + missing <= limit && is_spaces(text, end, end + missing) {
        end += missing;
    }
    Some([start, end].map(index))
}

fn spaces<'a>(bytes: impl Iterator<Item = &'a u8>) -> usize {
    bytes.take_while(|&&byte| byte == b' ').count()
}

fn is_spaces(text: &[u8], start: usize, end: usize) -> bool {
    text.get(start..end).is_some_and(|bytes| bytes.iter().all(|&byte| byte == b' '))
}

fn offset(at: i32) -> Option<usize> {
    usize::try_from(at).ok()
}

/// Back to 32 bits: a place inside a text, whose length was checked.
fn index(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DummyPrefix, PieceRole};

    fn restored<const N: usize>(text: &str, tokens: [(&str, Span<i32>); N]) -> Result<[Span<i32>; N], SpanError> {
        let table = PieceTable::new(tokens.map(|(piece, _)| Some(piece)), &[PieceRole::Plain; N], DummyPrefix::None)?;
        let mut spans = tokens.map(|(_, span)| span);
        let ids: Vec<i32> = (0..N).map(index).collect();
        restore_spaces(&table, &ids, text, &mut spans)?;
        Ok(spans)
    }

    #[test]
    fn spaces_come_back_to_the_tokens_that_had_them() {
        assert_eq!(restored("a b", [("a", [0, 1]), (" b", [2, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("a   b", [("a", [0, 1]), ("  ", [3, 3]), (" b", [4, 5])]), Ok([[0, 1], [1, 3], [3, 5]]));
        assert_eq!(restored("  x", [(" ", [0, 0]), (" x", [2, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("x  ", [("x", [0, 1]), ("  ", [3, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("\n x", [("\n ", [0, 1]), ("x", [2, 3])]), Ok([[0, 2], [2, 3]]));
    }

    #[test]
    fn nothing_is_taken_that_is_not_there_or_not_free() {
        // A dummy prefix has no space in the text, and after an added token none of its own.
        assert_eq!(restored("a", [(" a", [0, 1])]), Ok([[0, 1]]));
        assert_eq!(restored("<s>a", [("<s>", [0, 3]), (" a", [3, 4])]), Ok([[0, 3], [3, 4]]));
        // Not trimmed: the space is inside the span already.
        assert_eq!(restored("a  b", [("a ", [0, 2]), (" b", [2, 4])]), Ok([[0, 2], [2, 4]]));
        // Two pieces of a character: only the first had the space.
        assert_eq!(restored(" 😊", [(" ?", [1, 5]), (" ?", [1, 5])]), Ok([[0, 5], [1, 5]]));
        assert_eq!(restored("a\tb", [("a", [0, 1]), (" ", [2, 2]), ("b", [2, 3])]), Ok([[0, 1], [2, 2], [2, 3]]));
    }

    #[test]
    fn many_tokens_over_the_same_spaces_take_linear_time() -> Result<(), SpanError> {
        let n = 100_000; // counting the spaces of each span to its end would be 10^10 steps
        let table = PieceTable::new([Some(" a ")], &[PieceRole::Plain], DummyPrefix::None)?;
        let mut spans = vec![[0, 100_000]; n];
        restore_spaces(&table, &vec![0; n], &" ".repeat(n), &mut spans)?;
        assert_eq!(spans, vec![[0, 100_000]; n]);
        Ok(())
    }

    #[test]
    fn spans_outside_the_text_are_left_alone() {
        let spans = [[-3, 2], [5, 9], [i32::MAX, i32::MIN]];
        assert_eq!(restored("a b", spans.map(|span| (" a ", span))), Ok(spans));
    }
}
