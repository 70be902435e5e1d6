//! Groups, compared with an obvious oracle and with `align`. `PROPTEST_CASES` sets the number of cases.

mod generators;
mod oracle;

use generators::{any_spans, sorted_spans, tiling};
use oracle::{boundaries, index};
use proptest::prelude::*;
use vocagno::error::{Error, Input};
use vocagno::mapping::{Groups, groups_batch};
use vocagno::{Batch, Span, UNMAPPED, align, groups};

proptest! {
    #[test]
    fn groups_lie_between_the_cuts(student in sorted_spans(), teacher in sorted_spans()) {
        let found = groups(&student, &teacher)?;
        let pairs: Vec<_> = found.student.iter().copied().zip(found.teacher).map(|(own, other)| [own, other]).collect();
        prop_assert_eq!(pairs, oracle::groups(&student, &teacher));
        prop_assert_eq!(found.cu_seqlens, [0, i64::from(index(found.student.len()))]);
    }

    #[test]
    fn what_a_token_is_mapped_to_is_in_its_group(student in sorted_spans(), teacher in sorted_spans()) {
        let found = groups(&student, &teacher)?;
        for (token, range) in align(&student, &teacher)?.into_iter().enumerate() {
            if range == UNMAPPED {
                continue;
            }
            let own = found.student.iter().position(|&[first, stop]| first <= index(token) && index(token) < stop);
            let [first, stop] = found.teacher[own.expect("a mapped token is in a group")];
            prop_assert!(first <= range[0] && range[1] <= stop);
        }
    }

    #[test]
    fn groups_of_tilings_tile_both_sides(student in tiling(), teacher in tiling()) {
        let found = groups(&student, &teacher)?;
        let both = |spans: &[Span<i64>]| spans.iter().map(|span| span[1]).collect::<std::collections::BTreeSet<_>>();
        let shared: Vec<i64> = both(&student).intersection(&both(&teacher)).copied().collect();
        let ends = |spans: &[Span<i64>], rows: &[vocagno::TokenRange]| -> Vec<i64> {
            rows.iter().map(|row| spans[usize::try_from(row[1]).expect("a row") - 1][1]).collect()
        };
        prop_assert_eq!(ends(&student, &found.student), shared.clone());
        prop_assert_eq!(ends(&teacher, &found.teacher), shared);
        for (rows, tokens) in [(&found.student, student.len()), (&found.teacher, teacher.len())] {
            prop_assert_eq!(rows[0][0], 0);
            prop_assert!(rows.windows(2).all(|pair| pair[0][1] == pair[1][0]));
            prop_assert_eq!(rows[rows.len() - 1][1], index(tokens));
        }
    }

    #[test]
    fn either_side_out_of_order_is_refused(student in any_spans(), teacher in any_spans()) {
        let expected = oracle::unsorted(&student).map(|token| (Input::Student, token));
        let expected = expected.or(oracle::unsorted(&teacher).map(|token| (Input::Teacher, token)));
        match (groups(&student, &teacher), expected) {
            (Ok(_), None) => {}
            (Err(Error::Unsorted { input, token, .. }), Some(expected)) => prop_assert_eq!((input, token), expected),
            (result, expected) => prop_assert!(false, "{result:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn groups_of_a_batch_are_those_of_its_rows(rows in prop::collection::vec((sorted_spans(), sorted_spans()), 0..6)) {
        let cu = [boundaries(rows.iter().map(|(own, _)| own.len())), boundaries(rows.iter().map(|(_, other)| other.len()))];
        let mut expected = Groups::default();
        expected.cu_seqlens.push(0);
        for (row, (student, teacher)) in rows.iter().enumerate() {
            let found = groups(student, teacher)?;
            let moved = |ranges: Vec<vocagno::TokenRange>, by: i64| {
                let by = i32::try_from(by).expect("small");
                ranges.into_iter().map(move |range| range.map(|at| at + by))
            };
            expected.student.extend(moved(found.student, cu[0][row]));
            expected.teacher.extend(moved(found.teacher, cu[1][row]));
            expected.cu_seqlens.push(i64::from(index(expected.student.len())));
        }
        let student: Vec<_> = rows.iter().flat_map(|(student, _)| student.clone()).collect();
        let teacher: Vec<_> = rows.iter().flat_map(|(_, teacher)| teacher.clone()).collect();
        let batch = Batch::new(&student, &cu[0], &teacher, &cu[1])?;
        prop_assert_eq!(groups_batch(&batch)?, expected);
    }
}
