//! Reads two lists of offsets, as tokenizers report them, and prints for each token of the first list
//! the range of tokens of the second that share text with it.
//!
//! ```text
//! $ cargo run --example offsets -- "0,5 5,9" "0,2 2,7 7,9"
//! token 0 at 0..5: tokens 0..2
//! token 1 at 5..9: tokens 1..3
//! ```

use std::env;
use std::error::Error;

use vocagno::spans::to_spans;
use vocagno::{Reason, Span, align, unmapped_reasons};

/// Pairs of offsets, written `start,end` and separated by white space.
fn offsets(list: &str) -> Result<Vec<(usize, usize)>, Box<dyn Error>> {
    let pair = |pair: &str| {
        let (start, end) = pair.split_once(',').ok_or_else(|| format!("{pair}: expected START,END"))?;
        Ok((start.parse()?, end.parse()?))
    };
    list.split_whitespace().map(pair).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let lists: Vec<String> = env::args().skip(1).collect();
    let [first, second] = &lists[..] else {
        return Err("expected two lists of offsets, such as \"0,5 5,9\" \"0,2 2,7 7,9\"".into());
    };
    let first: Vec<Span<i64>> = to_spans(offsets(first)?)?;
    let second: Vec<Span<i64>> = to_spans(offsets(second)?)?;
    let mapping = align(&first, &second)?;
    let reasons = unmapped_reasons(&first, &second, &mapping, None::<&[f32]>)?;
    for (token, (&[start, end], (&[from, to], reason))) in first.iter().zip(mapping.iter().zip(reasons)).enumerate() {
        match reason {
            Reason::Mapped => println!("token {token} at {start}..{end}: tokens {from}..{to}"),
            reason => println!("token {token} at {start}..{end}: none ({reason:?})"),
        }
    }
    Ok(())
}
