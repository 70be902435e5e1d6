//! Input: losses, ranges. The result must equal a fold over the finite losses. Ranges must be rejected only if one is
//! invalid.
#![no_main]

#[path = "../../core/tests/oracle/mod.rs"]
mod oracle;

use input::Input;
use libfuzzer_sys::fuzz_target;
use vocagno::{Reduction, TokenRange, UNMAPPED, reduce};

fn loss(input: &mut Input<'_>) -> f64 {
    match input.byte().cast_signed() {
        -128 => f64::NAN,
        -127 => f64::INFINITY,
        -126 => f64::NEG_INFINITY,
        eighths => f64::from(eighths) / 8.0,
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let losses = input.list(loss);
    let mapping: Vec<TokenRange> =
        input.list(|input| [input.byte().cast_signed(), input.byte().cast_signed()].map(i32::from));
    let rows = oracle::index(losses.len());
    let is_range =
        |&[first, stop]: &TokenRange| [first, stop] == UNMAPPED || (0 <= first && first < stop && stop <= rows);
    for how in [Reduction::Max, Reduction::Mean, Reduction::Sum, Reduction::Min] {
        let Ok(reduced) = reduce(&losses, &mapping, how) else {
            assert!(!mapping.iter().all(is_range), "refused {mapping:?} into {rows} rows");
            continue;
        };
        assert!(mapping.iter().all(is_range), "took {mapping:?} into {rows} rows");
        for (&range, found) in mapping.iter().zip(reduced) {
            let expected = if range == UNMAPPED { f32::NAN } else { oracle::reduce(&losses, range, how) };
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{range:?}: {found} for {expected}");
        }
    }
});
