//! Input: scale, student spans, teacher spans (or, if the highest bit of the scale is set, lengths of spans that
//! tile). The mapping must equal Algorithm 1, in 64 and 32 bits and in a batch. Spans must be rejected only if they are
//! out of order.
#![no_main]

#[path = "../../core/tests/oracle/mod.rs"]
mod oracle;

use input::Input;
use libfuzzer_sys::fuzz_target;
use vocagno::error::{Error, Input as Argument};
use vocagno::{Batch, Reason, Span, UNMAPPED, align, align_batch, groups, overlap, starts, unmapped_reasons};

/// Adjacent spans. A few of them are very long, empty or a step back.
fn tiling(input: &mut Input<'_>) -> Vec<Span<i64>> {
    let mut end = i64::from(input.byte());
    input.list(|input| {
        let length = match input.byte() {
            255 => 5_000,
            254 => -1,
            length => i64::from(length % 16),
        };
        end += length;
        [end - length, end]
    })
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let scale = input.byte();
    let factor = 1_i64 << (scale % 57); // as far apart as 64 bits allow
    let scaled = |span: Span<i64>| span.map(|at| at.saturating_mul(factor));
    let read = if scale & 0x80 == 0 { |input: &mut Input<'_>| input.list(Input::span) } else { tiling };
    let (student, teacher) = (read(&mut input), read(&mut input));
    let student: Vec<_> = student.into_iter().map(scaled).collect();
    let teacher: Vec<_> = teacher.into_iter().map(scaled).collect();

    let mapping = match (align(&student, &teacher), oracle::unsorted(&teacher)) {
        (Ok(mapping), None) => mapping,
        (Err(Error::Unsorted { token, .. }), Some(expected)) => return assert_eq!(token, expected),
        (result, expected) => panic!("{result:?}, but the first span out of order is {expected:?}"),
    };
    assert_eq!(mapping, oracle::align(&student, &teacher));

    let narrow = |spans: &[Span<i64>]| spans.iter().map(|span| span.map(i32::try_from)).collect::<Vec<_>>();
    let (short, other) = (narrow(&student), narrow(&teacher));
    if short.iter().chain(&other).flatten().all(Result::is_ok) {
        let unwrap = |spans: Vec<[Result<i32, _>; 2]>| -> Vec<Span<i32>> {
            spans.into_iter().map(|span| span.map(|at| at.unwrap_or_default())).collect()
        };
        assert_eq!(align(&unwrap(short), &unwrap(other)).as_ref(), Ok(&mapping));
    }

    let cut = oracle::boundaries([student.len(); 2].into_iter());
    let other_cut = oracle::boundaries([teacher.len(); 2].into_iter());
    let twice = [&student[..], &student[..]].concat();
    let others = [&teacher[..], &teacher[..]].concat();
    let batch = Batch::new(&twice, &cut, &others, &other_cut).and_then(|batch| align_batch(&batch)).expect("in order");
    let rows = oracle::index(teacher.len());
    let moved = mapping.iter().map(|&range| if range == UNMAPPED { range } else { range.map(|row| row + rows) });
    assert_eq!(batch, mapping.iter().copied().chain(moved).collect::<Vec<_>>());

    match (groups(&student, &teacher), oracle::unsorted(&student)) {
        (Ok(found), None) => {
            let pairs = found.student.iter().zip(&found.teacher).map(|(&own, &other)| [own, other]);
            assert_eq!(pairs.collect::<Vec<_>>(), oracle::groups(&student, &teacher));
        }
        (Err(Error::Unsorted { input: Argument::Student, token, .. }), Some(expected)) => {
            assert_eq!(token, expected)
        }
        (result, expected) => panic!("{result:?}, but the first student span out of order is {expected:?}"),
    }
    match starts(&student, &teacher) {
        Ok(found) => assert_eq!(found, oracle::starts(&student, &teacher)),
        Err(error) => assert_eq!(Err(error), groups(&student, &teacher)),
    }
    let reasons = unmapped_reasons(&student, &teacher, &mapping, None::<&[f32]>).expect("it fits");
    for (range, reason) in mapping.iter().zip(reasons) {
        assert_eq!(*range != UNMAPPED, reason == Reason::Mapped);
    }

    let found = overlap(&student, &teacher, &mapping).expect("it fits");
    for ((&iou, &ios), (range, [start, end])) in found.iou.iter().zip(&found.ios).zip(mapping.iter().zip(&student)) {
        assert_eq!(start >= end, iou.is_nan() && ios.is_nan());
        assert!(start >= end || (0.0 <= iou && iou <= ios && ios <= 1.0), "{iou} {ios}");
        assert_eq!(*range != UNMAPPED, ios > 0.0);
    }
    let others: Vec<_> = mapping.iter().rev().copied().collect(); // ranges far from their tokens
    let found = overlap(&student, &teacher, &others).expect("it fits");
    assert!(found.ios.iter().all(|&ios| ios.is_nan() || (0.0..=1.0).contains(&ios)));
});
