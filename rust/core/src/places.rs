use std::iter::repeat_n;
use std::ops::Range;
use std::str::from_utf8;

use unicode_normalization::char::{decompose_compatible, is_combining_mark};

use crate::batch::{Rows, expect_len};
use crate::memory::{filled_with, with_room};
use crate::{PieceTable, Span, SpanError};

/// How far from its span a token is looked for, in characters.
const REACH: usize = 256;

/// Longest run of tokens that are read as the bytes of one character after another.
const LONGEST_RUN: usize = 64;

/// What the tokens of a vocabulary are compared by with the text at their spans: their characters in
/// compatibility decomposition (NFKD) and lower case, without white space, control characters and marks. What
/// normalisers usually change is left out of the comparison so.
#[derive(Clone, Debug)]
pub struct Places {
    folded: String,
    /// Token `id` is `folded[ends[id - 1]..ends[id]]`.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Characters.
    Text,
    /// Bytes that are characters only together with those of its neighbours.
    Part,
    /// Not known, or whatever the vocabulary lacks.
    Unknown,
}

/// Tokens that are compared together, and that do not stand for the text at their spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Disagreement {
    /// Row of the batch.
    pub row: usize,
    /// The tokens, counted over the batch: one, or the parts of a character.
    pub tokens: [usize; 2],
}

impl Places {
    /// Folds every piece once. `unknown` is the id of the token for whatever the vocabulary lacks.
    ///
    /// # Errors
    /// [`SpanError::TooMany`] for pieces of 4 GiB or more, [`SpanError::Memory`].
    pub fn new(table: &PieceTable, unknown: Option<i32>) -> Result<Self, SpanError> {
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
            let Ok(end) = u32::try_from(folded.len()) else {
                let (items, limit) = ("bytes in all", u32::MAX as usize);
                return Err(SpanError::TooMany { argument: "pieces", items, limit, got: folded.len() });
            };
            ends.push(end);
        }
        Ok(Self { folded, ends, kinds })
    }

    fn kind(&self, id: i32) -> Kind {
        usize::try_from(id).ok().and_then(|id| self.kinds.get(id)).copied().unwrap_or(Kind::Unknown)
    }

    fn characters(&self, id: i32) -> &str {
        let Some(id) = usize::try_from(id).ok().filter(|&id| id < self.ends.len()) else {
            return "";
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        self.folded.get(start..self.ends[id] as usize).unwrap_or_default()
    }

    /// Tokens whose characters are not, in order, among those of the text at their byte spans. Tokens that are
    /// parts of a character are compared together, with the text at all their spans; what the vocabulary lacks
    /// and parts of no character are not compared.
    ///
    /// Time is linear in tokens and in the text at their spans.
    ///
    /// # Errors
    /// For `cu_seqlens` that do not fit the ids, and [`SpanError::Length`] unless there is one span per id and
    /// one text per row.
    ///
    /// # Example
    /// ```
    /// use vocagno::{DummyPrefix, PieceRole, PieceTable, Places};
    ///
    /// let table = PieceTable::new(["proof", "read"].map(Some), &[PieceRole::Plain; 2], DummyPrefix::None)?;
    /// let places = Places::new(&table, None)?;
    /// let found = places.disagreeing(&table, &[0, 1], &[[0, 6], [6, 10]], &[0, 2], &["Pro\u{f3}fRead"])?;
    /// assert!(found.is_empty()); // case and marks do not count
    /// let found = places.disagreeing(&table, &[0, 1], &[[0, 4], [4, 8]], &[0, 2], &["proofread"])?;
    /// assert_eq!(found.len(), 2);
    /// # Ok::<(), vocagno::SpanError>(())
    /// ```
    pub fn disagreeing<S: AsRef<str> + Sync>(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        cu_seqlens: &[i64],
        texts: &[S],
    ) -> Result<Vec<Disagreement>, SpanError> {
        expect_len("spans", ids.len(), spans.len())?;
        let rows = Rows::checked("cu_seqlens", cu_seqlens, ids.len())?;
        expect_len("texts", rows.count(), texts.len())?;
        let mut found = filled_with(Vec::new(), rows.count())?;
        rows.for_each(&mut vec![(); ids.len()], &mut found, &|row, _, found| {
            let range = rows.range(row);
            let (ids, spans, text) = (&ids[range.clone()], &spans[range.clone()], texts[row].as_ref());
            self.each_unit(table, ids, |tokens, characters| {
                let span = around(&spans[tokens.clone()]);
                if !is_within(characters.unwrap_or_default(), slice(text, span)) {
                    let tokens = [range.start + tokens.start, range.start + tokens.end];
                    found.push(Disagreement { row, tokens });
                }
            });
            Ok(())
        })?;
        Ok(found.concat())
    }

    /// Whether the characters of some tokens are, in order, among those of a text.
    #[must_use]
    pub fn agrees(&self, table: &PieceTable, ids: &[i32], text: &str) -> bool {
        let mut all = String::new();
        self.each_unit(table, ids, |_, characters| all.push_str(characters.unwrap_or_default()));
        is_within(&all, text)
    }

    /// Of the tokens of one text that disagree with it (ranges of rows), the first that stand elsewhere nearby;
    /// with the byte at which they do. They stand where their characters do, one after the other, and no other
    /// token has them; of tokens of one or two characters, those of a neighbour must be next to them.
    ///
    /// Time is linear in tokens and text, and in 512 characters a token that disagrees.
    #[must_use]
    pub fn misplaced(
        &self,
        table: &PieceTable,
        ids: &[i32],
        spans: &[Span<i32>],
        text: &str,
        disagreeing: &[[usize; 2]],
    ) -> Option<([usize; 2], usize)> {
        let mut text = Claimed::new(text);
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
            let at =
                text.place_near(held, own, before.map_or(&[], |unit| &unit.own), after.map_or(&[], |unit| &unit.own));
            Some(([tokens.start, tokens.end], text.bytes[at?]))
        })
    }

    /// Calls `work(tokens, their characters)` for every token, or for the run of tokens that are characters
    /// together; `None` for what is unknown.
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

    /// How many of the first tokens are whole characters together, and these characters, folded.
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
                Err(_) => {} // the last character goes on in the next token
            }
        }
        None
    }
}

/// Gives what is compared of a character.
#[inline]
fn fold(c: char, mut give: impl FnMut(char)) {
    if c.is_ascii() {
        if c.is_ascii_graphic() {
            give(c.to_ascii_lowercase());
        }
        return;
    }
    let mut keep = |c: char| {
        // U+2581 is the space of SentencePiece's vocabularies.
        if !(c.is_whitespace() || c.is_control() || c == '\u{2581}' || is_combining_mark(c)) {
            give(c);
        }
    };
    decompose_compatible(c, |c| c.to_lowercase().for_each(|c| decompose_compatible(c, &mut keep)));
}

/// Whether the folded characters are, in order, among those of `text`.
fn is_within(characters: &str, text: &str) -> bool {
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

/// Tokens that are compared together.
struct Unit {
    tokens: Range<usize>,
    /// Characters at their spans.
    held: Range<usize>,
    own: Vec<char>,
    is_wrong: bool,
}

/// The characters of a text that are compared, and which of them a token stands for.
struct Claimed {
    characters: Vec<char>,
    /// Byte of the text at which each stands.
    bytes: Vec<usize>,
    taken: Vec<bool>,
}

impl Claimed {
    fn new(text: &str) -> Self {
        let (mut characters, mut bytes) = (Vec::new(), Vec::new());
        for (byte, c) in text.char_indices() {
            fold(c, |c| characters.push(c));
            bytes.extend(repeat_n(byte, characters.len() - bytes.len()));
        }
        let taken = vec![false; characters.len()];
        Self { characters, bytes, taken }
    }

    /// The characters at a span of bytes.
    fn places(&self, span: Span<i32>) -> Range<usize> {
        let [start, end] = span.map(|at| {
            let at = usize::try_from(at).unwrap_or_default();
            self.bytes.partition_point(|&byte| byte < at)
        });
        start..end.max(start)
    }

    /// Marks what a token stands for at its span; all of it, if the token is not of these characters.
    fn claim(&mut self, held: Range<usize>, own: Option<&str>) {
        let mut places = held.clone();
        let found: Option<Vec<usize>> =
            own.and_then(|own| own.chars().map(|c| places.find(|&at| self.characters[at] == c)).collect());
        for at in found.unwrap_or_else(|| held.collect()) {
            self.taken[at] = true;
        }
    }

    /// Where the characters of a token stand that nothing claims, near what its span holds.
    fn place_near(&self, held: &Range<usize>, own: &[char], before: &[char], after: &[char]) -> Option<usize> {
        let stands =
            |at: usize, what: &[char]| !what.is_empty() && self.characters.get(at..at + what.len()) == Some(what);
        let first = held.start.saturating_sub(REACH);
        (first..(held.end + REACH).min(self.characters.len())).find(|&at| {
            let end = at + own.len();
            stands(at, own)
                && !self.taken[at..end].contains(&true)
                && (own.len() > 2
                    || stands(end, after)
                    || at.checked_sub(before.len()).is_some_and(|at| stands(at, before)))
        })
    }
}

/// The text from the first start to the last end.
fn around(spans: &[Span<i32>]) -> Span<i32> {
    let start = spans.iter().map(|span| span[0]).min().unwrap_or_default();
    [start, spans.iter().map(|span| span[1]).max().unwrap_or_default()]
}

/// The characters that a span touches.
fn slice(text: &str, [start, end]: Span<i32>) -> &str {
    let bytes = text.as_bytes();
    let is_inside = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let mut start = usize::try_from(start).unwrap_or_default().min(bytes.len());
    let mut end = usize::try_from(end).unwrap_or_default().clamp(start, bytes.len());
    while is_inside(start) {
        start -= 1;
    }
    while is_inside(end) {
        end += 1;
    }
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DummyPrefix, PieceRole};

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

    /// The first tokens that disagree, and the first that stand elsewhere with the byte at which they do.
    #[expect(clippy::type_complexity, reason = "what is compared")]
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
    fn tokens_at_their_places_agree() -> Result<(), SpanError> {
        let nothing = (vec![], None);
        assert_eq!(checked("The  QUICK fox", &[(0, [0, 3]), (1, [3, 10]), (2, [10, 14])])?, nothing);
        // Composed or not, with or without the mark; a compatibility form; parts of a character.
        assert_eq!(checked("cafe\u{301}", &[(6, [0, 3]), (7, [3, 6])])?, nothing);
        assert_eq!(checked("\u{fb01}\u{2211}a\u{2211}", &[(4, [3, 6]), (5, [3, 6]), (8, [6, 7])])?, nothing);
        assert_eq!(checked("\u{24d0}", &[(8, [0, 3])])?, nothing);
        // Unknown tokens, broken characters and blanks say nothing.
        assert_eq!(checked("xyz", &[(3, [0, 1]), (4, [1, 2]), (8, [2, 2]), (9, [2, 3])])?.0, [[2, 3]]);
        assert_eq!(checked("xyz", &[(3, [0, 1]), (4, [1, 2]), (9, [2, 3]), (77, [2, 3]), (-1, [2, 3])])?, nothing);
        assert_eq!(checked("", &[])?, nothing);
        Ok(())
    }

    #[test]
    fn a_token_that_stands_elsewhere_is_found() -> Result<(), SpanError> {
        let shifted = checked("the quick fox", &[(0, [0, 2]), (1, [2, 8]), (2, [8, 11])])?;
        assert_eq!(shifted, (vec![[0, 1], [1, 2], [2, 3]], Some(([0, 1], 0))));
        // One character: with its neighbour alone.
        assert_eq!(checked("xa fox", &[(8, [0, 1]), (2, [2, 6])])?, (vec![[0, 1]], Some(([0, 1], 1))));
        assert_eq!(checked("x fox fox a", &[(8, [0, 1]), (2, [2, 5])])?, (vec![[0, 1]], None));
        Ok(())
    }

    #[test]
    fn what_stands_nowhere_or_is_anothers_is_not_misplaced() -> Result<(), SpanError> {
        // A mark of case, put in before the word; a word in another's place.
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
        // Spans outside the text and inside characters are read as far as the text goes.
        let odd = [[-5, 1], [2, 1], [3, 900], [i32::MIN, i32::MAX]];
        assert_eq!(places.disagreeing(&table, &[0, 2, 8, 0], &odd, &[0, 4], &["\u{2211}the"])?.len(), 3);
        assert_eq!(places.misplaced(&table, &[0, 2, 8], &odd, "\u{2211}the", &[[1, 2], [9, 12]]), None);
        assert_eq!(places.misplaced(&table, &[0, 2], &[], "the", &[[0, 1]]), Some(([0, 1], 0)));
        Ok(())
    }
}
