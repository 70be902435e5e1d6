//! Closes the holes between the offsets that a tokenizer reports.

use alloc::vec::Vec;

use super::white_space::{WhiteSpace, slice};
use crate::batch::Rows;
use crate::checks::{expect_len, text_len};
use crate::error::{Error, Input};
use crate::memory::filled_with;
use crate::offset::Span;

/// The kind of a token's surface, as far as [`close`] distinguishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenKind {
    /// A token that represents text, other than a blank marker.
    #[default]
    Normal,
    /// Only a blank marker, such as a lone `▁` or `Ġ`: white space of the text or of its normalised form.
    Blank,
    /// No surface (BOS, EOS, padding). Its span is unchanged.
    Special,
    /// A blank marker where the tokenizer may have inserted a space. It may represent no text.
    Prefix,
}

/// Closes the holes between the offsets that a tokenizer reports. The byte spans then cover the whole text, and
/// only special tokens and lone dummy prefixes are empty. The order is kept, and spans only grow.
///
/// * A *floating* token gets the gap at its position. It is a token with a zero-width span, or a blank whose
///   character is not its own (not white space, or also held by the next token). If its position lies inside the
///   gap, it gets the gap up to there, otherwise the whole gap. Without a gap a `Prefix` is a lone dummy prefix and
///   becomes empty. A blank then keeps its character (whose normalised form contains a space). Any other token
///   shares the span of the previous token, or of the next token if there is no previous one.
/// * Any other gap is divided. The white space at its end goes to the next token. The rest (such as a combining mark
///   that normalisation removed) goes to the previous token. A gap at the start of the text goes to the next token,
///   a gap at its end to the previous token.
/// * If tokens share a character (byte fallback, nested spans), the text before it goes to the first of them, the
///   text after it to all of them: the space belongs to the first piece, the mark to the whole character.
///
/// Time is linear in tokens and text.
///
/// # Errors
/// [`Error::OutsideText`] for a span that leaves the text or starts after its end, and
/// [`Error::Unsorted`] for spans out of order. Both leave `spans` unchanged. Floating and special tokens
/// need no order. [`Error::Length`] unless `kinds` holds one item per span, [`Error::TextTooLong`],
/// [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::spans::{TokenKind, close};
///
/// // "a   b" from a tokenizer that trims spaces: a|␣␣|␣b
/// let mut spans = [[0, 1], [3, 3], [4, 5]];
/// close(&mut spans, "a   b", &[TokenKind::Normal; 3])?;
/// assert_eq!(spans, [[0, 1], [1, 3], [3, 5]]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn close(spans: &mut [Span<i32>], text: &str, kinds: &[TokenKind]) -> Result<(), Error> {
    expect_len(Input::Kinds, spans.len(), kinds.len())?;
    close_row(spans, text, kinds, 0)
}

/// [`close`] for a batch of documents. `spans` are those of `rows`.
///
/// # Errors
/// As [`close`], and [`Error::Length`] for kinds or texts that are not those of `rows`. After an error other documents
/// may already be closed.
pub fn close_batch<S: AsRef<str>>(
    spans: &mut [Span<i32>],
    rows: Rows<'_>,
    texts: &[S],
    kinds: &[TokenKind],
) -> Result<(), Error> {
    rows.expect_tokens(Input::Kinds, kinds.len())?;
    rows.expect_rows(Input::Texts, texts.len())?;
    expect_len(Input::Spans, rows.num_tokens(), spans.len())?;
    rows.for_each(spans, |row, tokens, row_spans| close_row(row_spans, texts[row].as_ref(), &kinds[tokens], row))
}

fn close_row(spans: &mut [Span<i32>], text: &str, kinds: &[TokenKind], row: usize) -> Result<(), Error> {
    let len = text_len(text.as_bytes(), row)?;
    check_inside(spans, kinds, len, row)?;
    let roles = roles(spans, text, kinds)?;
    check_order(spans, &roles, row)?;
    Closing { spans, roles, text, len, covered: 0, last: None }.run();
    Ok(())
}

fn check_inside(spans: &[Span<i32>], kinds: &[TokenKind], len: i32, row: usize) -> Result<(), Error> {
    for (token, (&[start, end], &kind)) in spans.iter().zip(kinds).enumerate() {
        if kind != TokenKind::Special && !(0 <= start && start <= end && end <= len) {
            let (input, span, unit) = (Input::Spans, [start, end].map(i64::from), "bytes");
            let len = usize::try_from(len).unwrap_or_default();
            return Err(Error::OutsideText { input, row, token, span, len, unit });
        }
    }
    Ok(())
}

fn check_order(spans: &[Span<i32>], roles: &[Role], row: usize) -> Result<(), Error> {
    let mut previous = [0; 2];
    for (token, (&span, _)) in spans.iter().zip(roles).enumerate().filter(|(_, (_, role))| **role == Role::Fixed) {
        if span[0] < previous[0] || span[1] < previous[1] {
            let (previous, span) = (previous.map(i64::from), span.map(i64::from));
            return Err(Error::Unsorted { input: Input::Spans, row, token, previous, span });
        }
        previous = span;
    }
    Ok(())
}

/// How [`close`] treats a token.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// Its span contains its text and can only grow.
    Fixed,
    /// Its span is only a hint. `may_be_empty` is set if it may be a lone dummy prefix.
    Floating { may_be_empty: bool },
    /// Skipped.
    Special,
}

fn roles(spans: &[Span<i32>], text: &str, kinds: &[TokenKind]) -> Result<Vec<Role>, Error> {
    let mut roles = filled_with(Role::Special, spans.len())?;
    let mut white_space = WhiteSpace::of(text);
    // From the end, as a blank needs the start of the next token: a character that the next token holds is not its own.
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

struct Closing<'a> {
    spans: &'a mut [Span<i32>],
    roles: Vec<Role>,
    text: &'a str,
    len: i32,
    /// End of the text that is covered so far.
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
                    // `next_fixed` never moves back, so that all searches together are one walk.
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

    /// `next` is the span of the next [`Role::Fixed`] token.
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
            self.spans[token][0] = split; // only the first of the tokens that share a character gets the space
        }
        self.covered = end; // ends do not decrease
        self.last = Some(token);
    }

    /// Start of the white space that ends at `end`, within the gap.
    fn white_space_before(&self, end: i32) -> i32 {
        let kept = slice(self.text, self.covered, end).and_then(|gap| i32::try_from(gap.trim_end().len()).ok());
        kept.map_or(end, |kept| self.covered + kept)
    }

    /// Moves the end of every token that ends at the end of the covered text.
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

    /// Gives tokens at the start of the text that have neither a gap nor a previous token the span of the next token.
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
mod tests;
