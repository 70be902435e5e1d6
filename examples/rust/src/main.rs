//! Transfers one number per word of a text to the pieces of another tokenization.
//!
//! ```text
//! $ cargo run --manifest-path examples/rust/Cargo.toml -- "an unbelievable story" 4
//! bytes 0 to 4: words 0 to 2, the longest of 13 bytes
//! ...
//! ```

use std::env;
use std::error::Error;

use vocagno::{Reduction, Span, align, reduce};

/// Words, each with the space before it.
fn words(text: &str) -> Vec<Span<i64>> {
    let mut spans: Vec<Span<i64>> = Vec::new();
    for (at, letter) in (0..).zip(text.bytes()) {
        match spans.last_mut() {
            Some(last) if letter != b' ' => last[1] = at + 1,
            _ => spans.push([at, at + 1]),
        }
    }
    spans
}

/// Pieces of `bytes` bytes.
fn pieces(text: &str, bytes: usize) -> Vec<Span<i64>> {
    let end = i64::try_from(text.len()).unwrap_or(i64::MAX);
    (0..end).step_by(bytes).map(|at| [at, end.min(at + i64::try_from(bytes).unwrap_or(end))]).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let text = arguments.next().ok_or("expected a text and a number of bytes")?;
    let bytes: usize = arguments.next().unwrap_or_default().parse()?;
    let (words, pieces) = (words(&text), pieces(&text, bytes.max(1)));
    let lengths: Vec<f32> = words.iter().map(|&[start, end]| (end - start) as f32).collect();

    let mapping = align(&pieces, &words)?;
    let longest = reduce(&lengths, &mapping, Reduction::Max)?;
    for (piece, (range, length)) in pieces.iter().zip(mapping.iter().zip(longest)) {
        println!(
            "bytes {} to {}: words {} to {}, the longest of {length} bytes",
            piece[0], piece[1], range[0], range[1]
        );
    }
    Ok(())
}
