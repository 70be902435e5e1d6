//! Cases of `Places`.

use super::*;
use crate::spans::piece_table::{DummyPrefix, PieceRole};

const PIECES: [&[u8]; 12] = [
    b" the",
    b"Quick",
    b"fox",
    b"<unk>",
    b"\xe2\x88",
    b"\x91",
    b" caf",
    "\u{e9}".as_bytes(),
    b"a",
    b" ",
    b"U",
    b"\x91",
];

fn places() -> Result<(PieceTable, Places), SpanError> {
    let table = PieceTable::new(PIECES.map(Some), &[PieceRole::Plain; 12], DummyPrefix::None)?;
    let places = Places::new(&table, Some(3))?;
    Ok((table, places))
}

/// The tokens that disagree, and the first that occur elsewhere with the byte where they occur.
#[expect(clippy::type_complexity, reason = "the pair that the cases compare")]
fn checked(
    text: &str,
    tokens: &[(i32, Span<i32>)],
) -> Result<(Vec<[usize; 2]>, Option<([usize; 2], usize)>), SpanError> {
    let (table, places) = places()?;
    let (ids, spans): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
    let cu = [0, i64::try_from(ids.len()).unwrap_or_default()];
    let found = places.disagreeing(&table, &ids, &spans, &cu, &[text])?;
    let found: Vec<_> = found.iter().map(|found| found.tokens).collect();
    let misplaced = places.misplaced(&table, &ids, &spans, text, &found);
    Ok((found, misplaced))
}

#[test]
fn tokens_at_their_spans_agree() -> Result<(), SpanError> {
    let nothing = (vec![], None);
    assert_eq!(checked("The  QUICK fox", &[(0, [0, 3]), (1, [3, 10]), (2, [10, 14])])?, nothing);
    // Composed and decomposed, with and without the mark, a compatibility form, parts of a character.
    assert_eq!(checked("cafe\u{301}", &[(6, [0, 3]), (7, [3, 6])])?, nothing);
    assert_eq!(checked("\u{fb01}\u{2211}a\u{2211}", &[(4, [3, 6]), (5, [3, 6]), (8, [6, 7])])?, nothing);
    assert_eq!(checked("\u{24d0}", &[(8, [0, 3])])?, nothing);
    // Unknown tokens, broken characters and blanks are not compared.
    assert_eq!(checked("xyz", &[(3, [0, 1]), (4, [1, 2]), (8, [2, 2]), (9, [2, 3])])?.0, [[2, 3]]);
    assert_eq!(checked("xyz", &[(3, [0, 1]), (4, [1, 2]), (9, [2, 3]), (77, [2, 3]), (-1, [2, 3])])?, nothing);
    assert_eq!(checked("", &[])?, nothing);
    Ok(())
}

#[test]
fn a_token_that_occurs_elsewhere_is_found() -> Result<(), SpanError> {
    let shifted = checked("the quick fox", &[(0, [0, 2]), (1, [2, 8]), (2, [8, 11])])?;
    assert_eq!(shifted, (vec![[0, 1], [1, 2], [2, 3]], Some(([0, 1], 0))));
    // One character: only next to its neighbour.
    assert_eq!(checked("xa fox", &[(8, [0, 1]), (2, [2, 6])])?, (vec![[0, 1]], Some(([0, 1], 1))));
    assert_eq!(checked("x fox fox a", &[(8, [0, 1]), (2, [2, 5])])?, (vec![[0, 1]], None));
    Ok(())
}

#[test]
fn a_token_without_a_free_place_is_not_misplaced() -> Result<(), SpanError> {
    // A case marker that was inserted before the word, and a word at the place of another.
    assert_eq!(checked("Fox U", &[(10, [0, 0]), (2, [0, 3])])?, (vec![[0, 1]], None));
    assert_eq!(checked("dog fox", &[(2, [0, 3]), (2, [3, 7])])?, (vec![[0, 1]], None));
    Ok(())
}

#[test]
fn normalised_text_agrees() -> Result<(), SpanError> {
    let (table, places) = places()?;
    assert!(places.agrees(&table, &[10, 2], "Ufox"));
    assert!(!places.agrees(&table, &[10, 2], "fox"));
    assert!(places.agrees(&table, &[4, 5], "\u{2211}"));
    Ok(())
}

#[test]
fn arguments_of_other_lengths_are_refused() -> Result<(), SpanError> {
    let (table, places) = places()?;
    assert!(places.disagreeing(&table, &[0], &[], &[0, 1], &["the"]).is_err());
    assert!(places.disagreeing(&table, &[0], &[[0, 3]], &[0, 1], &["the", "x"]).is_err());
    assert!(places.disagreeing(&table, &[0], &[[0, 3]], &[0, 2], &["the"]).is_err());
    // Spans outside the text and inside characters are clipped to the text.
    let odd = [[-5, 1], [2, 1], [3, 900], [i32::MIN, i32::MAX]];
    assert_eq!(places.disagreeing(&table, &[0, 2, 8, 0], &odd, &[0, 4], &["\u{2211}the"])?.len(), 3);
    assert_eq!(places.misplaced(&table, &[0, 2, 8], &odd, "\u{2211}the", &[[1, 2], [9, 12]]), None);
    assert_eq!(places.misplaced(&table, &[0, 2], &[], "the", &[[0, 1]]), Some(([0, 1], 0)));
    Ok(())
}
