//! Where both sides start a token, compared with an obvious oracle. `PROPTEST_CASES` sets the number of cases.

mod generators;
mod oracle;

use generators::{any_spans, sorted_spans, tiling};
use oracle::{boundaries, index};
use proptest::prelude::*;
use vocagno::mapping::starts_batch;
use vocagno::{Batch, groups, starts};

proptest! {
    #[test]
    fn starts_are_their_definition(student in sorted_spans(), teacher in sorted_spans()) {
        prop_assert_eq!(starts(&student, &teacher)?, oracle::starts(&student, &teacher));
    }

    #[test]
    fn starts_of_tilings_are_the_shared_boundaries(student in tiling(), teacher in tiling()) {
        let row = |place| teacher.iter().position(|span| span[0] == place).map_or(-1, index);
        let expected: Vec<i32> = student.iter().map(|span| row(span[0])).collect();
        prop_assert_eq!(starts(&student, &teacher)?, expected);
    }

    #[test]
    fn the_other_way_round_finds_the_same_pairs(student in sorted_spans(), teacher in sorted_spans()) {
        let there = starts(&student, &teacher)?;
        let back = starts(&teacher, &student)?;
        for (token, &row) in there.iter().enumerate() {
            prop_assert!(row < 0 || back[usize::try_from(row).expect("a row")] == index(token));
        }
        let found = |rows: &[i32]| rows.iter().filter(|&&row| row >= 0).count();
        prop_assert_eq!(found(&there), found(&back));
    }

    #[test]
    fn either_side_out_of_order_is_refused_as_by_groups(student in any_spans(), teacher in any_spans()) {
        match (starts(&student, &teacher), groups(&student, &teacher)) {
            (Ok(found), Ok(_)) => prop_assert_eq!(found, oracle::starts(&student, &teacher)),
            (Err(error), Err(expected)) => prop_assert_eq!(error, expected),
            (found, expected) => prop_assert!(false, "{found:?}, groups: {expected:?}"),
        }
    }

    #[test]
    fn starts_of_a_batch_are_those_of_its_rows(rows in prop::collection::vec((sorted_spans(), sorted_spans()), 0..6)) {
        let cu = [boundaries(rows.iter().map(|(own, _)| own.len())), boundaries(rows.iter().map(|(_, other)| other.len()))];
        let mut expected = Vec::new();
        for (row, (student, teacher)) in rows.iter().enumerate() {
            let base = i32::try_from(cu[1][row]).expect("small");
            expected.extend(starts(student, teacher)?.into_iter().map(|at| if at < 0 { at } else { at + base }));
        }
        let student: Vec<_> = rows.iter().flat_map(|(student, _)| student.clone()).collect();
        let teacher: Vec<_> = rows.iter().flat_map(|(_, teacher)| teacher.clone()).collect();
        prop_assert_eq!(starts_batch(&Batch::new(&student, &cu[0], &teacher, &cu[1])?)?, expected);
    }
}
