//! Checks spans with [`Places`]: compares the characters of tokens with the text at their spans.

mod claimed_text;
mod fold;

use alloc::string::String;
use alloc::vec::Vec;
use core::iter::repeat_n;
use core::ops::Range;
use core::str::from_utf8;

use self::claimed_text::ClaimedText;
use self::fold::{fold, is_within};
use crate::batch::{Rows, one_row};
use crate::checks::{expect_len, piece_end};
use crate::error::{Error, Input};
use crate::memory::{push, with_room};
use crate::offset::Span;
use crate::spans::piece_table::PieceTable;

/// Longest run of tokens that is read as parts of characters.
const LONGEST_RUN: usize = 64;

/// The folded characters of each token of a vocabulary, to compare tokens with the text at their spans. Folding is
/// compatibility decomposition (NFKD) and lower case, without white space, control characters and marks. The
/// comparison therefore ignores what normalisers usually change.
#[derive(Clone, Debug)]
pub struct Places {
    folded: String,
    /// Token `id` is `folded[ends[id - 1]..ends[id]]`.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Whole characters.
    Text,
    /// Part of a character. The rest is in the tokens next to it.
    Part,
    /// No known bytes, or the token for text that the vocabulary lacks.
    Unknown,
}

/// Tokens that are compared together and differ from the text at their spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disagreement {
    /// Row of the batch.
    pub row: usize,
    /// The tokens, counted over the batch: one token, or the parts of a character.
    pub tokens: [usize; 2],
}

impl Places {
    /// Folds every piece once. `unknown` is the id of the token for text that the vocabulary lacks.
    ///
    /// # Errors
    /// [`Error::TooMany`] for pieces of 4 GiB or more, [`Error::Memory`].
    pub fn new(table: &PieceTable, unknown: Option<i32>) -> Result<Self, Error> {
        let (mut folded, mut ends, mut kinds) = (String::new(), with_room(table.len())?, with_room(table.len())?);
        for id in 0..i32::try_from(table.len()).unwrap_or(i32::MAX) {
            let piece = table.surface(id).filter(|_| unknown != Some(id));
            kinds.push(match piece.map(from_utf8) {
                Some(Ok(text)) => {
                    text.chars().for_each(|c| fold(c, |c| folded.push(c)));
                    Kind::Text
                }
                Some(Err(_)) => Kind::Part,
                None => Kind::Unknown,
            });
            ends.push(piece_end(folded.len())?);
        }
        Ok(Self { folded, ends, kinds })
    }

    fn kind(&self, id: i32) -> Kind {
        usize::try_from(id).ok().and_then(|id| self.kinds.get(id)).copied().unwrap_or(Kind::Unknown)
    }

    /// The folded characters of a token.
    fn characters(&self, id: i32) -> &str {
        let Some(id) = usize::try_from(id).ok().filter(|&id| id < self.ends.len()) else {
            return "";
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        self.folded.get(start..self.ends[id] as usize).unwrap_or_default()
    }

    /// Finds the tokens of one text whose characters are not a subsequence of the text at their byte spans, as ranges of
    /// tokens: one token, or the parts of a character. These are compared together, with the text at all their spans.
    /// Unknown tokens and parts that form no character are skipped.
    ///
    /// Time is linear in tokens and in the text at their spans.
    ///
    /// # Errors
    /// [`Error::Length`] unless there is one span per id, [`Error::Memory`].
    ///
    /// # Example
    /// ```
    /// use vocagno::places::Places;
    /// use vocagno::spans::{DummyPrefix, PieceRole, PieceTable};
    ///
    /// let table = PieceTable::new(["proof", "read"].map(Some), &[PieceRole::Plain; 2], DummyPrefix::None)?;
    /// let places = Places::new(&table, None)?;
    /// let wrong = places.disagreeing(&table, &[0, 1], &[[0, 6], [6, 10]], "Pro\u{f3}fRead")?;
    /// assert!(wrong.is_empty()); // case and marks are ignored
    /// let wrong = places.disagreeing(&table, &[0, 1], &[[0, 4], [4, 8]], "proofread")?;
    /// assert_eq!(wrong, [[0, 1], [1, 2]]);
    /// # Ok::<(), vocagno::Error>(())
    /// ```
    pub fn disagreeing(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        text: &str,
    ) -> Result<Vec<[usize; 2]>, Error> {
        let all = self.disagreeing_batch(table, ids, spans, Rows::new(&one_row(ids), ids.len())?, &[text])?;
        Ok(all.into_iter().map(|wrong| wrong.tokens).collect())
    }

    /// [`disagreeing`](Self::disagreeing) for a batch of texts.
    ///
    /// # Errors
    /// As [`disagreeing`](Self::disagreeing), and [`Error::Length`] for ids or texts that are not those of `rows`.
    pub fn disagreeing_batch<S: AsRef<str>>(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        rows: Rows<'_>,
        texts: &[S],
    ) -> Result<Vec<Disagreement>, Error> {
        expect_len(Input::Spans, ids.len(), spans.len())?;
        rows.expect_tokens(Input::Ids, ids.len())?;
        rows.expect_rows(Input::Texts, texts.len())?;
        let mut all = Vec::new();
        for (row, range) in rows.iter() {
            let (ids, spans, text) = (&ids[range.clone()], &spans[range.clone()], texts[row].as_ref());
            let mut pushed = Ok(());
            self.each_unit(table, ids, |tokens, characters| {
                let span = around(&spans[tokens.clone()]);
                if pushed.is_ok() && !is_within(characters.unwrap_or_default(), slice(text, span)) {
                    let tokens = [range.start + tokens.start, range.start + tokens.end];
                    pushed = push(&mut all, Disagreement { row, tokens });
                }
            });
            pushed?;
        }
        Ok(all)
    }

    /// Whether the characters of some tokens are a subsequence of a text.
    #[must_use]
    pub fn agrees(&self, table: &PieceTable, ids: &[i32], text: &str) -> bool {
        let mut all = String::new();
        self.each_unit(table, ids, |_, characters| all.push_str(characters.unwrap_or_default()));
        is_within(&all, text)
    }

    /// Of the tokens of one text that disagree with it (ranges of rows), returns the first that occur elsewhere
    /// nearby, and the byte where they occur. They occur where their characters are consecutive and no other token
    /// accounts for them. Tokens of one or two characters must also be next to the characters of a neighbour.
    ///
    /// Time is linear in tokens and text, plus 512 characters per token that disagrees.
    #[must_use]
    pub fn misplaced(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        text: &str,
        disagreeing: &[[usize; 2]],
    ) -> Option<([usize; 2], usize)> {
        let mut text = ClaimedText::new(text);
        let mut wrong = disagreeing.iter().peekable();
        let mut units = Vec::new();
        self.each_unit(table, ids, |tokens, own| {
            let held = text.places(around(spans.get(tokens.clone()).unwrap_or_default()));
            let is_wrong = wrong.next_if(|wrong| wrong[0] == tokens.start).is_some();
            if !is_wrong {
                text.claim(held.clone(), own);
            }
            let own: Vec<char> = own.unwrap_or_default().chars().collect();
            if !own.is_empty() {
                units.push(Unit { tokens, held, own, is_wrong });
            }
        });
        (0..units.len()).filter(|&unit| units[unit].is_wrong).find_map(|unit| {
            let (before, after) = (unit.checked_sub(1).map(|unit| &units[unit]), units.get(unit + 1));
            let Unit { tokens, held, own, .. } = &units[unit];
            let [before, after] = [before, after].map(|unit| unit.map_or(&[][..], |unit| &unit.own));
            Some(([tokens.start, tokens.end], text.find_near(held, own, before, after)?))
        })
    }

    /// Of the tokens of one text, those whose characters are not at their spans but can be at one place only, and the
    /// byte span of that place. The characters of all tokens then occur in the text in order, except those of tokens that
    /// agree with it only after a normaliser. `None` if they do not occur, or if a token of `disagreeing` (ranges of
    /// rows) can be at several places. Parts of a character get its whole span.
    ///
    /// Time is linear in tokens and text.
    #[must_use]
    pub fn moves(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        text: &str,
        disagreeing: &[[usize; 2]],
    ) -> Option<Vec<(usize, Span<i32>)>> {
        let mut wrong = disagreeing.iter().peekable();
        let (mut all, mut units) = (Vec::new(), Vec::new());
        self.each_unit(table, ids, |tokens, own| {
            let (own, first) = (own.unwrap_or_default(), all.len());
            let span = around(spans.get(tokens.clone()).unwrap_or_default());
            let is_wrong = wrong.next_if(|wrong| wrong[0] == tokens.start).is_some();
            if !own.is_empty() && (is_wrong || is_within(own, slice(text, span))) {
                all.extend(own.chars());
                units.push((tokens, span, first..all.len(), is_wrong));
            }
        });
        let bytes = ClaimedText::new(text).only_bytes(&all)?;
        let mut moves = Vec::new();
        for (tokens, [start, end], own, is_wrong) in units {
            match place_of(text, &bytes[own.clone()]) {
                Some(place) if place[0] < start || end < place[1] => {
                    let parts = folded_parts(table, &ids[tokens.clone()]);
                    let places = parts.map(|part| place_of(text, &bytes[own.start..][part]).unwrap_or(place));
                    moves.extend(tokens.zip(places));
                }
                None if is_wrong => return None,
                _ => {}
            }
        }
        Some(moves)
    }

    /// Calls `work(tokens, their characters)` for every token, and for every run of tokens that form characters
    /// together. The characters are `None` if they are unknown.
    fn each_unit(&self, table: &PieceTable, ids: &[i32], mut work: impl FnMut(Range<usize>, Option<&str>)) {
        let mut token = 0;
        while let Some(&id) = ids.get(token) {
            let mut stop = token + 1;
            match self.kind(id) {
                Kind::Text => work(token..stop, Some(self.characters(id))),
                Kind::Unknown => work(token..stop, None),
                Kind::Part => {
                    let joined = self.joined(table, &ids[token..]);
                    stop = token + joined.as_ref().map_or(1, |joined| joined.0);
                    work(token..stop, joined.as_ref().map(|joined| &*joined.1));
                }
            }
            token = stop;
        }
    }

    /// Number of leading tokens that form whole characters together, and these characters, folded.
    fn joined(&self, table: &PieceTable, ids: &[i32]) -> Option<(usize, String)> {
        let mut bytes = Vec::new();
        for (count, &id) in (1..=LONGEST_RUN).zip(ids) {
            bytes.extend_from_slice(table.surface(id).filter(|_| self.kind(id) != Kind::Unknown)?);
            match from_utf8(&bytes) {
                Ok(text) => {
                    let mut folded = String::new();
                    text.chars().for_each(|c| fold(c, |c| folded.push(c)));
                    return Some((count, folded));
                }
                Err(error) if error.error_len().is_some() => return None,
                Err(_) => {} // the last character continues in the next token
            }
        }
        None
    }
}

/// Tokens that are compared together.
struct Unit {
    tokens: Range<usize>,
    /// Characters of the text at their spans.
    held: Range<usize>,
    own: Vec<char>,
    is_wrong: bool,
}

/// From the first start to the last end.
fn around(spans: &[Span<i32>]) -> Span<i32> {
    let start = spans.iter().map(|span| span[0]).min().unwrap_or_default();
    [start, spans.iter().map(|span| span[1]).max().unwrap_or_default()]
}

/// The folded characters of tokens that form characters together: for each token those of which it has bytes.
fn folded_parts(table: &PieceTable, ids: &[i32]) -> impl Iterator<Item = Range<usize>> {
    let pieces: Vec<&[u8]> = ids.iter().map(|&id| table.surface(id).unwrap_or_default()).collect();
    let (mut count, mut of_bytes) = (0, Vec::new());
    for c in from_utf8(&pieces.concat()).unwrap_or_default().chars() {
        let first = count;
        fold(c, |_| count += 1);
        of_bytes.extend(repeat_n(first..count, c.len_utf8()));
    }
    let mut end = 0;
    pieces.into_iter().map(move |piece| {
        let start = end;
        end += piece.len();
        of_bytes[start].start..of_bytes[end - 1].end
    })
}

/// From the first of some characters of a text to the last, given the bytes at which they start.
fn place_of(text: &str, bytes: &[Option<usize>]) -> Option<Span<i32>> {
    let bytes: Vec<usize> = bytes.iter().copied().collect::<Option<_>>()?;
    let (&start, &last) = (bytes.first()?, bytes.last()?);
    let end = last + text.get(last..)?.chars().next()?.len_utf8();
    Some([i32::try_from(start).ok()?, i32::try_from(end).ok()?])
}

/// The characters that a span overlaps, at least in part.
fn slice(text: &str, [start, end]: Span<i32>) -> &str {
    let bytes = text.as_bytes();
    let is_inside = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let mut start = usize::try_from(start).unwrap_or_default().min(bytes.len());
    let mut end = usize::try_from(end).unwrap_or_default().clamp(start, bytes.len());
    // A span may begin or end inside a character (a token that is a part of one): the whole character is compared.
    while is_inside(start) {
        start -= 1;
    }
    while is_inside(end) {
        end += 1;
    }
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
