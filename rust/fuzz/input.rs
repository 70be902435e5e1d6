//! Reads a fuzzer's bytes as arguments of the core's functions. The format is simple, so seeds can be written by
//! hand: each number is one byte. Past the end all bytes are 0.

use vocagno::Span;

/// The unread bytes.
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

    /// A small number, which may be negative.
    pub fn number(&mut self) -> i64 {
        i64::from(self.byte().cast_signed())
    }

    /// A count, then that many items.
    pub fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = usize::from(self.byte()).min(self.0.len());
        (0..count).map(|_| item(self)).collect()
    }

    /// Two numbers.
    pub fn span(&mut self) -> Span<i64> {
        [self.number(), self.number()]
    }

    /// A count, then that many bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        self.list(Self::byte)
    }

    /// A count, then that many bytes. Invalid UTF-8 is replaced.
    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}
