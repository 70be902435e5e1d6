//! Alignment, reduction and reasons, compared with obvious oracles. `PROPTEST_CASES` sets the number of cases.

mod generators;
mod oracle;

use generators::{any_spans, sorted_spans, student_spans};
use oracle::{boundaries, index};
use proptest::prelude::*;
use proptest::sample::select;
use vocagno::mapping::{align_batch_into, unmapped_reasons_batch};
use vocagno::{
    Batch, Error, Reason, Reduction, Span, TokenRange, UNMAPPED, align, align_batch, reduce, unmapped_reasons,
};

// ---- generated spans

/// A few hundred spans that tile a text, some of them long: the input for the table from bytes to rows.
fn tiling() -> impl Strategy<Value = Vec<Span<i64>>> {
    let length = prop_oneof![400 => 1..9_i64, 20 => 9..40_i64, 1 => 3_000..9_000_i64];
    (0..20_i64, prop::collection::vec(length, 60..300)).prop_map(|(start, lengths)| {
        let ends = lengths.iter().scan(start, |end, length| {
            *end += length;
            Some(*end)
        });
        let ends: Vec<i64> = [start].into_iter().chain(ends).collect();
        ends.windows(2).map(|pair| [pair[0], pair[1]]).collect()
    })
}

/// Spans as above, with a hole, an overlap or a cut near a border of the table's window.
fn broken_at_a_border() -> impl Strategy<Value = Vec<Span<i64>>> {
    let break_at = (1..3_i64, -2..3_i64, -2..3_i64, 0..400_usize);
    (2..6_i64, 0..20_i64, break_at).prop_map(|(length, start, (window, before, after, dropped))| {
        let border = start + 4_096 * window;
        let (end, next) = (border + before, border + after);
        let ends = (start + length..end).step_by(usize::try_from(length).expect("small")).chain([end]);
        let ends: Vec<i64> = [start].into_iter().chain(ends).collect();
        let mut spans: Vec<Span<i64>> = ends.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        spans.truncate(spans.len() - dropped.min(spans.len() - 1) * usize::from(dropped % 2 == 0));
        spans.extend((0..300).map(|at| [next + 4 * at, next + 4 * at + 4]));
        spans
    })
}

/// A few spans changed: empty, out of order, overlapping, at the ends or in the middle.
fn disturbed(spans: impl Strategy<Value = Vec<Span<i64>>>) -> impl Strategy<Value = Vec<Span<i64>>> {
    let change = (any::<prop::sample::Index>(), 0..2_usize, -6..6_i64);
    let around = prop::collection::vec(select(vec![[0, 0], [7, 7], [9, 2]]), 0..3);
    (spans, prop::collection::vec(change, 0..3), around.clone(), around).prop_map(
        |(mut spans, changes, first, last)| {
            for (at, end, by) in changes {
                let at = at.index(spans.len());
                spans[at][end] += by;
            }
            [first, spans, last].concat()
        },
    )
}

proptest! {
    #[test]
    fn align_is_algorithm_1_on_long_texts(
        student in prop_oneof![tiling(), disturbed(tiling()), broken_at_a_border()],
        teacher in prop_oneof![2 => tiling(), 1 => disturbed(tiling()), 2 => broken_at_a_border()],
        far in select(vec![0, -1_000, i64::from(i32::MAX) - 9_000, i64::MIN, i64::MAX - 3_000_000]),
    ) {
        let moved = |spans: &[Span<i64>]| -> Vec<Span<i64>> {
            spans.iter().map(|span| span.map(|at| at.saturating_add(far))).collect()
        };
        let (student, teacher) = (moved(&student), moved(&teacher));
        match oracle::unsorted(&teacher) {
            None => prop_assert_eq!(align(&student, &teacher)?, oracle::align(&student, &teacher)),
            Some(expected) => {
                let error = align(&student, &teacher);
                let found = if let Err(Error::Unsorted { token, .. }) = error { Some(token) } else { None };
                prop_assert_eq!(found, Some(expected));
            }
        }
        let narrow = |spans: &[Span<i64>]| -> Option<Vec<Span<i32>>> {
            spans.iter().map(|&[start, end]| Some([i32::try_from(start).ok()?, i32::try_from(end).ok()?])).collect()
        };
        if let (Some(student), Some(teacher)) = (narrow(&student), narrow(&teacher)) {
            let wide = |spans: &[Span<i32>]| spans.iter().map(|span| span.map(i64::from)).collect::<Vec<_>>();
            if oracle::unsorted(&wide(&teacher)).is_none() {
                prop_assert_eq!(align(&student, &teacher)?, oracle::align(&wide(&student), &wide(&teacher)));
            }
        }
    }

    #[test]
    fn align_is_algorithm_1(student in student_spans(), teacher in sorted_spans()) {
        let mapping = align(&student, &teacher);
        prop_assert_eq!(&mapping, &Ok(oracle::align(&student, &teacher)));
        let narrow = |spans: &[Span<i64>]| -> Vec<Span<i32>> {
            spans.iter().map(|span| span.map(|offset| i32::try_from(offset).expect("small"))).collect()
        };
        prop_assert_eq!(align(&narrow(&student), &narrow(&teacher)), mapping);
    }

    #[test]
    fn align_refuses_exactly_what_is_out_of_order(student in any_spans(), teacher in any_spans()) {
        match (align(&student, &teacher), oracle::unsorted(&teacher)) {
            (Ok(mapping), None) => prop_assert_eq!(mapping, oracle::align(&student, &teacher)),
            (Err(Error::Unsorted { token, span, .. }), Some(expected)) => {
                prop_assert_eq!((token, span), (expected, teacher[expected]));
            }
            (result, expected) => prop_assert!(false, "{result:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn align_takes_any_offsets(student in prop::collection::vec(any::<[i64; 2]>(), 0..9), mut teacher in prop::collection::vec(any::<[i64; 2]>(), 0..9)) {
        teacher.sort_unstable();
        if oracle::unsorted(&teacher).is_none() {
            prop_assert_eq!(align(&student, &teacher), Ok(oracle::align(&student, &teacher)));
        }
    }

    #[test]
    fn a_batch_is_its_rows(rows in prop::collection::vec((student_spans(), sorted_spans()), 0..6)) {
        let student_cu = boundaries(rows.iter().map(|(student, _)| student.len()));
        let teacher_cu = boundaries(rows.iter().map(|(_, teacher)| teacher.len()));
        let student: Vec<_> = rows.iter().flat_map(|(student, _)| student.clone()).collect();
        let teacher: Vec<_> = rows.iter().flat_map(|(_, teacher)| teacher.clone()).collect();
        let batch = Batch::new(&student, &student_cu, &teacher, &teacher_cu)?;
        let mut expected = Vec::new();
        for ((student, teacher), &base) in rows.iter().zip(&teacher_cu) {
            let base = i32::try_from(base).expect("small");
            let flat = |range: TokenRange| if range == UNMAPPED { range } else { range.map(|row| row + base) };
            expected.extend(align(student, teacher)?.into_iter().map(flat));
        }
        prop_assert_eq!(align_batch(&batch)?, &expected[..]);
        let reasons = unmapped_reasons_batch(&batch, &expected, None::<&[f32]>)?;
        for ((student, teacher), &first) in rows.iter().zip(&student_cu) {
            let alone = unmapped_reasons(student, teacher, &align(student, teacher)?, None::<&[f32]>)?;
            prop_assert_eq!(&reasons[usize::try_from(first).expect("positive")..][..student.len()], alone);
        }
    }

    #[test]
    fn reduce_folds_the_finite_losses(losses in losses(), picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..9)) {
        let mapping: Vec<TokenRange> = picks.iter().map(|pick| {
            let [a, b] = pick.map(|pick| pick.index(losses.len() + 1));
            if a == b { UNMAPPED } else { [index(a.min(b)), index(a.max(b))] }
        }).collect();
        for how in [Reduction::Max, Reduction::Mean, Reduction::Sum, Reduction::Min] {
            let expected = mapping.iter().map(|&range| oracle::reduce(&losses, range, how).to_bits());
            let reduced = reduce(&losses, &mapping, how)?;
            prop_assert_eq!(reduced.into_iter().map(f32::to_bits).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn reduce_refuses_other_ranges(losses in losses(), range in [-3..12_i32, -3..12_i32]) {
        let fits = range == UNMAPPED || (0 <= range[0] && range[0] < range[1] && range[1] <= index(losses.len()));
        prop_assert_eq!(reduce(&losses, &[range], Reduction::Max).is_ok(), fits);
    }

    #[test]
    fn reasons_follow_their_definitions(student in student_spans(), teacher in sorted_spans(), seed in any::<u64>()) {
        let mapping = align(&student, &teacher)?;
        let losses: Vec<f64> = (0..teacher.len()).map(|at| if seed >> (at % 64) & 1 == 1 { 1.0 } else { f64::NAN }).collect();
        let plain = unmapped_reasons(&student, &teacher, &mapping, None::<&[f32]>)?;
        let scored = unmapped_reasons(&student, &teacher, &mapping, Some(&losses))?;
        let filled = || teacher.iter().filter(|[start, end]| start < end);
        for (token, &[start, end]) in student.iter().enumerate() {
            let overlaps = start < end && filled().any(|other| other[0] < end && start < other[1]);
            let expected = if overlaps {
                Reason::Mapped
            } else if start >= end {
                Reason::Special
            } else if filled().all(|&[_, last]| start >= last) {
                Reason::Truncated
            } else {
                Reason::Hole
            };
            prop_assert_eq!(plain[token], expected);
            let unscored = overlaps && oracle::reduce(&losses, mapping[token], Reduction::Max).is_nan();
            prop_assert_eq!(scored[token], if unscored { Reason::Unscored } else { expected });
        }
    }
}

fn losses() -> impl Strategy<Value = Vec<f64>> {
    let odd = select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    prop::collection::vec(prop_oneof![3 => -9.0..9.0, 1 => odd], 0..9)
}

/// Many small cases from a fixed generator, in addition to those of proptest.
#[test]
fn align_100_000_random_cases() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        i64::try_from(state % limit).expect("small")
    };
    for case in 0..100_000 {
        let mut side = |ordered: bool| {
            let (mut start, mut end) = (0, 0);
            let length = below(if case % 100 == 0 { 200 } else { 12 });
            let span = (0..length).map(|_| match below(6) {
                0 => [0, 0],
                1 => [end, start],
                _ if ordered => {
                    start += below(3);
                    end = (end + below(3)).max(start + 1);
                    [start, end]
                }
                _ => [below(30), below(30)],
            });
            span.collect::<Vec<_>>()
        };
        let (student, teacher) = (side(case % 3 > 0), side(true));
        assert_eq!(align(&student, &teacher), Ok(oracle::align(&student, &teacher)), "{student:?} {teacher:?}");
    }
}

/// Aligns the parts of a batch one after the other, of which there are at most `parts`.
fn align_parts(batch: Batch<'_, i64>, parts: usize, out: &mut [TokenRange]) -> Result<(), Error> {
    let halves = if parts > 1 { batch.split() } else { None };
    let Some((left, right)) = halves else {
        return align_batch_into(&batch, out);
    };
    let (left_out, right_out) = out.split_at_mut(left.student_rows().num_tokens());
    align_parts(left, parts.div_ceil(2), left_out).and(align_parts(right, parts / 2, right_out))
}

/// Many rows, with a long one and empty ones. In the second case two rows are out of order.
#[test]
fn parts_of_a_batch_are_the_batch() -> Result<(), Error> {
    let row: Vec<Span<i64>> = (0..70).map(|at| [3 * at, 3 * at + 2]).collect();
    let rows = [[1; 20].as_slice(), &[0, 0, 30, 0], &[1; 14]].concat();
    let cu = boundaries(rows.iter().map(|&times| times * row.len()));
    let long: Vec<Span<i64>> = (0..70 * 30).map(|at| [3 * at, 3 * at + 2]).collect();
    let mut spans = rows.iter().map(|&times| &long[..times * row.len()]).collect::<Vec<_>>().concat();
    for _ in 0..2 {
        let batch = Batch::new(&spans, &cu, &spans, &cu)?;
        let expected = align_batch(&batch);
        for parts in [1, 2, 5, usize::MAX] {
            let mut out = vec![[7; 2]; spans.len()];
            let mapping = align_parts(batch, parts, &mut out).map(|()| out);
            assert_eq!(mapping, expected);
        }
        spans[row.len() * 10 + 5] = [0, 1];
        spans[row.len() * 60 + 5] = [0, 1];
    }
    Ok(())
}
