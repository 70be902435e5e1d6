//! Runs a kernel a number of times, for `make instructions` to count: `kernels align 10`; also `reduce` and `spans`.

use std::env;
use std::hint::black_box;

use vocagno::spans::spans_from_ids_into;
use vocagno::{DummyPrefix, Error, PieceRole, PieceTable, Reduction, Span, TokenRange, align_into, reduce_into};

const TOKENS: usize = 65_536;

/// Spans that tile a text, 1 to 8 bytes each. The numbers are pseudorandom and the same on every run.
fn tiling(seed: u64) -> Vec<Span<i32>> {
    let (mut state, mut end) = (seed, 0);
    let span = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let start = end;
        end += 1 + i32::try_from(state >> 61).unwrap_or_default();
        [start, end]
    };
    (0..TOKENS).map(span).collect()
}

fn main() -> Result<(), Error> {
    let mut arguments = env::args().skip(1);
    let kernel = arguments.next().unwrap_or_default();
    let times: usize = arguments.next().and_then(|times| times.parse().ok()).unwrap_or(1);
    let (student, teacher) = (tiling(7), tiling(11));
    let losses: Vec<f32> = teacher.iter().map(|span| f32::from(span[0].to_le_bytes()[0])).collect();
    let (mut mapping, mut reduced): (Vec<TokenRange>, _) = (vec![[0; 2]; TOKENS], vec![0.0; TOKENS]);
    align_into(&student, &teacher, &mut mapping)?;
    let text: Vec<u8> = (0..8 * TOKENS).map(|at| at.to_le_bytes()[0]).collect();
    let pieces = student.iter().map(|span| text.get(usize::try_from(span[0]).ok()?..usize::try_from(span[1]).ok()?));
    let table = PieceTable::new(pieces, &vec![PieceRole::Plain; TOKENS], DummyPrefix::None)?;
    let ids: Vec<i32> = (0_i32..).take(TOKENS).collect();
    let text = &text[..student.last().and_then(|span| usize::try_from(span[1]).ok()).unwrap_or_default()];
    let mut spans = vec![[0; 2]; TOKENS];
    for _ in 0..times {
        match kernel.as_str() {
            "align" => align_into(black_box(&student), &teacher, &mut mapping)?,
            "reduce" => reduce_into(black_box(&losses), &mapping, Reduction::Max, &mut reduced)?,
            "spans" => assert!(spans_from_ids_into(&table, black_box(&ids), text, &mut spans)?),
            _ => {}
        }
    }
    black_box((mapping, reduced, spans));
    Ok(())
}
