//! Spans of a text, and the integer types of their offsets.

/// Half-open `[start, end)` of a token in its document. Empty if `start >= end`.
pub type Span<T> = [T; 2];

/// An offset in a text: `i32` or `i64`.
pub trait Offset: Copy + Ord + Into<i64> + Send + Sync + sealed::Place {
    /// The smallest value.
    const MIN: Self;
    /// The largest value.
    const MAX: Self;
}

impl Offset for i32 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

impl Offset for i64 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

pub(crate) fn is_empty<T: Offset>([start, end]: &Span<T>) -> bool {
    start >= end
}

/// Restricts [`Offset`] to the types that the kernels are tested with.
mod sealed {
    /// Offsets relative to a window of the text, computed in their own width.
    pub trait Place {
        /// Bytes from `origin` to this offset. Unspecified for an offset before `origin`.
        fn bytes_from(self, origin: Self) -> usize;
        /// The offset `bytes` later, saturating at the largest offset.
        fn later(self, bytes: i32) -> Self;
    }

    #[expect(clippy::cast_sign_loss, reason = "not negative, by its contract")]
    impl Place for i32 {
        fn bytes_from(self, origin: Self) -> usize {
            // The difference of two `i32` may not fit an `i32`; wrapped and read as `u32` it is exact.
            self.wrapping_sub(origin) as u32 as usize
        }
        fn later(self, bytes: i32) -> Self {
            self.saturating_add(bytes)
        }
    }

    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "not negative, by its contract")]
    impl Place for i64 {
        fn bytes_from(self, origin: Self) -> usize {
            self.wrapping_sub(origin) as usize
        }
        fn later(self, bytes: i32) -> Self {
            self.saturating_add(bytes.into())
        }
    }
}
