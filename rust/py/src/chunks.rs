//! The chunk baseline.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays::pairs_to_array;
use crate::error::raised;

/// Strict kernel of `vocagno.chunk_boundaries`.
#[pyfunction]
#[pyo3(signature = (n, chunks, /))]
pub(crate) fn chunk_boundaries(py: Python<'_>, n: i64, chunks: i64) -> PyResult<Bound<'_, PyArray1<i64>>> {
    let (n, chunks) = (count(n, "n", 0)?, count(chunks, "chunks", 1)?);
    let boundaries = py.detach(|| vocagno::mapping::chunk_boundaries(n, chunks));
    Ok(PyArray1::from_vec(py, boundaries.map_err(raised)?))
}

/// Strict kernel of `vocagno.chunk_map`.
#[pyfunction]
#[pyo3(signature = (n_student, n_teacher, chunks, /))]
pub(crate) fn chunk_map(
    py: Python<'_>,
    n_student: i64,
    n_teacher: i64,
    chunks: i64,
) -> PyResult<Bound<'_, PyArray2<i32>>> {
    let (n_student, n_teacher) = (count(n_student, "n_student", 0)?, count(n_teacher, "n_teacher", 0)?);
    let chunks = count(chunks, "chunks", 1)?;
    let mapping = py.detach(|| vocagno::mapping::chunk_map(n_student, n_teacher, chunks));
    pairs_to_array(py, mapping.map_err(raised)?)
}

/// An integer argument as a count of at least `least`.
fn count(value: i64, name: &str, least: i64) -> PyResult<usize> {
    match usize::try_from(value) {
        Ok(count) if value >= least => Ok(count),
        _ => Err(PyValueError::new_err(format!("{name}: expected at least {least}, got {value}"))),
    }
}
