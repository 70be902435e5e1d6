//! Overlap and chunks, compared with obvious oracles. `PROPTEST_CASES` sets the number of cases.

mod generators;
mod oracle;

use generators::{any_spans, sorted_spans, student_spans};
use oracle::{boundaries, index};
use proptest::prelude::*;
use proptest::sample::Index;
use vocagno::mapping::{chunk_boundaries, chunk_map, overlap_batch};
use vocagno::{Batch, Error, TokenRange, UNMAPPED, align, overlap};

/// Any range of `rows` rows. [`UNMAPPED`] if it is empty.
fn range_of(rows: usize, picks: [Index; 2]) -> TokenRange {
    let [a, b] = picks.map(|pick| pick.index(rows + 1));
    if a == b { UNMAPPED } else { [index(a.min(b)), index(a.max(b))] }
}

fn bits(shares: &[f64]) -> Vec<u64> {
    shares.iter().map(|share| share.to_bits()).collect()
}

/// `i * n / chunks`, as in the definition.
fn naive_boundaries(n: usize, chunks: usize) -> Vec<usize> {
    (0..=chunks).map(|at| at * n / chunks).collect()
}

proptest! {
    #[test]
    fn overlap_counts_the_bytes_of_any_range(
        student in student_spans(),
        teacher in sorted_spans(),
        picks in prop::collection::vec(any::<[Index; 2]>(), 24),
    ) {
        let mapping: Vec<TokenRange> = student.iter().zip(picks).map(|(_, pick)| range_of(teacher.len(), pick)).collect();
        let found = overlap(&student, &teacher, &mapping)?;
        let expected: Vec<_> = student.iter().zip(&mapping).map(|(&span, &range)| oracle::overlap(span, &teacher, range)).collect();
        prop_assert_eq!(bits(&found.iou), bits(&expected.iter().map(|share| share[0]).collect::<Vec<_>>()));
        prop_assert_eq!(bits(&found.ios), bits(&expected.iter().map(|share| share[1]).collect::<Vec<_>>()));
    }

    #[test]
    fn overlap_refuses_teacher_spans_out_of_order(student in any_spans(), teacher in any_spans()) {
        let mapping = vec![UNMAPPED; student.len()];
        match (overlap(&student, &teacher, &mapping), oracle::unsorted(&teacher)) {
            (Ok(_), None) => {}
            (Err(Error::Unsorted { token, .. }), Some(expected)) => prop_assert_eq!(token, expected),
            (result, expected) => prop_assert!(false, "{result:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn overlap_takes_any_offsets(student in prop::collection::vec(any::<[i64; 2]>(), 0..9), mut teacher in prop::collection::vec(any::<[i64; 2]>(), 0..9)) {
        teacher.sort_unstable();
        if oracle::unsorted(&teacher).is_none() {
            let found = overlap(&student, &teacher, &align(&student, &teacher)?)?;
            for ((iou, ios), [start, end]) in found.iou.into_iter().zip(found.ios).zip(student) {
                prop_assert_eq!(start >= end, iou.is_nan() && ios.is_nan());
                prop_assert!(start >= end || (0.0 <= iou && iou <= ios && ios <= 1.0), "{iou} {ios}");
            }
        }
    }

    #[test]
    fn overlap_of_a_batch_is_that_of_its_rows(rows in prop::collection::vec((student_spans(), sorted_spans()), 0..6)) {
        let student_cu = boundaries(rows.iter().map(|(student, _)| student.len()));
        let teacher_cu = boundaries(rows.iter().map(|(_, teacher)| teacher.len()));
        let (mut mapping, mut expected): (Vec<TokenRange>, Vec<f64>) = (Vec::new(), Vec::new());
        for ((student, teacher), &base) in rows.iter().zip(&teacher_cu) {
            let base = i32::try_from(base).expect("small");
            let own = align(student, teacher)?;
            expected.extend(overlap(student, teacher, &own)?.iou);
            mapping.extend(own.into_iter().map(|range| if range == UNMAPPED { range } else { range.map(|row| row + base) }));
        }
        let student: Vec<_> = rows.iter().flat_map(|(student, _)| student.clone()).collect();
        let teacher: Vec<_> = rows.iter().flat_map(|(_, teacher)| teacher.clone()).collect();
        let batch = Batch::new(&student, &student_cu, &teacher, &teacher_cu)?;
        prop_assert_eq!(bits(&overlap_batch(&batch, &mapping)?.iou), bits(&expected));
    }

    #[test]
    fn tokens_of_a_chunk_get_the_rows_of_that_chunk(n_student in 0..80_usize, n_teacher in 0..80_usize, chunks in 1..100_usize) {
        let (student, teacher) = (naive_boundaries(n_student, chunks), naive_boundaries(n_teacher, chunks));
        let mut expected = Vec::new();
        for (own, other) in student.windows(2).zip(teacher.windows(2)) {
            let range = if other[0] < other[1] { [index(other[0]), index(other[1])] } else { UNMAPPED };
            expected.extend(vec![range; own[1] - own[0]]);
        }
        prop_assert_eq!(chunk_map(n_student, n_teacher, chunks)?, expected);
        let wide = chunk_boundaries(n_student, chunks)?;
        prop_assert_eq!(wide, student.into_iter().map(|at| i64::from(index(at))).collect::<Vec<_>>());
    }

    #[test]
    fn chunks_of_any_sizes(n in 0..=i64::MAX.unsigned_abs(), chunks in 1..200_usize, many in any::<usize>()) {
        let n = usize::try_from(n).expect("64 bits");
        let cuts = chunk_boundaries(n, chunks)?;
        prop_assert_eq!((cuts[0].unsigned_abs(), cuts[chunks].unsigned_abs()), (0, u64::try_from(n)?));
        let sizes: Vec<i64> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let [least, most] = [sizes.iter().min(), sizes.iter().max()].map(|size| size.copied().unwrap_or_default());
        prop_assert!(0 <= least && most - least <= 1, "{sizes:?}");
        let mapping = chunk_map(9, 9, many.max(1))?;
        prop_assert!(many < 9 || mapping.iter().zip(0..).all(|(&range, row)| range == [row, row + 1]));
    }
}
