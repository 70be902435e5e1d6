//! Times `align` and `reduce` on spans that tile a text, after their answers were compared with the oracles of the
//! tests: `cargo bench -p vocagno`. `make bench` compares `align` with other aligners, `make instructions` counts.

#[path = "../tests/oracle/mod.rs"]
mod oracle;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vocagno::{Reduction, Span, align, align_into, reduce, reduce_into};

/// A short text, a usual row of a batch, and a book.
const SIZES: [usize; 3] = [32, 2_048, 1_000_000];
/// Student tokens that are compared with the oracle, which reads all teacher spans for each of them.
const CHECKED: usize = 256;

/// Spans of 1 to 8 bytes that tile a text. The numbers are pseudorandom and the same on every run.
fn tiling(tokens: usize, seed: u64) -> Vec<Span<i64>> {
    let (mut state, mut end) = (seed, 0);
    let span = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let start = end;
        end += 1 + i64::try_from(state >> 61).expect("three bits");
        [start, end]
    };
    (0..tokens).map(span).collect()
}

fn kernels(criterion: &mut Criterion) {
    for tokens in SIZES {
        let (student, teacher) = (tiling(tokens, 7), tiling(tokens, 11));
        let losses: Vec<f64> = (0..32).cycle().take(tokens).map(f64::from).collect();
        let mut mapping = align(&student, &teacher).expect("in order");
        let mut reduced = reduce(&losses, &mapping, Reduction::Max).expect("it fits");

        let sample = || (0..tokens).step_by(tokens.div_ceil(CHECKED));
        let spans: Vec<_> = sample().map(|token| student[token]).collect();
        assert!(sample().map(|token| mapping[token]).eq(oracle::align(&spans, &teacher)), "a wrong mapping");
        for token in sample().filter(|&token| mapping[token] != vocagno::UNMAPPED) {
            let expected = oracle::reduce(&losses, mapping[token], Reduction::Max);
            assert_eq!(reduced[token].to_bits(), expected.to_bits(), "a wrong loss of token {token}");
        }

        let mut group = criterion.benchmark_group("kernels");
        group.throughput(Throughput::Elements(u64::try_from(tokens).expect("small")));
        group.bench_function(BenchmarkId::new("align", tokens), |bencher| {
            bencher.iter(|| align_into(black_box(&student), black_box(&teacher), &mut mapping));
        });
        group.bench_function(BenchmarkId::new("reduce", tokens), |bencher| {
            bencher.iter(|| reduce_into(black_box(&losses), black_box(&mapping), Reduction::Max, &mut reduced));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = kernels
}
criterion_main!(benches);
