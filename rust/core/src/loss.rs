//! Losses in nats, and their [reduction](reduce()) over a mapping to one loss per student token.

pub use crate::reduce::{Reduction, reduce, reduce_into};

/// A loss in nats: `f32` or `f64`. A NaN or infinite value means "no loss".
pub trait Loss: Copy + Send + Sync + PartialOrd + sealed::Value {}

impl Loss for f32 {}

impl Loss for f64 {}

/// The finite losses, in order.
pub(crate) fn finite<L: Loss>(losses: &[L]) -> impl Iterator<Item = f64> {
    losses.iter().map(|loss| loss.to_f64()).filter(|loss| loss.is_finite())
}

/// Whether any loss is finite.
pub(crate) fn any_finite<L: Loss>(losses: &[L]) -> bool {
    finite(losses).next().is_some()
}

/// Restricts [`Loss`] to the types that the kernels are tested with.
mod sealed {
    /// Losses as numbers.
    pub trait Value: Sized {
        /// Bounds below and above every finite value.
        const BOUNDS: [Self; 2];
        /// The value, without rounding.
        fn to_f64(self) -> f64;
    }

    impl Value for f32 {
        const BOUNDS: [Self; 2] = [Self::NEG_INFINITY, Self::INFINITY];

        fn to_f64(self) -> f64 {
            f64::from(self)
        }
    }

    impl Value for f64 {
        const BOUNDS: [Self; 2] = [Self::NEG_INFINITY, Self::INFINITY];

        fn to_f64(self) -> f64 {
            self
        }
    }
}
