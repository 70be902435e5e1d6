//! The module `vocagno._vocagno`: the crate `vocagno` for NumPy arrays.
//!
//! Its functions are strict, the Python package is forgiving: an array is borrowed unchanged or rejected. Every
//! function releases the GIL while it computes, so no other thread may write to its arrays during the call.

mod align;
mod arrays;
mod chunks;
mod error;
mod groups;
mod memory;
mod overlap;
mod places;
mod pool;
mod reasons;
mod reduce;
mod span_pair;
mod spans;
mod starts;

use pyo3::prelude::*;

/// The crate `vocagno` for NumPy arrays: borrows them, computes without the GIL.
#[pymodule(gil_used = false)]
mod _vocagno {
    #[pymodule_export]
    use super::align::align;
    #[pymodule_export]
    use super::chunks::{chunk_boundaries, chunk_map};
    #[pymodule_export]
    use super::error::SpanError;
    #[pymodule_export]
    use super::groups::groups;
    #[pymodule_export]
    use super::overlap::overlap;
    #[pymodule_export]
    use super::places::Places;
    #[pymodule_export]
    use super::reasons::unmapped_reasons;
    #[pymodule_export]
    use super::reduce::reduce;
    #[pymodule_export]
    use super::spans::{PieceTable, chars_to_bytes};
    #[pymodule_export]
    use super::starts::starts;
}
