//! Converts character offsets to byte offsets.

use alloc::vec::Vec;

use crate::batch::Rows;
use crate::checks::text_len;
use crate::error::{Error, Input};
use crate::memory::{filled_with, with_room};
use crate::offset::{Offset, Span};

/// Converts character offsets to UTF-8 byte offsets.
///
/// Time is linear in text and offsets. An ASCII text is read only to find that it is ASCII.
///
/// # Errors
/// [`Error::OutsideText`] for a negative offset, an offset past the end or a start after its end,
/// [`Error::TextTooLong`] for a text of 2^31 bytes or more, [`Error::Memory`].
///
/// # Example
/// ```
/// let bytes = vocagno::spans::chars_to_bytes(&[[0, 1], [1, 3]], "∑ab")?;
/// assert_eq!(bytes, [[0, 3], [3, 5]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn chars_to_bytes<T: Offset>(offsets: &[Span<T>], text: &str) -> Result<Vec<Span<i32>>, Error> {
    let mut out = filled_with([0; 2], offsets.len())?;
    convert(offsets, text, 0, &mut out)?;
    Ok(out)
}

/// [`chars_to_bytes`] for a batch of documents.
///
/// # Errors
/// As [`chars_to_bytes`], and [`Error::Length`] for offsets or texts that are not those of `rows`.
pub fn chars_to_bytes_batch<T: Offset, S: AsRef<str>>(
    offsets: &[Span<T>],
    rows: Rows<'_>,
    texts: &[S],
) -> Result<Vec<Span<i32>>, Error> {
    rows.expect_tokens(Input::Offsets, offsets.len())?;
    rows.expect_rows(Input::Texts, texts.len())?;
    let mut out = filled_with([0; 2], rows.num_tokens())?;
    rows.for_each(&mut out, |row, tokens, row_out| convert(&offsets[tokens], texts[row].as_ref(), row, row_out))?;
    Ok(out)
}

fn convert<T: Offset>(offsets: &[Span<T>], text: &str, row: usize, out: &mut [Span<i32>]) -> Result<(), Error> {
    let end = text_len(text.as_bytes(), row)?;
    if text.is_ascii() {
        return each(offsets, row, out, text.len(), |offset| {
            i32::try_from(offset).ok().filter(|offset| (0..=end).contains(offset))
        });
    }
    // A character starts at every byte that is no continuation byte. The last entry is the end of the text.
    let starts = (0..end).zip(text.bytes()).filter(|&(_, byte)| byte & 0xC0 != 0x80).map(|(at, _)| at);
    let mut bytes: Vec<i32> = with_room(text.chars().count() + 1)?;
    bytes.extend(starts.chain([end]));
    each(offsets, row, out, bytes.len() - 1, |offset| bytes.get(usize::try_from(offset).ok()?).copied())
}

/// Converts each offset by `to_byte`, which returns `None` outside the text of `len` characters.
fn each<T: Offset>(
    offsets: &[Span<T>],
    row: usize,
    out: &mut [Span<i32>],
    len: usize,
    to_byte: impl Fn(i64) -> Option<i32>,
) -> Result<(), Error> {
    for (token, (bytes, &offsets)) in out.iter_mut().zip(offsets).enumerate() {
        let [start, end] = offsets.map(T::into);
        *bytes = match (to_byte(start), to_byte(end)) {
            (Some(first), Some(stop)) if first <= stop => [first, stop],
            _ => {
                let (input, span, unit) = (Input::Offsets, [start, end], "characters");
                return Err(Error::OutsideText { input, row, token, span, len, unit });
            }
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;

    #[test]
    fn characters_of_every_width() {
        let text = "a\u{e9}\u{2211}\u{1f60a}b";
        let offsets: Vec<Span<i64>> = (0..5).map(|at| [at, at + 1]).chain([[5, 5], [0, 5]]).collect();
        let expected = vec![[0, 1], [1, 3], [3, 6], [6, 10], [10, 11], [11, 11], [0, 11]];
        assert_eq!(chars_to_bytes(&offsets, text), Ok(expected));
        assert_eq!(chars_to_bytes(&[[0, 0]], ""), Ok(vec![[0, 0]]));
    }

    #[test]
    fn offsets_outside_the_text_are_refused() {
        for text in ["abc", "ab∑"] {
            for span in [[2, 4], [4, 4], [-1, 2], [2, 1], [0, i32::MAX], [i32::MIN, 0]] {
                let error = chars_to_bytes(&[[0, 3], span], text);
                let (input, unit, span) = (Input::Offsets, "characters", span.map(i64::from));
                assert_eq!(error, Err(Error::OutsideText { input, row: 0, token: 1, span, len: 3, unit }));
            }
            assert!(chars_to_bytes(&[[i64::MIN, i64::MAX], [0, 1 << 32]], text).is_err());
        }
    }

    #[test]
    fn a_batch_names_the_document() -> Result<(), Error> {
        let (rows, texts) = (Rows::new(&[0, 1, 3], 3)?, ["∑", "ab"]);
        let bytes = chars_to_bytes_batch(&[[0, 1], [0, 1], [1, 2]], rows, &texts)?;
        assert_eq!(bytes, [[0, 3], [0, 1], [1, 2]]);
        let error = chars_to_bytes_batch(&[[0, 1], [0, 1], [1, 3]], rows, &texts);
        let message =
            "offsets: row 1, token 1: expected 0 <= start <= end <= 2, the text's length in characters, got (1, 3)";
        assert_eq!(error.map_err(|error| error.to_string()), Err(message.to_owned()));
        Ok(())
    }
}
