//! Reads a fuzzer's bytes as the arguments of the core's functions. The forms are plain, so that a seed can be
//! written by hand: one byte a number, and past the end zeros.

use vocagno::Span;

/// What is left of the fuzzer's bytes.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    /// A small number, below zero at times.
    pub fn number(&mut self) -> i64 {
        i64::from(self.byte().cast_signed())
    }

    /// A count, then so many items.
    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = usize::from(self.byte()).min(self.0.len());
        (0..count).map(|_| item(self)).collect()
    }

    /// Two numbers.
    pub fn span(&mut self) -> Span<i64> {
        [self.number(), self.number()]
    }

    /// A count, then so many bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        self.list(Self::byte)
    }

    /// A count, then so many bytes, those that are no UTF-8 replaced.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}
