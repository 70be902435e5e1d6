//! Cases of `Places`.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

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

fn places() -> Result<(PieceTable, Places), Error> {
    let table = PieceTable::new(PIECES.map(Some), &[PieceRole::Plain; 12], DummyPrefix::None)?;
    let places = Places::new(&table, Some(3))?;
    Ok((table, places))
}

/// The tokens that disagree, and the first that occur elsewhere with the byte where they occur.
#[expect(clippy::type_complexity, reason = "the pair that the cases compare")]
fn checked(text: &str, tokens: &[(i32, Span<i32>)]) -> Result<(Vec<[usize; 2]>, Option<([usize; 2], usize)>), Error> {
    let (table, places) = places()?;
    let (ids, spans): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
    let found = places.disagreeing(&table, &ids, &spans, text)?;
    let misplaced = places.misplaced(&table, &ids, &spans, text, &found);
    Ok((found, misplaced))
}

#[test]
fn tokens_at_their_spans_agree() -> Result<(), Error> {
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
fn a_token_that_occurs_elsewhere_is_found() -> Result<(), Error> {
    let shifted = checked("the quick fox", &[(0, [0, 2]), (1, [2, 8]), (2, [8, 11])])?;
    assert_eq!(shifted, (vec![[0, 1], [1, 2], [2, 3]], Some(([0, 1], 0))));
    // One character: only next to its neighbour.
    assert_eq!(checked("xa fox", &[(8, [0, 1]), (2, [2, 6])])?, (vec![[0, 1]], Some(([0, 1], 1))));
    assert_eq!(checked("x fox fox a", &[(8, [0, 1]), (2, [2, 5])])?, (vec![[0, 1]], None));
    Ok(())
}

#[test]
fn a_token_without_a_free_place_is_not_misplaced() -> Result<(), Error> {
    // A case marker that was inserted before the word, and a word at the place of another.
    assert_eq!(checked("Fox U", &[(10, [0, 0]), (2, [0, 3])])?, (vec![[0, 1]], None));
    assert_eq!(checked("dog fox", &[(2, [0, 3]), (2, [3, 7])])?, (vec![[0, 1]], None));
    Ok(())
}

/// The moves of tokens of [`PIECES`], those that disagree given as ranges.
#[expect(clippy::type_complexity, reason = "what the cases compare")]
fn moved(
    text: &str,
    tokens: &[(i32, Span<i32>)],
    wrong: &[[usize; 2]],
) -> Result<Option<Vec<(usize, Span<i32>)>>, Error> {
    let (table, places) = places()?;
    let (ids, spans): (Vec<_>, Vec<_>) = tokens.iter().copied().unzip();
    Ok(places.moves(&table, &ids, &spans, text, wrong))
}

#[test]
fn a_token_that_can_be_at_one_place_only_is_moved() -> Result<(), Error> {
    // "fox" from "the": it moves, and so does a token that only seemed to be in place.
    assert_eq!(moved("the fox a", &[(0, [0, 3]), (2, [0, 3])], &[[1, 2]])?, Some(vec![(1, [4, 7])]));
    assert_eq!(moved("a fox a", &[(2, [0, 1]), (8, [0, 1])], &[[0, 1]])?, Some(vec![(0, [2, 5]), (1, [6, 7])]));
    // Two places, or none.
    assert_eq!(moved("fox fox", &[(2, [3, 4])], &[[0, 1]])?, None);
    assert_eq!(moved("the", &[(2, [0, 3])], &[[0, 1]])?, None);
    // An unknown token, and one that agrees after a normaliser, have characters that are not looked for.
    assert_eq!(moved("xyz fox", &[(3, [0, 3]), (1, [0, 3]), (2, [0, 3])], &[[2, 3]])?, Some(vec![(2, [4, 7])]));
    // A character with its parts: each gets the character that it has a byte of.
    assert_eq!(moved("x\u{2211}", &[(4, [0, 1]), (5, [0, 1])], &[[0, 2]])?, Some(vec![(0, [1, 4]), (1, [1, 4])]));
    assert_eq!(moved("", &[], &[])?, Some(vec![]));
    Ok(())
}

/// All ways in which some characters occur in a text in order.
fn ways(wanted: &[char], text: &[(usize, char)]) -> Vec<Vec<usize>> {
    let Some((first, rest)) = wanted.split_first() else { return vec![vec![]] };
    let starts = (0..text.len()).filter(|&at| text[at].1 == *first);
    starts
        .flat_map(|at| ways(rest, &text[at + 1..]).into_iter().map(move |way| [vec![text[at].0], way].concat()))
        .collect()
}

proptest! {
    #[test]
    fn moves_are_the_only_way(text in "[ab\u{2026}. ]{0,8}", pieces in prop::collection::vec("[ab\u{2026}.]{1,2}", 0..4), spans in prop::collection::vec([0..9_i32, 0..9_i32], 4)) {
        let table = PieceTable::new(pieces.iter().map(Some), &vec![PieceRole::Plain; pieces.len()], DummyPrefix::None)?;
        let places = Places::new(&table, None)?;
        let ids: Vec<i32> = (0_i32..).take(pieces.len()).collect();
        let spans = &spans[..ids.len()];
        let wrong: Vec<_> = (0..ids.len()).filter(|&row| !is_within(places.characters(ids[row]), slice(&text, spans[row]))).collect();
        let folded: Vec<Vec<char>> = ids.iter().map(|&id| places.characters(id).chars().collect()).collect();
        let mut of_text = Vec::new();
        text.char_indices().for_each(|(at, c)| fold(c, |c| of_text.push((at, c))));
        let ways = ways(&folded.concat(), &of_text);
        let of_token = |row: usize| -> Vec<Span<i32>> {
            let first = folded[..row].concat().len();
            let mut all: Vec<_> = ways.iter().map(|way| &way[first..first + folded[row].len()]).collect();
            all.sort_unstable();
            all.dedup();
            let end = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
            all.into_iter().map(|way| [way[0], end(way[way.len() - 1])].map(|at| i32::try_from(at).expect("small"))).collect()
        };
        let ranges: Vec<_> = wrong.iter().map(|&row| [row, row + 1]).collect();
        let moves = places.moves(&table, &ids, spans, &text, &ranges);
        let is_certain = !ways.is_empty() && wrong.iter().all(|&row| of_token(row).len() == 1);
        prop_assert_eq!(moves.is_some(), is_certain);
        for (row, span) in moves.unwrap_or_default() {
            prop_assert_eq!(of_token(row), [span]);
            prop_assert!(span[0] < spans[row][0] || spans[row][1] < span[1]);
        }
    }
}

#[test]
fn normalised_text_agrees() -> Result<(), Error> {
    let (table, places) = places()?;
    assert!(places.agrees(&table, &[10, 2], "Ufox"));
    assert!(!places.agrees(&table, &[10, 2], "fox"));
    assert!(places.agrees(&table, &[4, 5], "\u{2211}"));
    Ok(())
}

#[test]
fn arguments_of_other_lengths_are_refused() -> Result<(), Error> {
    let (table, places) = places()?;
    assert!(places.disagreeing(&table, &[0], &[], "the").is_err());
    let rows = Rows::new(&[0, 1], 1)?;
    assert!(places.disagreeing_batch(&table, &[0], &[[0, 3]], rows, &["the", "x"]).is_err());
    assert!(places.disagreeing_batch(&table, &[0, 2], &[[0, 3]; 2], rows, &["the"]).is_err());
    // Spans outside the text and inside characters are clipped to the text.
    let odd = [[-5, 1], [2, 1], [3, 900], [i32::MIN, i32::MAX]];
    assert_eq!(places.disagreeing(&table, &[0, 2, 8, 0], &odd, "\u{2211}the")?.len(), 3);
    assert_eq!(places.misplaced(&table, &[0, 2, 8], &odd, "\u{2211}the", &[[1, 2], [9, 12]]), None);
    assert_eq!(places.misplaced(&table, &[0, 2], &[], "the", &[[0, 1]]), Some(([0, 1], 0)));
    Ok(())
}
