//! Spans from offsets in the types of other crates.

use alloc::vec::Vec;

use crate::error::Error;
use crate::memory::{push, with_room};
use crate::offset::{Offset, Span};

/// Converts pairs of offsets of another type to spans: `(usize, usize)` as in the crate `tokenizers`, `[u32; 2]`,
/// `(u64, u64)`. An offset that does not fit the spans' type is an error, never truncated.
///
/// # Errors
/// [`Error::TooLarge`] for an offset that does not fit the spans' type, [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::spans::{Span, to_spans};
///
/// let offsets: &[(usize, usize)] = &[(0, 5), (5, 9)]; // encoding.get_offsets()
/// let student: Vec<Span<i32>> = to_spans(offsets.iter().copied())?;
/// assert_eq!(vocagno::align(&student, &[[0, 2], [2, 7], [7, 9]])?, [[0, 2], [1, 3]]);
///
/// let too_far = to_spans::<i32, _, _>([(0, 5), (5, 1_u64 << 31)]);
/// let message = "pairs: token 1: expected offsets of at most 2147483647, got 2147483648";
/// assert_eq!(too_far.map_err(|error| error.to_string()), Err(message.to_owned()));
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn to_spans<T, U, P>(pairs: impl IntoIterator<Item = P>) -> Result<Vec<Span<T>>, Error>
where
    T: Offset + TryFrom<U>,
    U: Copy + TryInto<u64>,
    P: Into<[U; 2]>,
{
    let pairs = pairs.into_iter();
    let mut spans = with_room(pairs.size_hint().0)?;
    for (token, pair) in pairs.enumerate() {
        let [start, end] = pair.into();
        let fitting = |offset: U| {
            let got = || offset.try_into().unwrap_or(u64::MAX);
            T::try_from(offset).map_err(|_| Error::TooLarge { token, limit: T::MAX.into(), got: got() })
        };
        push(&mut spans, [fitting(start)?, fitting(end)?])?;
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn pairs_of_every_kind() {
        assert_eq!(to_spans::<i64, _, _>([(0_usize, 2_usize)]), Ok(vec![[0, 2]]));
        assert_eq!(to_spans::<i32, _, _>([[0_u32, 2]]), Ok(vec![[0, 2]]));
        assert_eq!(to_spans::<i32, u64, (u64, u64)>([]), Ok(vec![]));
        let most = [(u64::from(u32::MAX) >> 1, u64::MAX >> 1)];
        assert_eq!(to_spans::<i64, _, _>(most), Ok(vec![[i64::from(i32::MAX), i64::MAX]]));
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        let refused = |got, limit| Error::TooLarge { token: 1, limit, got };
        let narrow = to_spans::<i32, _, _>([[0, 1], [0, u32::MAX]]);
        assert_eq!(narrow, Err(refused(u32::MAX.into(), i32::MAX.into())));
        let wide = to_spans::<i64, _, _>([[0, 1], [u64::MAX, 3]]);
        assert_eq!(wide, Err(refused(u64::MAX, i64::MAX)));
    }
}
