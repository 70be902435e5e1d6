//! The non-empty spans of one text, checked for order.

use alloc::vec::Vec;
use core::ops;

use crate::error::{Error, Input};
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

/// [`Error::Unsorted`] for the first non-empty span of a batch's row `row` that is out of order.
pub(crate) fn expect_order<T: Offset>(input: Input, spans: &[Span<T>], row: usize) -> Result<(), Error> {
    if all_in_order(&spans[filled(spans)]) {
        return Ok(());
    }
    let mut last: Option<Span<T>> = None;
    for (token, &span) in spans.iter().enumerate().filter(|(_, span)| !is_empty(span)) {
        if let Some(previous) = last
            && (span[0] < previous[0] || span[1] < previous[1])
        {
            let [previous, span] = [previous, span].map(|span| span.map(T::into));
            return Err(Error::Unsorted { input, row, token, previous, span });
        }
        last = Some(span);
    }
    Ok(())
}

/// The non-empty spans of a batch's row `row` and their flat rows, numbered from `base`.
///
/// # Errors
/// As [`expect_order`], and [`Error::Memory`].
pub(crate) fn non_empty<T: Offset>(
    input: Input,
    all: &[Span<T>],
    row: usize,
    base: usize,
) -> Result<(Vec<Span<T>>, Vec<i32>), Error> {
    expect_order(input, all, row)?;
    let (mut spans, mut rows) = (with_room(all.len())?, with_room(all.len())?);
    for (token, &span) in all.iter().enumerate().filter(|(_, span)| !is_empty(span)) {
        spans.push(span);
        rows.push(to_row(base + token));
    }
    Ok((spans, rows))
}
