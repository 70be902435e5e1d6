//! Folds characters, so that a comparison ignores case, marks and white space.

use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// Calls `give` for each folded character of `c`: compatibility decomposition (NFKD) and lower case, without white
/// space, control characters and marks. The slash of a fraction (`½` is `1⁄2`) is an ordinary one.
#[inline]
pub(super) fn fold(c: char, mut give: impl FnMut(char)) {
    if c.is_ascii() {
        if c.is_ascii_graphic() {
            give(c.to_ascii_lowercase());
        }
        return;
    }
    let mut keep = |c: char| {
        // U+2581 is the space of SentencePiece vocabularies.
        if !(c.is_whitespace() || c.is_control() || c == '\u{2581}' || is_combining_mark(c)) {
            give(if c == '\u{2044}' { '/' } else { c });
        }
    };
    decompose_compatible(c, |c| c.to_lowercase().for_each(|c| decompose_compatible(c, &mut keep)));
}

/// Whether `characters`, which are folded, are a subsequence of the folded characters of `text`.
pub(super) fn is_within(characters: &str, text: &str) -> bool {
    let mut rest = characters.chars();
    let mut wanted = rest.next();
    for c in text.chars() {
        if wanted.is_none() {
            break;
        }
        fold(c, |c| {
            if wanted == Some(c) {
                wanted = rest.next();
            }
        });
    }
    wanted.is_none()
}
