use crate::batch::{Rows, expect_len};
use crate::memory::filled_with;
use crate::spans::text_len;
use crate::{Span, SpanError};

/// What a token's surface is, as far as closing asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenKind {
    /// Any token that stands for text.
    #[default]
    Normal,
    /// Nothing but a blank marker, such as a lone `▁` or `Ġ`: white space, in the text or of its normalisation.
    Blank,
    /// No surface (BOS, EOS, padding): its span stays as it is.
    Special,
    /// A blank marker where the tokenizer may have put a space before the text: it may stand for nothing.
    Prefix,
}

/// Closes the holes that a tokenizer's own offsets leave, so that the byte spans cover the whole text and no
/// token is empty but special tokens and lone dummy prefixes. Order is kept, and spans only grow.
///
/// * A *floating* token, one with a zero-width span or a blank that claims a character which is not its own
///   (not white space, or held by the next token as well), gets the gap at which it stands: up to its
///   position if that lies inside, else all of it. Without a gap a `Prefix` is a lone dummy prefix and becomes
///   empty; a blank keeps the character that it claims (whose normalisation holds a space); any other token
///   shares the span of the token before it, else of the one after it.
/// * Any other gap: the white space at its end goes to the token after it, the rest (such as a combining mark
///   that normalisation took) to the token before it. At the text's start all of it goes to the token after
///   it, at the text's end to the token before it.
/// * Of tokens that share a character (byte fallback, nested spans) the first gets what comes before it, but
///   all of them what follows: the space belongs to the first piece, the mark to the whole character.
///
/// Time is linear in tokens and text.
///
/// # Errors
/// [`SpanError::OutsideText`] for a span that leaves the text or starts behind its end, and
/// [`SpanError::Unsorted`] for spans out of order; both leave `spans` unchanged. Floating and special tokens
/// need no order. [`SpanError::Length`] unless `kinds` holds one item per span, [`SpanError::TextTooLong`],
/// [`SpanError::Memory`].
///
/// # Example
/// ```
/// use vocagno::{TokenKind, close};
///
/// // "a   b" from a tokenizer that trims spaces: a|␣␣|␣b
/// let mut spans = [[0, 1], [3, 3], [4, 5]];
/// close(&mut spans, "a   b", &[TokenKind::Normal; 3])?;
/// assert_eq!(spans, [[0, 1], [1, 3], [3, 5]]);
/// # Ok::<(), vocagno::SpanError>(())
/// ```
pub fn close(spans: &mut [Span<i32>], text: &str, kinds: &[TokenKind]) -> Result<(), SpanError> {
    expect_len("kinds", spans.len(), kinds.len())?;
    close_row(spans, text, kinds, 0)
}

/// [`close`] for a batch of documents: document `b` has the spans `cu_seqlens[b]..cu_seqlens[b + 1]`.
///
/// # Errors
/// As [`close`], for `cu_seqlens` that do not fit the spans, and [`SpanError::Length`] unless `texts` holds
/// one text per document. Documents other than the failing one may be closed already.
pub fn close_batch<S: AsRef<str> + Sync>(
    spans: &mut [Span<i32>],
    cu_seqlens: &[i64],
    texts: &[S],
    kinds: &[TokenKind],
) -> Result<(), SpanError> {
    expect_len("kinds", spans.len(), kinds.len())?;
    let rows = Rows::checked("cu_seqlens", cu_seqlens, spans.len())?;
    expect_len("texts", rows.count(), texts.len())?;
    let mut nothing = vec![(); rows.count()];
    rows.for_each(spans, &mut nothing, &|row, spans, ()| {
        close_row(spans, texts[row].as_ref(), &kinds[rows.range(row)], row)
    })
}

fn close_row(spans: &mut [Span<i32>], text: &str, kinds: &[TokenKind], row: usize) -> Result<(), SpanError> {
    let len = text_len(text.as_bytes(), row)?;
    check_inside(spans, kinds, len, row)?;
    let roles = roles(spans, text, kinds)?;
    check_order(spans, &roles, row)?;
    Closing { spans, roles, text, len, covered: 0, last: None }.run();
    Ok(())
}

fn check_inside(spans: &[Span<i32>], kinds: &[TokenKind], len: i32, row: usize) -> Result<(), SpanError> {
    for (token, (&[start, end], &kind)) in spans.iter().zip(kinds).enumerate() {
        if kind != TokenKind::Special && !(0 <= start && start <= end && end <= len) {
            let (argument, span, unit) = ("spans", [start, end].map(i64::from), "bytes");
            let len = usize::try_from(len).unwrap_or_default();
            return Err(SpanError::OutsideText { argument, row, token, span, len, unit });
        }
    }
    Ok(())
}

fn check_order(spans: &[Span<i32>], roles: &[Role], row: usize) -> Result<(), SpanError> {
    let mut previous = [0; 2];
    for (token, (&span, _)) in spans.iter().zip(roles).enumerate().filter(|(_, (_, role))| **role == Role::Fixed) {
        if span[0] < previous[0] || span[1] < previous[1] {
            let (previous, span) = (previous.map(i64::from), span.map(i64::from));
            return Err(SpanError::Unsorted { argument: "spans", row, token, previous, span });
        }
        previous = span;
    }
    Ok(())
}

/// How a token takes part.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// Its span holds its text and can only grow.
    Fixed,
    /// Its span is a claim at most; whether it may stay empty (a lone dummy prefix).
    Floating { may_be_empty: bool },
    /// Left out.
    Special,
}

fn roles(spans: &[Span<i32>], text: &str, kinds: &[TokenKind]) -> Result<Vec<Role>, SpanError> {
    let mut roles = filled_with(Role::Special, spans.len())?;
    let mut white_space = WhiteSpace { text, unread: text.len(), before: None };
    let mut next_start = i32::MAX;
    for ((role, &[start, end]), &kind) in roles.iter_mut().zip(spans).zip(kinds).rev() {
        if kind == TokenKind::Special {
            continue;
        }
        let is_blank = matches!(kind, TokenKind::Blank | TokenKind::Prefix);
        let foreign = is_blank && (next_start < end || !white_space.fills(start, end)?);
        let may_be_empty = kind == TokenKind::Prefix;
        *role = if start == end || foreign { Role::Floating { may_be_empty } } else { Role::Fixed };
        next_start = start;
    }
    Ok(roles)
}

/// Which parts of a text are white space. Parts may overlap: when as much has been read as the text holds, it is
/// counted once for all.
struct WhiteSpace<'a> {
    text: &'a str,
    /// Bytes that may be read before that.
    unread: usize,
    /// Bytes of white space before each place in the text.
    before: Option<Vec<i32>>,
}

impl WhiteSpace<'_> {
    fn fills(&mut self, start: i32, end: i32) -> Result<bool, SpanError> {
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

/// Bytes of white space before each place in a text; nothing of use inside a character.
fn white_space_before(text: &str) -> Result<Vec<i32>, SpanError> {
    let mut before = filled_with(0, text.len() + 1)?;
    let mut total = 0;
    for (at, character) in text.char_indices() {
        before[at] = total;
        total += if character.is_whitespace() { i32::try_from(character.len_utf8()).unwrap_or_default() } else { 0 };
    }
    before[text.len()] = total;
    Ok(before)
}

/// `None` where an end lies inside a character.
fn slice(text: &str, start: i32, end: i32) -> Option<&str> {
    text.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

struct Closing<'a> {
    spans: &'a mut [Span<i32>],
    roles: Vec<Role>,
    text: &'a str,
    len: i32,
    /// End of the text covered so far.
    covered: i32,
    /// The last token that covers text.
    last: Option<usize>,
}

impl Closing<'_> {
    fn run(mut self) {
        let mut next_fixed = 0;
        for token in 0..self.spans.len() {
            match self.roles[token] {
                Role::Special => {}
                Role::Fixed => self.fixed(token),
                Role::Floating { may_be_empty } => {
                    next_fixed = next_fixed.max(token);
                    while self.roles.get(next_fixed).is_some_and(|role| *role != Role::Fixed) {
                        next_fixed += 1;
                    }
                    self.floating(token, self.spans.get(next_fixed).copied(), may_be_empty);
                }
            }
        }
        if self.covered < self.len {
            self.extend_last(self.len);
        }
        self.share_leading();
    }

    /// `next` is the next token that surely holds text.
    fn floating(&mut self, token: usize, next: Option<Span<i32>>, may_be_empty: bool) {
        let claim @ [position, claimed_end] = self.spans[token];
        let gap_end = next.map_or(self.len, |next| next[0]);
        let before = self.last.map(|last| self.spans[last]);
        let in_order = before.is_none_or(|before| before[0] <= position && before[1] <= claimed_end)
            && next.is_none_or(|next| position <= next[0] && claimed_end <= next[1]);
        let span = if self.covered < gap_end {
            [self.covered, if position > self.covered { position.min(gap_end) } else { gap_end }]
        } else if may_be_empty {
            [position; 2]
        } else if position < claimed_end && in_order {
            claim
        } else {
            before.unwrap_or([position; 2])
        };
        self.spans[token] = span;
        if span[0] < span[1] {
            (self.covered, self.last) = (span[1], Some(token));
        }
    }

    fn fixed(&mut self, token: usize) {
        let [start, end] = self.spans[token];
        if self.covered < start {
            let split = match self.last {
                Some(_) => self.white_space_before(start),
                None => self.covered,
            };
            self.extend_last(split);
            self.spans[token][0] = split; // the first of those that share it: the space is its own
        }
        self.covered = end; // ends do not decrease
        self.last = Some(token);
    }

    /// Start of the white space that ends at `end`, within the gap.
    fn white_space_before(&self, end: i32) -> i32 {
        let kept = slice(self.text, self.covered, end).and_then(|gap| i32::try_from(gap.trim_end().len()).ok());
        kept.map_or(end, |kept| self.covered + kept)
    }

    /// Moves the end of every token that ends where the covered text does.
    fn extend_last(&mut self, end: i32) {
        let Some(last) = self.last else {
            return;
        };
        for (span, role) in self.spans[..=last].iter_mut().zip(&self.roles).rev() {
            if *role == Role::Special || span[0] == span[1] {
                continue;
            }
            if span[1] != self.covered {
                break;
            }
            span[1] = end;
        }
    }

    /// Gives tokens at the text's start that found neither a gap nor a token before them the span of the next.
    fn share_leading(&mut self) {
        let mut next = None;
        for (span, role) in self.spans.iter_mut().zip(&self.roles).rev() {
            match (role, next) {
                (Role::Special, _) => {}
                (Role::Floating { may_be_empty: false }, Some(next)) if span[0] == span[1] => *span = next,
                _ if span[0] < span[1] => next = Some(*span),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TokenKind::{Blank, Normal, Prefix, Special};
    use super::*;

    fn closed<const N: usize>(text: &str, tokens: [(Span<i32>, TokenKind); N]) -> [Span<i32>; N] {
        let mut spans = tokens.map(|(span, _)| span);
        assert_eq!(close(&mut spans, text, &tokens.map(|(_, kind)| kind)), Ok(()));
        spans
    }

    #[test]
    fn many_blanks_over_the_same_spaces_take_linear_time() -> Result<(), SpanError> {
        let n = 100_000; // looked at one by one, half of them are 5 * 10^9 spaces
        let end = 100_000;
        let text = " ".repeat(n);
        let mut spans: Vec<_> = (0..n).map(|token| if token % 2 == 0 { [0, end] } else { [end; 2] }).collect();
        close(&mut spans, &text, &vec![Blank; n])?;
        assert_eq!(spans, vec![[0, end]; n]);
        // White space until the end, where a letter is; and a letter that no span holds.
        for (text, expected) in [(format!("{}x", &text[1..]), false), (format!("{text}x"), true)] {
            let mut white_space = WhiteSpace { text: &text, unread: text.len(), before: None };
            for _ in 0..n {
                assert_eq!(white_space.fills(0, end), Ok(expected));
            }
        }
        Ok(())
    }

    #[test]
    fn white_space_counted_is_white_space_read() {
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

    #[test]
    fn trimmed_spaces_come_back() {
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
        // Prepended before a space, whose offsets both tokens then claim.
        assert_eq!(closed(" a", [([0, 1], Prefix), ([0, 2], Normal)]), [[0, 0], [0, 2]]);
    }

    #[test]
    fn a_blank_out_of_normalisation_shares_its_character() {
        // U+00B4 is a space and U+0301 under NFKC, U+FDFA four words.
        assert_eq!(closed("(\u{b4}", [([0, 1], Normal), ([1, 3], Blank), ([1, 3], Normal)]), [[0, 1], [1, 3], [1, 3]]);
        let tokens = [([0, 3], Prefix), ([0, 3], Normal), ([0, 3], Blank), ([0, 3], Normal)];
        assert_eq!(closed("\u{fdfa}", tokens), [[0, 0], [0, 3], [0, 3], [0, 3]]);
        // A claim out of order, or none at all: it shares what is before it.
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
    fn white_space_goes_forward_and_anything_else_back() {
        assert_eq!(closed("a  b", [([0, 1], Normal), ([3, 4], Normal)]), [[0, 1], [1, 4]]);
        // "e" + U+0301 eaten, then a space
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
        let expected = SpanError::Unsorted { argument: "spans", row: 0, token: 1, previous: [1, 2], span: [0, 1] };
        assert_eq!(error, Err(expected));
        for span in [[0, 3], [-1, 1], [2, 1]] {
            let error = close(&mut [[0, 1], span], "ab", &[Normal; 2]);
            let (span, unit) = (span.map(i64::from), "bytes");
            assert_eq!(error, Err(SpanError::OutsideText { argument: "spans", row: 0, token: 1, span, len: 2, unit }));
        }
        assert!(close_batch(&mut [[0, 1]; 2], &[0, 1, 2], &["a", ""], &[Normal; 2]).is_err());
    }

    #[test]
    fn ends_inside_a_character_are_kept() {
        assert_eq!(closed("∑a", [([0, 1], Normal), ([2, 3], Normal), ([3, 4], Normal)]), [[0, 2], [2, 3], [3, 4]]);
    }
}
