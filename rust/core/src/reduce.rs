//! The reduction of the teacher's losses over a mapping to one loss per student token.

use alloc::vec::Vec;

use crate::checks::expect_len;
use crate::error::{Error, Input};
use crate::loss::{Loss, finite};
use crate::mapping::{TokenRange, resolve};
use crate::memory::filled_with;

/// How the losses of several teacher tokens become the loss of one student token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The largest loss.
    #[default]
    Max,
    /// The mean over the finite losses.
    Mean,
    /// The sum.
    Sum,
    /// The smallest loss.
    Min,
}

/// The teacher loss of each student token: the losses of its range of teacher rows, reduced. NaN and infinite
/// losses are skipped. The result is NaN if no loss is left, and for [`UNMAPPED`](crate::UNMAPPED) tokens.
///
/// Sums and means accumulate in `f64`. A result outside the range of `f32` becomes infinite. Time is linear
/// in the number of tokens plus the lengths of their ranges.
///
/// Source: arXiv 2503.19123, Eq. 2.
///
/// # Errors
/// [`Error::Range`]: a range that is neither [`UNMAPPED`](crate::UNMAPPED) nor `0 <= first < stop <= losses.len()`.
/// [`Error::Memory`].
///
/// # Example
/// ```
/// use vocagno::{Reduction, reduce};
///
/// let losses = [0.5_f32, 2.0, f32::NAN];
/// let reduced = reduce(&losses, &[[0, 2], [1, 3]], Reduction::Mean)?;
/// assert_eq!(reduced, [1.25, 2.0]);
/// # Ok::<(), vocagno::Error>(())
/// ```
pub fn reduce<L: Loss>(losses: &[L], mapping: &[TokenRange], how: Reduction) -> Result<Vec<f32>, Error> {
    let mut out = filled_with(0.0, mapping.len())?;
    reduce_into(losses, mapping, how, &mut out)?;
    Ok(out)
}

/// [`reduce`] into a slice with one value per range.
///
/// # Errors
/// As [`reduce`], and [`Error::Length`] for a slice of another length. After an error the contents of `out`
/// are unspecified.
pub fn reduce_into<L: Loss>(
    losses: &[L],
    mapping: &[TokenRange],
    how: Reduction,
    out: &mut [f32],
) -> Result<(), Error> {
    expect_len(Input::Out, mapping.len(), out.len())?;
    let [low, high] = L::BOUNDS;
    match how {
        Reduction::Max => each(losses, mapping, out, |range| extreme(range, low, |a, b| if a < b { b } else { a })),
        Reduction::Min => each(losses, mapping, out, |range| extreme(range, high, |a, b| if b < a { b } else { a })),
        Reduction::Sum => each(losses, mapping, out, |range| finite(range).reduce(|sum, loss| sum + loss)),
        Reduction::Mean => each(losses, mapping, out, mean),
    }
}

/// The largest or smallest finite loss of a range that is not empty. `none` is the bound that no finite loss reaches.
///
/// Both ends are compared first, then the losses between them: most ranges have one or two tokens, and a branch on
/// the length would be mispredicted.
#[inline]
fn extreme<L: Loss>(range: &[L], none: L, better: impl Fn(L, L) -> L) -> Option<f64> {
    let [low, high] = L::BOUNDS;
    // NaN fails both comparisons, so it is replaced as infinite losses are.
    let known = |loss: L| if low < loss && loss < high { loss } else { none };
    let (&first, &last) = range.first().zip(range.last())?;
    let ends = better(known(first), known(last));
    let middle = range.get(1..range.len() - 1).unwrap_or_default();
    let best = middle.iter().fold(ends, |best, &loss| better(best, known(loss)));
    (best != none).then(|| best.to_f64())
}

fn each<L: Loss>(
    losses: &[L],
    mapping: &[TokenRange],
    out: &mut [f32],
    fold: impl Fn(&[L]) -> Option<f64>,
) -> Result<(), Error> {
    for (token, (value, &range)) in out.iter_mut().zip(mapping).enumerate() {
        let reduced = resolve(token, range, losses)?.and_then(&fold);
        *value = reduced.map_or(f32::NAN, to_f32);
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the precision of the result")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

fn mean<L: Loss>(losses: &[L]) -> Option<f64> {
    let (sum, count) = finite(losses).fold((0.0, 0.0), |(sum, count), loss| (sum + loss, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these results are exact")]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::mapping::UNMAPPED;

    const ALL: [Reduction; 4] = [Reduction::Max, Reduction::Mean, Reduction::Sum, Reduction::Min];

    fn reduced(losses: &[f64], range: TokenRange) -> [f32; 4] {
        ALL.map(|how| reduce(losses, &[range], how).map_or(f32::NEG_INFINITY, |values| values[0]))
    }

    #[test]
    fn the_four_reductions() {
        assert_eq!(reduced(&[9.0, 1.0, 4.0, -2.0], [1, 4]), [4.0, 1.0, 3.0, -2.0]);
    }

    #[test]
    fn losses_that_are_not_finite_are_skipped() {
        let losses = [f64::NAN, 2.0, f64::INFINITY, f64::NEG_INFINITY, 4.0];
        assert_eq!(reduced(&losses, [0, 5]), [4.0, 3.0, 6.0, 2.0]);
        assert!(reduced(&losses, [2, 4]).iter().all(|value| value.is_nan()));
        assert!(reduced(&losses, UNMAPPED).iter().all(|value| value.is_nan()));
        assert!(reduced(&[], UNMAPPED).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn sums_accumulate_in_double_precision() {
        let losses = vec![0.1_f32; 1_000_000];
        let exact = f64::from(0.1_f32);
        assert_eq!(reduce(&losses, &[[0, 1_000_000]], Reduction::Mean), Ok(vec![to_f32(exact)]));
        let sum = reduce(&losses, &[[0, 1_000_000]], Reduction::Sum).unwrap_or_default()[0];
        assert!((f64::from(sum) - exact * 1e6).abs() < 0.01, "{sum}");
    }

    #[test]
    fn ranges_outside_are_refused() {
        for range in [[-1, 0], [0, 0], [1, 0], [0, 4], [3, 4], [-1, 2], [i32::MIN, i32::MAX], [0, -1], [-2, -2]] {
            let error = reduce(&[1.0_f32; 3], &[[0, 3], range], Reduction::Max);
            assert_eq!(error, Err(Error::Range { token: 1, range, items: "losses", len: 3 }));
        }
        let error = Error::Range { token: 1, range: [0, 4], items: "losses", len: 3 }.to_string();
        let message = "mapping: token 1: expected (-1, -1) or 0 <= first < stop <= 3, the number of losses, got (0, 4)";
        assert_eq!(error, message);
    }
}
