//! How well mappings fit, and the mapping by chunks.

use numpy::{Element, PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vocagno::{Offset, Overlap, Range, Span};

use crate::arrays::{Boundaries, CuSeqlens, Spans, borrow_pairs, rows};
use crate::{length, pairs_to_array, raised, two_dtypes};

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
    let mapping = rows(&mapping, "mapping")?;
    let boundaries = Boundaries::borrow(student_cu, teacher_cu)?;
    let cu_seqlens = boundaries.both()?;
    let overlap = match (Spans::borrow(student, "student_spans")?, Spans::borrow(teacher, "teacher_spans")?) {
        (Spans::Int32(student), Spans::Int32(teacher)) => {
            overlap_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, mapping, cu_seqlens)?
        }
        (Spans::Int64(student), Spans::Int64(teacher)) => {
            overlap_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, mapping, cu_seqlens)?
        }
        (student, teacher) => return Err(two_dtypes(&student, &teacher)),
    };
    Ok((PyArray1::from_vec(py, overlap.iou), PyArray1::from_vec(py, overlap.ios)))
}

fn overlap_of<T: Offset + Element>(
    py: Python<'_>,
    student: &[Span<T>],
    teacher: &[Span<T>],
    mapping: &[Range],
    cu_seqlens: CuSeqlens<'_>,
) -> PyResult<Overlap> {
    let (student_cu, teacher_cu) = ([0, length(student.len())?], [0, length(teacher.len())?]);
    let (student_cu, teacher_cu) = cu_seqlens.unwrap_or((&student_cu, &teacher_cu));
    let overlap = py.detach(|| vocagno::overlap(student, teacher, mapping, student_cu, teacher_cu));
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
