//! Vectors whose allocation can fail: [`Error::Memory`] instead of an abort of the process.

use alloc::vec::Vec;

use crate::error::Error;

/// An empty vector with room for `items` items.
pub(crate) fn with_room<T>(items: usize) -> Result<Vec<T>, Error> {
    let mut empty = Vec::new();
    empty.try_reserve_exact(items).map_err(|_| refused::<T>(items))?;
    Ok(empty)
}

/// `items` copies of `value`.
pub(crate) fn filled_with<T: Clone>(value: T, items: usize) -> Result<Vec<T>, Error> {
    let mut filled = with_room(items)?;
    filled.resize(items, value);
    Ok(filled)
}

/// Appends an item to a vector whose final length is not known in advance.
#[inline]
pub(crate) fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), Error> {
    if items.len() == items.capacity() {
        items.try_reserve(1).map_err(|_| refused::<T>(items.len().saturating_add(1)))?; // doubles the room
    }
    items.push(item);
    Ok(())
}

/// Appends the items of a slice.
#[inline]
pub(crate) fn extend<T: Clone>(items: &mut Vec<T>, more: &[T]) -> Result<(), Error> {
    items.try_reserve(more.len()).map_err(|_| refused::<T>(items.len().saturating_add(more.len())))?;
    items.extend_from_slice(more);
    Ok(())
}

fn refused<T>(items: usize) -> Error {
    Error::Memory { bytes: items.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn too_large_an_allocation_is_an_error() {
        assert_eq!(with_room::<u64>(usize::MAX), Err(Error::Memory { bytes: usize::MAX }));
        assert_eq!(filled_with([0_i32; 2], usize::MAX), Err(Error::Memory { bytes: usize::MAX }));
        assert_eq!(filled_with(7_u8, 3), Ok(vec![7; 3]));
    }

    #[test]
    fn items_are_appended_singly_or_as_a_slice() -> Result<(), Error> {
        let mut items = Vec::new();
        for item in 0..5 {
            push(&mut items, item)?;
        }
        extend(&mut items, &[5, 6])?;
        assert_eq!(items, [0, 1, 2, 3, 4, 5, 6]);
        Ok(())
    }
}
