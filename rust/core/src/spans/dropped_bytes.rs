//! Spans from the ids of a tokenizer that drops some bytes of the text.

use super::piece_table::{PieceRole, PieceTable};
use crate::offset::Span;

/// Walks ids and text together, over the bytes that are `dropped`. `None` at the first id that does not continue the
/// text, or that has more than one possible place.
///
/// No plain piece contains a dropped byte, so each of its bytes is the next byte of the text that is not dropped.
#[cold]
pub(super) fn walk_over_dropped(
    table: &PieceTable,
    dropped: &[bool; 256],
    ids: &[i32],
    text: &[u8],
    out: &mut [Span<i32>],
) -> Option<()> {
    let offset = |at: usize| i32::try_from(at).ok();
    let is_dropped = |&byte: &u8| dropped[usize::from(byte)];
    let next_kept = |from: usize| {
        let kept = text[from..].iter().position(|byte| !is_dropped(byte));
        kept.map_or(text.len(), |count| from + count)
    };
    let (mut end, mut next, mut last) = (0, next_kept(0), None::<usize>);
    let (mut segment_start, mut first, mut after_special) = (true, true, false);
    for (token, &id) in ids.iter().enumerate() {
        let (mut piece, role) = table.piece(id)?;
        let (before, start) = (end, next);
        let added = role != PieceRole::Plain;
        if !added {
            if segment_start && table.has_dummy(&text[end..], first) {
                piece = table.without_dummy(piece, after_special)?;
            }
            for byte in piece {
                text.get(next).filter(|own| *own == byte)?;
                end = next + 1;
                next = next_kept(end);
            }
        } else if before < start && piece.first().is_some_and(is_dropped) {
            return None; // it may begin with any of the dropped bytes
        } else if text[start..].starts_with(piece) {
            end = start + piece.len();
            next = next_kept(end);
        } else if role == PieceRole::Added {
            return None;
        }
        let is_beside = added && before == end;
        (segment_start, first, after_special) = (added, first && is_beside, after_special || is_beside);
        let mut from = before;
        if before < end {
            if let Some(last) = last {
                from += len_of_previous(&text[before..start], text[start]);
                // Tokens between these two have no text (special ones, lone dummy prefixes): their empty spans move to
                // the end of the text before them.
                out[last][1] = offset(from)?;
                out[last + 1..token].fill([offset(from)?; 2]);
            }
            last = Some(token);
        }
        out[token] = [offset(from)?, offset(end)?];
    }
    out[last?][1] = offset(text.len())?;
    out[last? + 1..].fill([offset(text.len())?; 2]);
    (next == text.len()).then_some(())
}

/// How much of the bytes that are dropped between two tokens belongs to the first of them. `next` is the first byte of
/// the second.
fn len_of_previous(gap: &[u8], next: u8) -> usize {
    let is_inside = |byte: u8| byte & 0xC0 == 0x80;
    let mut gap = gap;
    if is_inside(next) {
        // The second token has the character's next byte, unless the first one already has its first byte.
        match gap.iter().rposition(|&byte| !is_inside(byte)) {
            Some(start) => gap = &gap[..start],
            None => return gap.len(),
        }
    }
    let text = gap.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty()).map_or("", |chunk| chunk.valid());
    gap.len() - (text.len() - text.trim_end().len())
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::error::Error;
    use crate::spans::from_ids::spans_from_ids_into;
    use crate::spans::piece_table::DummyPrefix;

    /// Spans of a vocabulary with the bytes of `a-z`, `<`, `>`, a space and the continuation bytes 80 to A0, in which 100 is
    /// `<s>` (special), 101 `\u{e9}` (added) and 102 ` a`; by the pieces' names.
    fn spans(dummy_prefix: DummyPrefix, ids: &[i32], text: &str) -> Result<Option<Vec<Span<i32>>>, Error> {
        let bytes: Vec<u8> = (b'a'..=b'z').chain(*b"<> ").chain(0x80..=0xA0).collect();
        let mut pieces: Vec<Option<Vec<u8>>> = vec![None; 256];
        for byte in bytes {
            pieces[usize::from(byte)] = Some(vec![byte]);
        }
        pieces.extend([b"<s>".to_vec(), "\u{e9}".into(), b" a".to_vec(), b"ab".to_vec()].map(Some));
        let mut roles = vec![PieceRole::Plain; pieces.len()];
        (roles[256], roles[257]) = (PieceRole::Special, PieceRole::Added);
        let table = PieceTable::new(pieces, &roles, dummy_prefix)?.dropping_bytes();
        let mut out = vec![[7; 2]; ids.len()];
        let proved = spans_from_ids_into(&table, ids, text.as_bytes(), &mut out)?;
        assert!(proved || out.iter().all(|&span| span == [0; 2]));
        Ok(proved.then_some(out))
    }

    const A: i32 = 'a' as i32;
    const B: i32 = 'b' as i32;

    #[test]
    fn dropped_characters_go_to_the_token_before_and_white_space_to_the_token_after() -> Result<(), Error> {
        let of = |ids: &[i32], text: &str| spans(DummyPrefix::None, ids, text);
        assert_eq!(of(&[A, B], "aX\u{1}b")?, Some(vec![[0, 3], [3, 4]]));
        assert_eq!(of(&[A, B], "aX\r\tb")?, Some(vec![[0, 2], [2, 5]]));
        assert_eq!(of(&[A, B], "a\rXb")?, Some(vec![[0, 3], [3, 4]]));
        assert_eq!(of(&[A], "XYaZ\r")?, Some(vec![[0, 5]]));
        assert_eq!(of(&[259], "XaYbZ")?, Some(vec![[0, 5]])); // inside a token
        for (ids, text) in [(&[][..], "X"), (&[A], "Xab"), (&[A, A], "Xa"), (&[B], "Xa")] {
            assert_eq!(of(ids, text)?, None, "{text}");
        }
        Ok(())
    }

    #[test]
    fn a_byte_of_a_character_stays_with_the_others() -> Result<(), Error> {
        // F0 and BF are dropped, 90 and 80 are not: the first goes to the next token, the last stays with the previous one.
        let text = "a\u{1003f}b\r\u{10000}";
        let ids = [A, 0x90, 0x80, B, 0x90, 0x80, 0x80];
        let expected = [[0, 1], [1, 3], [3, 5], [5, 6], [6, 9], [9, 10], [10, 11]];
        assert_eq!(spans(DummyPrefix::None, &ids, text)?, Some(expected.to_vec()));
        Ok(())
    }

    #[test]
    fn added_tokens_and_dummy_prefixes_between_dropped_bytes() -> Result<(), Error> {
        let of = |ids: &[i32], text: &str| spans(DummyPrefix::Metaspace, ids, text);
        assert_eq!(of(&[258, 256, 258], "XaX<s>Xa")?, Some(vec![[0, 3], [3, 7], [7, 8]]));
        // A special token that is not in the text, and a lone dummy prefix.
        assert_eq!(of(&[256, 32, A, 256], "XaX")?, Some(vec![[0, 0], [0, 0], [0, 3], [3, 3]]));
        assert_eq!(of(&[258, 256, 258], "aXa")?, Some(vec![[0, 2], [2, 2], [2, 3]]));
        // An added token may begin with any of these bytes.
        assert_eq!(of(&[258, 257], "aX\u{e9}")?, None);
        Ok(())
    }
}
