//! The folded characters of a text, and which of them a token accounts for.

use alloc::vec;
use alloc::vec::Vec;
use core::iter::repeat_n;
use core::ops::Range;

use super::fold::fold;
use crate::offset::Span;

/// How far from its span a token is searched, in characters.
const REACH: usize = 256;

/// The folded characters of a text, and which of them a token accounts for.
pub(super) struct ClaimedText {
    characters: Vec<char>,
    /// The byte of the text at which each character starts.
    bytes: Vec<usize>,
    /// Whether a token accounts for the character.
    taken: Vec<bool>,
}

impl ClaimedText {
    pub(super) fn new(text: &str) -> Self {
        let (mut characters, mut bytes) = (Vec::new(), Vec::new());
        for (byte, c) in text.char_indices() {
            fold(c, |c| characters.push(c));
            bytes.extend(repeat_n(byte, characters.len() - bytes.len()));
        }
        let taken = vec![false; characters.len()];
        Self { characters, bytes, taken }
    }

    /// The indices of the characters at a byte span.
    pub(super) fn places(&self, span: Span<i32>) -> Range<usize> {
        let [start, end] = span.map(|at| {
            let at = usize::try_from(at).unwrap_or_default();
            self.bytes.partition_point(|&byte| byte < at)
        });
        start..end.max(start)
    }

    /// For each of these characters the byte of the only place where it can be if all of them occur in order; `None` if it
    /// can be at several. `None` if they do not occur.
    pub(super) fn only_bytes(&self, wanted: &[char]) -> Option<Vec<Option<usize>>> {
        let (mut from_start, mut from_end) = (0..self.characters.len(), (0..self.characters.len()).rev());
        let is = |c: char| move |&at: &usize| self.characters[at] == c;
        // The characters in order as far to the left as possible, then as far to the right as possible. A character
        // that has one place in both has no other.
        let earliest: Option<Vec<usize>> = wanted.iter().map(|&c| from_start.find(is(c))).collect();
        let latest: Option<Vec<usize>> = wanted.iter().rev().map(|&c| from_end.find(is(c))).collect();
        let both = earliest?.into_iter().zip(latest?.into_iter().rev());
        let both = both.map(|(first, last)| (self.bytes[first], self.bytes[last]));
        Some(both.map(|(first, last)| (first == last).then_some(first)).collect())
    }

    /// Marks the characters that a token accounts for at its span. These are all of `held` if the token has other
    /// characters.
    pub(super) fn claim(&mut self, held: Range<usize>, own: Option<&str>) {
        let mut places = held.clone();
        let found: Option<Vec<usize>> =
            own.and_then(|own| own.chars().map(|c| places.find(|&at| self.characters[at] == c)).collect());
        for at in found.unwrap_or_else(|| held.collect()) {
            self.taken[at] = true;
        }
    }

    /// The byte near a token's span where its characters occur and no token accounts for them. A token of one or two
    /// characters must be next to the characters of the previous or the next token, `before` and `after`.
    pub(super) fn find_near(
        &self,
        held: &Range<usize>,
        own: &[char],
        before: &[char],
        after: &[char],
    ) -> Option<usize> {
        let occurs =
            |at: usize, what: &[char]| !what.is_empty() && self.characters.get(at..at + what.len()) == Some(what);
        let first = held.start.saturating_sub(REACH);
        let found = (first..(held.end + REACH).min(self.characters.len())).find(|&at| {
            let end = at + own.len();
            occurs(at, own)
                && !self.taken[at..end].contains(&true)
                && (own.len() > 2
                    || occurs(end, after)
                    || at.checked_sub(before.len()).is_some_and(|at| occurs(at, before)))
        });
        found.map(|at| self.bytes[at])
    }
}
