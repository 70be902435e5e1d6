//! Time to align and to reduce a document of 32, 2,048 and 1,000,000 tokens: `cargo bench -p vocagno`.
//! Throughput counts student tokens.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vocagno::{Reduction, Span, TokenRange, align_into, reduce_into};

const SIZES: [usize; 3] = [32, 2_048, 1_000_000];

/// Pseudorandom numbers, the same on every run.
fn random(seed: u64) -> impl FnMut(i32) -> i32 {
    let mut state = seed;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        i32::try_from(state >> 33).map_or(0, |value| value % limit)
    }
}

/// Spans that tile a text, 1 to 8 bytes each.
fn tiling(tokens: usize, seed: u64) -> Vec<Span<i32>> {
    let (mut below, mut end) = (random(seed), 0);
    let span = |_| {
        let start = end;
        end += 1 + below(8);
        [start, end]
    };
    (0..tokens).map(span).collect()
}

/// The correct answer, by two binary searches per token.
fn searched(student: &[Span<i32>], teacher: &[Span<i32>]) -> Vec<TokenRange> {
    let row = |index: usize| i32::try_from(index).unwrap_or(i32::MAX);
    let range = |&[start, end]: &Span<i32>| {
        let first = teacher.partition_point(|other| other[1] <= start);
        let stop = teacher.partition_point(|other| other[0] < end);
        if first < stop { [row(first), row(stop)] } else { [-1, -1] }
    };
    student.iter().map(range).collect()
}

fn throughput(tokens: usize) -> Throughput {
    Throughput::Elements(u64::try_from(tokens).unwrap_or(u64::MAX))
}

fn bench_align(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("align");
    for tokens in SIZES {
        let (student, teacher) = (tiling(tokens, 7), tiling(tokens, 11));
        let mut out = vec![[0; 2]; tokens];
        assert_eq!(align_into(&student, &teacher, &mut out), Ok(()));
        assert_eq!(out, searched(&student, &teacher));
        group.throughput(throughput(tokens));
        group.bench_function(BenchmarkId::from_parameter(tokens), |bencher| {
            bencher.iter(|| align_into(black_box(&student), black_box(&teacher), &mut out));
        });
        group.bench_function(BenchmarkId::new("binary search", tokens), |bencher| {
            bencher.iter(|| searched(black_box(&student), black_box(&teacher)));
        });
    }
    group.finish();
}

fn bench_reduce(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reduce");
    for (how, name) in [(Reduction::Max, "max"), (Reduction::Mean, "mean")] {
        for tokens in SIZES {
            let mapping = searched(&tiling(tokens, 7), &tiling(tokens, 11));
            let mut below = random(13);
            let losses: Vec<f32> = (0..tokens).map(|_| if below(50) == 0 { f32::NAN } else { 0.5 }).collect();
            let mut out = vec![0.0; tokens];
            assert_eq!(reduce_into(&losses, &mapping, Reduction::Max, &mut out), Ok(()));
            assert!(out.iter().all(|loss| loss.is_nan() || loss.to_bits() == 0.5_f32.to_bits()));
            group.throughput(throughput(tokens));
            group.bench_function(BenchmarkId::new(name, tokens), |bencher| {
                bencher.iter(|| reduce_into(black_box(&losses), black_box(&mapping), how, &mut out));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench_align, bench_reduce);
criterion_main!(benches);
