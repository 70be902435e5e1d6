//! The non-empty spans of one text, checked for order.

use std::ops;

use crate::error::SpanError;
use crate::mapping::to_row;
use crate::memory::with_room;
use crate::offset::{Offset, Span, is_empty};

/// From the first non-empty span to the last.
pub(crate) fn filled<T: Offset>(spans: &[Span<T>]) -> ops::Range<usize> {
    let first = spans.iter().take_while(|span| is_empty(span)).count();
    first..spans.len() - spans[first..].iter().rev().take_while(|span| is_empty(span)).count()
}

/// Whether no span is empty and none starts or ends before its predecessor. There is no early exit, so the loop
/// vectorises.
#[expect(clippy::needless_bitwise_bool, reason = "lazy operators would branch at every span")]
pub(crate) fn all_in_order<T: Offset>(spans: &[Span<T>]) -> bool {
    let Some((_, next)) = spans.split_first() else {
        return true;
    };
    let filled = spans.iter().fold(true, |ok, [start, end]| ok & (start < end));
    let pairs = spans.iter().zip(next);
    pairs.fold(filled, |ok, (a, b)| ok & (a[0] <= b[0]) & (a[1] <= b[1]))
}

/// The non-empty spans of a batch's row `row` and their flat rows, numbered from `base`.
///
/// # Errors
/// [`SpanError::Unsorted`] for the first span that is out of order, [`SpanError::Memory`].
pub(crate) fn non_empty<T: Offset>(
    argument: &'static str,
    all: &[Span<T>],
    row: usize,
    base: usize,
) -> Result<(Vec<Span<T>>, Vec<i32>), SpanError> {
    let (mut spans, mut rows): (Vec<Span<T>>, Vec<i32>) = (with_room(all.len())?, with_room(all.len())?);
    for (token, &span) in all.iter().enumerate() {
        if is_empty(&span) {
            continue;
        }
        if let Some(&previous) = spans.last()
            && (span[0] < previous[0] || span[1] < previous[1])
        {
            return Err(SpanError::Unsorted {
                argument,
                row,
                token,
                previous: previous.map(T::into),
                span: span.map(T::into),
            });
        }
        spans.push(span);
        rows.push(to_row(base + token));
    }
    Ok((spans, rows))
}
