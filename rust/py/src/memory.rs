//! Vectors whose allocation can fail: `MemoryError` instead of an abort of the process.

use pyo3::PyErr;
use pyo3::exceptions::PyMemoryError;
use vocagno::Error;

/// An empty vector with room for `items` items.
pub(crate) fn with_room<T>(items: usize) -> Result<Vec<T>, Refused> {
    let mut empty = Vec::new();
    empty.try_reserve_exact(items).map_err(|_| Refused { bytes: items.saturating_mul(size_of::<T>()) })?;
    Ok(empty)
}

/// Appends an item to a vector whose final length is not known in advance.
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), Refused> {
    let bytes = items.len().saturating_add(1).saturating_mul(size_of::<T>());
    items.try_reserve(1).map_err(|_| Refused { bytes })?;
    items.push(item);
    Ok(())
}

/// `items` copies of `value`.
pub(crate) fn filled_with<T: Clone>(value: T, items: usize) -> Result<Vec<T>, Refused> {
    let mut filled = with_room(items)?;
    filled.resize(items, value);
    Ok(filled)
}

/// A failed allocation.
pub(crate) struct Refused {
    bytes: usize,
}

impl From<Refused> for Error {
    fn from(Refused { bytes }: Refused) -> Self {
        Self::Memory { bytes }
    }
}

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        PyMemoryError::new_err(Error::from(refused).to_string())
    }
}
