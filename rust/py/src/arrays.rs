//! Python arguments as Rust slices: borrowed unchanged, or rejected with an error that names the argument, what was
//! expected and what was given.
//!
//! Nobody may write to a borrowed array during the call: the documentation asks it of all callers, and no function of
//! this module writes to an argument. Row boundaries are copied: they are small and index into other arrays, so a write
//! to them during the call gives an error, not a panic.

use numpy::{Element, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyList, PyString};
use vocagno::TokenRange;

use crate::memory::with_room;

const INT32_PAIRS: &str = "a C-contiguous int32 array of shape (n, 2)";

/// Losses of either floating-point type.
pub(crate) enum Losses<'a> {
    Float32(&'a [f32]),
    Float64(&'a [f64]),
}

impl<'a> Losses<'a> {
    pub(crate) fn borrow(array: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(array) = array.cast::<PyArray1<f32>>() {
            return Ok(Self::Float32(items(array, "losses")?));
        }
        if let Ok(array) = array.cast::<PyArray1<f64>>() {
            return Ok(Self::Float64(items(array, "losses")?));
        }
        Err(refused(array, "losses", "a contiguous float32 or float64 array of shape (n,)"))
    }
}

/// Token ids.
pub(crate) fn borrow_ids<'a>(array: &'a Bound<'_, PyAny>) -> PyResult<&'a [i32]> {
    let typed = array.cast().map_err(|_| refused(array, "ids", "a contiguous int32 array of shape (n,)"))?;
    items(typed, "ids")
}

/// An array of pairs: a mapping, or spans in bytes.
pub(crate) fn borrow_pairs<'a>(array: &'a Bound<'_, PyAny>, name: &str) -> PyResult<&'a [TokenRange]> {
    rows(array.cast().map_err(|_| refused(array, name, INT32_PAIRS))?, name)
}

/// Row boundaries, copied.
pub(crate) fn read_cu_seqlens(array: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<i64>> {
    let typed = array.cast().map_err(|_| refused(array, name, "a contiguous int64 array of shape (B + 1,)"))?;
    let borrowed = items(typed, name)?;
    let mut values = with_room(borrowed.len())?;
    values.extend_from_slice(borrowed);
    Ok(values)
}

/// Pairs as an (n, 2) array. The vector is moved, not copied.
pub(crate) fn pairs_to_array(py: Python<'_>, pairs: Vec<[i32; 2]>) -> PyResult<Bound<'_, PyArray2<i32>>> {
    let count = pairs.len();
    PyArray1::from_vec(py, pairs.into_flattened()).reshape([count, 2])
}

/// The rows of an (n, 2) array, which must be in C order. A Fortran-ordered array is one slice too, but it has all
/// starts first and then all ends.
pub(crate) fn rows<'a, T: Element>(array: &'a Bound<'_, PyArray2<T>>, name: &str) -> PyResult<&'a [[T; 2]]> {
    // SAFETY: nobody writes to the array during the call (see the module).
    match unsafe { array.as_slice() } {
        Ok(flat) if array.is_c_contiguous() && array.shape().last() == Some(&2) => {
            refuse_masked(array.as_any(), name)?;
            Ok(flat.as_chunks().0)
        }
        _ => Err(refused(array.as_any(), name, &format!("a C-contiguous {} array of shape (n, 2)", array.dtype()))),
    }
}

/// The items of a one-dimensional array.
fn items<'a, T: Element>(array: &'a Bound<'_, PyArray1<T>>, name: &str) -> PyResult<&'a [T]> {
    // SAFETY: nobody writes to the array during the call (see the module).
    let Ok(items) = (unsafe { array.as_slice() }) else {
        return Err(refused(array.as_any(), name, &format!("a contiguous {} array of shape (n,)", array.dtype())));
    };
    refuse_masked(array.as_any(), name)?;
    Ok(items)
}

/// `TypeError` for a masked array, whose mask would be ignored.
fn refuse_masked(array: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    if array.is_exact_instance_of::<PyUntypedArray>() || !array.hasattr(intern!(array.py(), "mask"))? {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{name}: expected an array without a mask, got {}", type_name(array))))
}

/// The UTF-8 bytes of the texts. Python caches them in each string.
pub(crate) fn borrow_texts(texts: &Bound<'_, PyList>) -> PyResult<Vec<PyBackedStr>> {
    let text = |(index, text): (usize, Bound<'_, PyAny>)| {
        let text = text.cast_into::<PyString>().map_err(|error| {
            let got = type_name(&error.into_inner());
            PyTypeError::new_err(format!("texts[{index}]: expected a str, got {got}"))
        })?;
        let py = text.py();
        PyBackedStr::try_from(text).map_err(|error| {
            if !error.is_instance_of::<PyValueError>(py) {
                return error; // out of memory
            }
            let error = error.value(py);
            PyValueError::new_err(format!(
                "texts[{index}]: expected text that UTF-8 can encode, got a lone surrogate: {error}"
            ))
        })
    };
    let mut borrowed = with_room(texts.len())?;
    for item in texts.iter().enumerate() {
        borrowed.push(text(item)?);
    }
    Ok(borrowed)
}

/// `TypeError` for a value that is not an array or has another dtype than expected, `ValueError` for an array of
/// another shape or layout.
pub(crate) fn refused(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    let Ok(array) = value.cast::<PyUntypedArray>() else {
        return PyTypeError::new_err(format!("{name}: expected {expected}, got {}", type_name(value)));
    };
    let dtype = array.dtype();
    let shape = array.shape().iter().map(ToString::to_string).collect::<Vec<_>>();
    let shape = if let [one] = &shape[..] { format!("({one},)") } else { format!("({})", shape.join(", ")) };
    let layout = match (array.is_c_contiguous(), array.is_fortran_contiguous(), array.is_aligned()) {
        (_, _, false) => ", not aligned",
        (true, _, true) => "",
        (false, true, true) => ", in Fortran order",
        (false, false, true) => ", not contiguous",
    };
    let message = format!("{name}: expected {expected}, got {dtype} of shape {shape}{layout}");
    if expected.contains(&dtype.to_string()) && dtype.is_native_byteorder() != Some(false) {
        PyValueError::new_err(message)
    } else {
        PyTypeError::new_err(message)
    }
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}
