//! Strategies for spans: those that tokenizers report, and arbitrary ones.
#![allow(dead_code, reason = "every target uses some")]

use proptest::prelude::*;
use vocagno::Span;

/// Sorted spans: with gaps, repeated or nested, and empty ones anywhere.
pub(crate) fn sorted_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    let step = (0..3_i64, 0..3_i64, 0..4_i64, any::<bool>());
    prop::collection::vec(step, 0..24).prop_map(|steps| {
        let (mut start, mut end) = (0, 0);
        let mut spans = Vec::new();
        for (start_step, end_step, empty, is_empty) in steps {
            if is_empty && empty > 1 {
                spans.push(if empty == 2 { [0, 0] } else { [end + 1, start] });
            } else {
                (start, end) = (start + start_step, (end + end_step).max(start + start_step + 1));
                spans.push([start, end]);
            }
        }
        spans
    })
}

pub(crate) fn any_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    prop::collection::vec([-2..40_i64, -2..40_i64], 0..24)
}

pub(crate) fn student_spans() -> impl Strategy<Value = Vec<Span<i64>>> {
    prop_oneof![sorted_spans(), any_spans()]
}

/// Spans that follow one another from 0 to 60.
pub(crate) fn tiling() -> impl Strategy<Value = Vec<Span<i64>>> {
    prop::collection::btree_set(1..60_i64, 0..20).prop_map(|cuts| {
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        starts.zip(cuts.iter().copied().chain([60])).map(|(start, end)| [start, end]).collect()
    })
}
