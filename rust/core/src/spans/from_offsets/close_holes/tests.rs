//! Cases of `close`.

use alloc::vec;

use super::TokenKind::{Blank, Normal, Prefix, Special};
use super::*;

fn closed<const N: usize>(text: &str, tokens: [(Span<i32>, TokenKind); N]) -> [Span<i32>; N] {
    let mut spans = tokens.map(|(span, _)| span);
    assert_eq!(close(&mut spans, text, &tokens.map(|(_, kind)| kind)), Ok(()));
    spans
}

#[test]
fn many_blanks_over_the_same_spaces_take_linear_time() -> Result<(), Error> {
    let n = 100_000; // read one by one, 5 * 10^9 spaces
    let end = 100_000;
    let text = " ".repeat(n);
    let mut spans: Vec<_> = (0..n).map(|token| if token % 2 == 0 { [0, end] } else { [end; 2] }).collect();
    close(&mut spans, &text, &vec![Blank; n])?;
    assert_eq!(spans, vec![[0, end]; n]);
    Ok(())
}

#[test]
fn trimmed_spaces_are_restored() {
    let tokens = [([0, 1], Normal), ([3, 3], Normal), ([4, 5], Normal)];
    assert_eq!(closed("a   b", tokens), [[0, 1], [1, 3], [3, 5]]);
    let tokens = [([1, 2], Normal), ([3, 4], Normal), ([5, 5], Blank)];
    assert_eq!(closed(" a b ", tokens), [[0, 2], [2, 4], [4, 5]]);
}

#[test]
fn a_lone_dummy_prefix_becomes_empty() {
    assert_eq!(closed("∑", [([0, 3], Prefix), ([0, 3], Normal)]), [[0, 0], [0, 3]]);
    let tokens = [([0, 0], Special), ([0, 4], Prefix), ([0, 4], Normal), ([0, 4], Normal)];
    assert_eq!(closed("😊", tokens), [[0, 0], [0, 0], [0, 4], [0, 4]]);
    // Prepended before a space: both tokens have its offsets.
    assert_eq!(closed(" a", [([0, 1], Prefix), ([0, 2], Normal)]), [[0, 0], [0, 2]]);
}

#[test]
fn a_blank_from_normalisation_shares_its_character() {
    // U+00B4 is a space and U+0301 under NFKC, U+FDFA four words.
    assert_eq!(closed("(\u{b4}", [([0, 1], Normal), ([1, 3], Blank), ([1, 3], Normal)]), [[0, 1], [1, 3], [1, 3]]);
    let tokens = [([0, 3], Prefix), ([0, 3], Normal), ([0, 3], Blank), ([0, 3], Normal)];
    assert_eq!(closed("\u{fdfa}", tokens), [[0, 0], [0, 3], [0, 3], [0, 3]]);
    // A span out of order, or a zero-width span: it shares the previous span.
    assert_eq!(closed("ab", [([0, 2], Normal), ([0, 1], Blank), ([1, 2], Normal)]), [[0, 2], [0, 2], [1, 2]]);
    assert_eq!(closed("ab", [([0, 1], Normal), ([1, 1], Blank), ([1, 2], Normal)]), [[0, 1], [0, 1], [1, 2]]);
}

#[test]
fn a_blank_keeps_its_space_or_gets_the_gap() {
    assert_eq!(closed("a ∑", [([0, 1], Normal), ([1, 2], Blank), ([2, 5], Normal)]), [[0, 1], [1, 2], [2, 5]]);
    assert_eq!(closed("a ∑", [([0, 1], Normal), ([2, 5], Blank), ([2, 5], Normal)]), [[0, 1], [1, 2], [2, 5]]);
    assert_eq!(closed("▁a", [([0, 3], Blank), ([3, 4], Normal)]), [[0, 3], [3, 4]]);
}

#[test]
fn white_space_goes_to_the_next_token_and_the_rest_to_the_previous() {
    assert_eq!(closed("a  b", [([0, 1], Normal), ([3, 4], Normal)]), [[0, 1], [1, 4]]);
    // "e" and a removed U+0301, then a space.
    assert_eq!(closed("e\u{301} n", [([0, 1], Normal), ([4, 5], Normal)]), [[0, 3], [3, 5]]);
    assert_eq!(closed("a \u{301} b", [([0, 1], Normal), ([5, 6], Normal)]), [[0, 4], [4, 6]]);
    assert_eq!(closed("\u{301}a\u{301} ", [([0, 0], Special), ([2, 3], Normal)]), [[0, 0], [0, 6]]);
}

#[test]
fn pieces_of_one_character() {
    let pieces = [([2, 6], Normal), ([2, 6], Normal), ([7, 8], Normal)];
    assert_eq!(closed("  😊 a", pieces), [[0, 6], [2, 6], [6, 8]]);
    let nested = [([0, 5], Normal), ([1, 5], Normal), ([0, 0], Special), ([7, 8], Normal), ([7, 9], Normal)];
    assert_eq!(closed(" 😊\u{301}ab", nested), [[0, 7], [1, 7], [0, 0], [7, 8], [7, 9]]);
}

#[test]
fn a_token_without_a_gap_shares_its_neighbours_span() {
    assert_eq!(closed("ab", [([0, 1], Normal), ([1, 1], Normal), ([1, 2], Normal)]), [[0, 1], [0, 1], [1, 2]]);
    assert_eq!(closed("a ", [([0, 0], Normal), ([0, 1], Normal)]), [[0, 2], [0, 2]]);
}

#[test]
fn nothing_to_do() {
    assert_eq!(closed("", []), [[0; 2]; 0]);
    assert_eq!(closed("abc", [([0, 0], Special)]), [[0, 0]]);
    assert_eq!(closed("", [([0, 0], Normal), ([0, 0], Blank)]), [[0, 0], [0, 0]]);
    assert_eq!(closed("   ", [([0, 0], Prefix)]), [[0, 3]]);
}

#[test]
fn spans_out_of_order_or_outside_are_refused() {
    let error = close(&mut [[1, 2], [0, 1]], "ab", &[Normal; 2]);
    let expected = Error::Unsorted { input: Input::Spans, row: 0, token: 1, previous: [1, 2], span: [0, 1] };
    assert_eq!(error, Err(expected));
    for span in [[0, 3], [-1, 1], [2, 1]] {
        let error = close(&mut [[0, 1], span], "ab", &[Normal; 2]);
        let (span, unit) = (span.map(i64::from), "bytes");
        assert_eq!(error, Err(Error::OutsideText { input: Input::Spans, row: 0, token: 1, span, len: 2, unit }));
    }
    let rows = Rows::new(&[0, 1, 2], 2);
    assert!(rows.and_then(|rows| close_batch(&mut [[0, 1]; 2], rows, &["a", ""], &[Normal; 2])).is_err());
}

#[test]
fn ends_inside_a_character_are_kept() {
    assert_eq!(closed("∑a", [([0, 1], Normal), ([2, 3], Normal), ([3, 4], Normal)]), [[0, 2], [2, 3], [3, 4]]);
}
