//! Restores the spaces that a tokenizer trimmed from its offsets.

use crate::checks::{expect_len, text_len};
use crate::error::{Error, Input};
use crate::offset::Span;
use crate::spans::piece_table::PieceTable;

/// Restores the spaces that a tokenizer trimmed from its offsets (`trim_offsets`). Each token gets as many spaces as
/// its surface starts and ends with, if the text has them there and no other token holds them.
///
/// `spans` are sorted byte spans on character boundaries. Spans outside the text are unchanged:
/// [`close`](crate::spans::close) rejects them. Time is linear in tokens and in the spaces of their surfaces.
///
/// # Errors
/// [`Error::Length`] unless `spans` holds one span per id, [`Error::TextTooLong`].
///
/// # Example
/// ```
/// use vocagno::spans::{DummyPrefix, PieceRole, PieceTable, restore_spaces};
///
/// // "x\n  y" as x|⏎␣|␣y, trimmed to x|⏎|y
/// let table = PieceTable::new(["x", "\n ", " y"].map(Some), &[PieceRole::Plain; 3], DummyPrefix::None)?;
/// let mut spans = [[0, 1], [1, 2], [4, 5]];
/// restore_spaces(&table, &[0, 1, 2], "x\n  y", &mut spans)?;
/// assert_eq!(spans, [[0, 1], [1, 3], [3, 5]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn restore_spaces(table: &PieceTable, ids: &[i32], text: &str, spans: &mut [Span<i32>]) -> Result<(), Error> {
    expect_len(Input::Ids, spans.len(), ids.len())?;
    text_len(text.as_bytes(), 0)?;
    restore_row(table, ids, text, spans);
    Ok(())
}

/// [`restore_spaces`] for one row, whose inputs are checked.
pub(super) fn restore_row(table: &PieceTable, ids: &[i32], text: &str, spans: &mut [Span<i32>]) {
    let text = text.as_bytes();
    let mut covered = 0; // end of the text that earlier tokens hold
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

/// Finds the start of the next non-empty token. Visits every token once.
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

/// The span with the missing spaces of `piece` at both ends, between `covered` and `limit`. `None` if the
/// span is not inside the text.
fn grown(piece: &[u8], text: &[u8], [start, end]: Span<i32>, covered: usize, limit: usize) -> Option<Span<i32>> {
    let (mut start, mut end) = (offset(start)?, offset(end)?);
    let held = text.get(start..end)?;
    let leading = spaces(piece.iter());
    if leading == piece.len() && held.is_empty() {
        // Only spaces. The span is at their end, or at their start if the text starts with them.
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

/// Converts back to 32 bits. The length of the text was checked.
fn index(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::spans::piece_table::{DummyPrefix, PieceRole};

    fn restored<const N: usize>(text: &str, tokens: [(&str, Span<i32>); N]) -> Result<[Span<i32>; N], Error> {
        let table = PieceTable::new(tokens.map(|(piece, _)| Some(piece)), &[PieceRole::Plain; N], DummyPrefix::None)?;
        let mut spans = tokens.map(|(_, span)| span);
        let ids: Vec<i32> = (0..N).map(index).collect();
        restore_spaces(&table, &ids, text, &mut spans)?;
        Ok(spans)
    }

    #[test]
    fn trimmed_spaces_are_restored() {
        assert_eq!(restored("a b", [("a", [0, 1]), (" b", [2, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("a   b", [("a", [0, 1]), ("  ", [3, 3]), (" b", [4, 5])]), Ok([[0, 1], [1, 3], [3, 5]]));
        assert_eq!(restored("  x", [(" ", [0, 0]), (" x", [2, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("x  ", [("x", [0, 1]), ("  ", [3, 3])]), Ok([[0, 1], [1, 3]]));
        assert_eq!(restored("\n x", [("\n ", [0, 1]), ("x", [2, 3])]), Ok([[0, 2], [2, 3]]));
    }

    #[test]
    fn spaces_that_are_missing_or_taken_are_not_restored() {
        // A dummy prefix has no space in the text, not even after an added token.
        assert_eq!(restored("a", [(" a", [0, 1])]), Ok([[0, 1]]));
        assert_eq!(restored("<s>a", [("<s>", [0, 3]), (" a", [3, 4])]), Ok([[0, 3], [3, 4]]));
        // Not trimmed: the span already includes the space.
        assert_eq!(restored("a  b", [("a ", [0, 2]), (" b", [2, 4])]), Ok([[0, 2], [2, 4]]));
        // Two pieces of a character: only the first had the space.
        assert_eq!(restored(" 😊", [(" ?", [1, 5]), (" ?", [1, 5])]), Ok([[0, 5], [1, 5]]));
        assert_eq!(restored("a\tb", [("a", [0, 1]), (" ", [2, 2]), ("b", [2, 3])]), Ok([[0, 1], [2, 2], [2, 3]]));
    }

    #[test]
    fn many_tokens_over_the_same_spaces_take_linear_time() -> Result<(), Error> {
        let n = 100_000; // counting the spaces of each span to its end would be 10^10 steps
        let table = PieceTable::new([Some(" a ")], &[PieceRole::Plain], DummyPrefix::None)?;
        let mut spans = vec![[0, 100_000]; n];
        restore_spaces(&table, &vec![0; n], &" ".repeat(n), &mut spans)?;
        assert_eq!(spans, vec![[0, 100_000]; n]);
        Ok(())
    }

    #[test]
    fn spans_outside_the_text_are_unchanged() {
        let spans = [[-3, 2], [5, 9], [i32::MAX, i32::MIN]];
        assert_eq!(restored("a b", spans.map(|span| (" a ", span))), Ok(spans));
    }
}
