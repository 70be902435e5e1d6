//! How well mappings fit, and the mapping by chunks.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vocagno::{Offset, Overlap, TokenRange};

use crate::arrays::{Boundaries, Sides, SpanPair, borrow_pairs};
use crate::claims::{Memory, claim};
use crate::{pairs_to_array, raised, with_rows};

/// Strict kernel of `vocagno.overlap`.
#[pyfunction]
#[pyo3(signature = (student, teacher, mapping, student_cu, teacher_cu, /))]
#[expect(clippy::type_complexity, reason = "the pair that Python unpacks")]
pub(crate) fn overlap<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    mapping: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>)> {
    let mapping = borrow_pairs(mapping, "mapping")?;
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    let overlap = match SpanPair::borrow(student, teacher)? {
        SpanPair::Int32(sides) => overlap_of(py, sides, mapping, &boundaries)?,
        SpanPair::Int64(sides) => overlap_of(py, sides, mapping, &boundaries)?,
    };
    Ok((PyArray1::from_vec(py, overlap.iou), PyArray1::from_vec(py, overlap.ios)))
}

fn overlap_of<T: Offset>(
    py: Python<'_>,
    sides: Sides<'_, T>,
    mapping: &[TokenRange],
    boundaries: &Boundaries,
) -> PyResult<Overlap> {
    let [student_memory, teacher_memory] = sides.memory();
    let _claim = claim(&[student_memory, teacher_memory, Memory::of("mapping", mapping)], None)?;
    let Sides { student, teacher } = sides;
    let overlap = with_rows(sides, boundaries, |student_cu, teacher_cu| {
        py.detach(|| vocagno::overlap(student, teacher, mapping, student_cu, teacher_cu))
    })?;
    overlap.map_err(|error| raised(&error))
}

/// Strict kernel of `vocagno.chunk_boundaries`.
#[pyfunction]
#[pyo3(signature = (n, chunks, /))]
pub(crate) fn chunk_boundaries(py: Python<'_>, n: i64, chunks: i64) -> PyResult<Bound<'_, PyArray1<i64>>> {
    let (n, chunks) = (count(n, "n", 0)?, count(chunks, "chunks", 1)?);
    let boundaries = py.detach(|| vocagno::chunk_boundaries(n, chunks));
    Ok(PyArray1::from_vec(py, boundaries.map_err(|error| raised(&error))?))
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
    let mapping = py.detach(|| vocagno::chunk_map(n_student, n_teacher, chunks));
    pairs_to_array(py, mapping.map_err(|error| raised(&error))?)
}

fn count(value: i64, name: &str, least: i64) -> PyResult<usize> {
    match usize::try_from(value) {
        Ok(count) if value >= least => Ok(count),
        _ => Err(PyValueError::new_err(format!("{name}: expected at least {least}, got {value}"))),
    }
}
