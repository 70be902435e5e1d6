//! Spans from offsets in the types of other crates.

use crate::error::SpanError;
use crate::memory::{push, with_room};
use crate::offset::{Offset, Span};

/// Converts pairs of offsets of another type to spans: `(usize, usize)` as in the crate `tokenizers`, `[u32; 2]`,
/// `(u64, u64)`. An offset that does not fit the spans' type is an error, never truncated.
///
/// # Errors
/// [`SpanError::TooLarge`] for an offset that does not fit the spans' type, [`SpanError::Memory`].
///
/// # Example
/// ```
/// use vocagno::{Span, align, to_spans};
///
/// let offsets: &[(usize, usize)] = &[(0, 5), (5, 9)]; // encoding.get_offsets()
/// let student: Vec<Span<i32>> = to_spans("student_spans", offsets.iter().copied())?;
/// assert_eq!(align(&student, &[[0, 2], [2, 7], [7, 9]])?, [[0, 2], [1, 3]]);
///
/// let too_far = to_spans::<i32, _, _>("student_spans", [(0, 5), (5, 1_u64 << 31)]);
/// let message = "student_spans: token 1: expected offsets of at most 2147483647, got 2147483648";
/// assert_eq!(too_far.map_err(|error| error.to_string()), Err(message.to_owned()));
/// # Ok::<(), vocagno::SpanError>(())
/// ```
pub fn to_spans<T, U, P>(argument: &'static str, pairs: impl IntoIterator<Item = P>) -> Result<Vec<Span<T>>, SpanError>
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
            let too_large = |_| SpanError::TooLarge {
                argument,
                token,
                limit: T::MAX.into(),
                got: offset.try_into().unwrap_or(u64::MAX),
            };
            T::try_from(offset).map_err(too_large)
        };
        push(&mut spans, [fitting(start)?, fitting(end)?])?;
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_every_kind() {
        assert_eq!(to_spans::<i64, _, _>("spans", [(0_usize, 2_usize)]), Ok(vec![[0, 2]]));
        assert_eq!(to_spans::<i32, _, _>("spans", [[0_u32, 2]]), Ok(vec![[0, 2]]));
        assert_eq!(to_spans::<i32, u64, (u64, u64)>("spans", []), Ok(vec![]));
        let most = [(u64::from(u32::MAX) >> 1, u64::MAX >> 1)];
        assert_eq!(to_spans::<i64, _, _>("spans", most), Ok(vec![[i64::from(i32::MAX), i64::MAX]]));
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        let refused = |got, limit| SpanError::TooLarge { argument: "spans", token: 1, limit, got };
        let narrow = to_spans::<i32, _, _>("spans", [[0, 1], [0, u32::MAX]]);
        assert_eq!(narrow, Err(refused(u32::MAX.into(), i32::MAX.into())));
        let wide = to_spans::<i64, _, _>("spans", [[0, 1], [u64::MAX, 3]]);
        assert_eq!(wide, Err(refused(u64::MAX, i64::MAX)));
    }
}
