//! White space of a text, and slices of it by `i32` offsets.

use alloc::vec::Vec;

use crate::error::Error;
use crate::memory::filled_with;

/// Tells which parts of a text are white space. Parts may overlap. After as many bytes as the text has were read,
/// the white space of the whole text is counted once, so the total time stays linear.
pub(super) struct WhiteSpace<'a> {
    text: &'a str,
    /// Bytes that may still be read before the white space is counted.
    unread: usize,
    /// Bytes of white space before each offset of the text.
    before: Option<Vec<i32>>,
}

impl<'a> WhiteSpace<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, unread: text.len(), before: None }
    }

    /// Whether all characters from `start` to `end` are white space. False if one of them lies inside a character.
    pub(super) fn fills(&mut self, start: i32, end: i32) -> Result<bool, Error> {
        let Some(part) = slice(self.text, start, end) else {
            return Ok(false);
        };
        if let Some(unread) = self.unread.checked_sub(part.len()) {
            self.unread = unread;
            return Ok(part.chars().all(char::is_whitespace));
        }
        if self.before.is_none() {
            self.before = Some(white_space_before(self.text)?);
        }
        let bytes = |at: i32| self.before.as_ref()?.get(usize::try_from(at).ok()?).copied();
        Ok(bytes(end).zip(bytes(start)).is_some_and(|(end_bytes, start_bytes)| end_bytes - start_bytes == end - start))
    }
}

/// Bytes of white space before each offset of a text. Unspecified inside a character.
fn white_space_before(text: &str) -> Result<Vec<i32>, Error> {
    let mut before = filled_with(0, text.len() + 1)?;
    let mut total = 0;
    for (at, character) in text.char_indices() {
        before[at] = total;
        total += if character.is_whitespace() { i32::try_from(character.len_utf8()).unwrap_or_default() } else { 0 };
    }
    before[text.len()] = total;
    Ok(before)
}

/// The text from `start` to `end`. `None` if one of them lies inside a character.
pub(super) fn slice(text: &str, start: i32, end: i32) -> Option<&str> {
    text.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn many_overlapping_parts_take_linear_time() {
        let n = 100_000; // read one by one, 10^10 characters
        let end = 100_000;
        let text = " ".repeat(n);
        // A letter at the end of the part, and a letter after it.
        for (text, expected) in [(format!("{}x", &text[1..]), false), (format!("{text}x"), true)] {
            let mut white_space = WhiteSpace::of(&text);
            for _ in 0..n {
                assert_eq!(white_space.fills(0, end), Ok(expected));
            }
        }
    }

    #[test]
    fn counting_agrees_with_reading() {
        let text = "a \u{2003}\t b\u{85}\u{e9} ";
        let mut read = WhiteSpace { text, unread: usize::MAX, before: None };
        let mut counted = WhiteSpace { text, unread: 0, before: None };
        for start in 0..=i32::try_from(text.len()).unwrap_or_default() {
            for end in start..=i32::try_from(text.len()).unwrap_or_default() {
                assert_eq!(read.fills(start, end), counted.fills(start, end), "{start} {end}");
            }
        }
        assert!(read.before.is_none() && counted.before.is_some());
    }
}
