//! The module `vocagno._vocagno`: the crate `vocagno` for NumPy arrays.
//!
//! Strict where the Python package is forgiving: arrays are borrowed as they are, or refused. Every function
//! computes without the GIL, so no other thread may write to its arrays meanwhile.

mod arrays;
mod groups;
mod overlap;
mod pieces;
mod pool;

use numpy::{Element, PyArray1, PyArray2, PyArrayMethods};
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use vocagno::{Offset, Range, Reduction, Span};

use crate::arrays::{Boundaries, CuSeqlens, Losses, Spans, borrow_out, borrow_pairs, items, rows};

create_exception!(
    vocagno,
    SpanError,
    PyValueError,
    "Spans, a mapping or row boundaries that do not fit; names the argument, row, token and value."
);

/// The core's error as Python's.
fn raised(error: &vocagno::SpanError) -> PyErr {
    match error {
        vocagno::SpanError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => SpanError::new_err(error.to_string()),
    }
}

/// Pairs as an (n, 2) array, moved.
fn pairs_to_array(py: Python<'_>, pairs: Vec<[i32; 2]>) -> PyResult<Bound<'_, PyArray2<i32>>> {
    let count = pairs.len();
    PyArray1::from_vec(py, pairs.into_flattened()).reshape([count, 2])
}

fn length(count: usize) -> PyResult<i64> {
    i64::try_from(count).map_err(|_| PyValueError::new_err(format!("{count} tokens are too many")))
}

fn two_dtypes(student: &Spans<'_>, teacher: &Spans<'_>) -> PyErr {
    let (student, teacher) = (student.dtype(), teacher.dtype());
    PyTypeError::new_err(format!("teacher_spans: expected {student} as in student_spans, got {teacher}"))
}

/// Strict kernel of `vocagno.align`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, out, num_threads, /))]
fn align<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    num_threads: Option<i64>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let boundaries = Boundaries::borrow(student_cu, teacher_cu)?;
    let batch = Batch { cu_seqlens: boundaries.both()?, num_threads };
    match (Spans::borrow(student, "student_spans")?, Spans::borrow(teacher, "teacher_spans")?) {
        (Spans::Int32(student), Spans::Int32(teacher)) => {
            align_arrays(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, &batch, out)
        }
        (Spans::Int64(student), Spans::Int64(teacher)) => {
            align_arrays(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, &batch, out)
        }
        (student, teacher) => Err(two_dtypes(&student, &teacher)),
    }
}

struct Batch<'a> {
    cu_seqlens: CuSeqlens<'a>,
    num_threads: Option<i64>,
}

fn align_arrays<'py, T: Offset + Element>(
    py: Python<'py>,
    student: &[Span<T>],
    teacher: &[Span<T>],
    batch: &Batch<'_>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let num_rows = batch.cu_seqlens.map_or(1, |(student, _)| student.len().saturating_sub(1));
    let threads = pool::threads(batch.num_threads, num_rows, student.len().saturating_add(teacher.len()))?;
    let run = |out: &mut [Range]| match batch.cu_seqlens {
        Some((student_cu, teacher_cu)) => {
            pool::run(threads, || vocagno::align_batch(student, student_cu, teacher, teacher_cu, out))
        }
        None => vocagno::align_into(student, teacher, out),
    };
    let Some(out) = out else {
        let mapping = py.detach(|| {
            let mut mapping = vec![[0; 2]; student.len()];
            run(&mut mapping).map(|()| mapping)
        });
        return pairs_to_array(py, mapping.map_err(|error| raised(&error))?);
    };
    let mut borrowed = borrow_out(out, student.len())?;
    let flat = borrowed.as_slice_mut().map_err(|error| PyValueError::new_err(format!("out: {error}")))?;
    let (pairs, _) = flat.as_chunks_mut();
    py.detach(|| run(pairs)).map_err(|error| raised(&error))?;
    Ok(out.cast::<PyArray2<i32>>()?.clone())
}

/// Strict kernel of `vocagno.reduce`.
#[pyfunction]
#[pyo3(signature = (losses, mapping, how, /))]
fn reduce<'py>(
    py: Python<'py>,
    losses: &Bound<'py, PyAny>,
    mapping: &Bound<'py, PyAny>,
    how: &str,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let how = match how {
        "max" => Reduction::Max,
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "min" => Reduction::Min,
        other => return Err(PyValueError::new_err(format!("how: expected max, mean, sum or min, got {other:?}"))),
    };
    let mapping = borrow_pairs(mapping, "mapping")?;
    let mapping = rows(&mapping, "mapping")?;
    let reduced = match Losses::borrow(losses)? {
        Losses::Float32(losses) => {
            let losses = items(&losses, "losses")?;
            py.detach(|| vocagno::reduce(losses, mapping, how))
        }
        Losses::Float64(losses) => {
            let losses = items(&losses, "losses")?;
            py.detach(|| vocagno::reduce(losses, mapping, how))
        }
    };
    Ok(PyArray1::from_vec(py, reduced.map_err(|error| raised(&error))?))
}

/// Strict kernel of `vocagno.unmapped_reasons`.
#[pyfunction]
#[pyo3(signature = (student, teacher, mapping, losses, student_cu, teacher_cu, /))]
fn unmapped_reasons<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    mapping: &Bound<'py, PyAny>,
    losses: Option<&Bound<'py, PyAny>>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let mapping = borrow_pairs(mapping, "mapping")?;
    let mapping = rows(&mapping, "mapping")?;
    let losses = losses.map(Losses::borrow).transpose()?;
    let boundaries = Boundaries::borrow(student_cu, teacher_cu)?;
    let given = Given { mapping, losses, cu_seqlens: boundaries.both()? };
    match (Spans::borrow(student, "student_spans")?, Spans::borrow(teacher, "teacher_spans")?) {
        (Spans::Int32(student), Spans::Int32(teacher)) => {
            reasons_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, &given)
        }
        (Spans::Int64(student), Spans::Int64(teacher)) => {
            reasons_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, &given)
        }
        (student, teacher) => Err(two_dtypes(&student, &teacher)),
    }
}

struct Given<'a, 'py> {
    mapping: &'a [Range],
    losses: Option<Losses<'py>>,
    cu_seqlens: CuSeqlens<'a>,
}

fn reasons_of<'py, T: Offset + Element>(
    py: Python<'py>,
    student: &[Span<T>],
    teacher: &[Span<T>],
    given: &Given<'_, '_>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let (student_cu, teacher_cu) = ([0, length(student.len())?], [0, length(teacher.len())?]);
    let (student_cu, teacher_cu) = given.cu_seqlens.unwrap_or((&student_cu, &teacher_cu));
    let mapping = given.mapping;
    let reasons = match &given.losses {
        None => {
            let losses = None::<&[f32]>;
            py.detach(|| vocagno::unmapped_reasons(student, teacher, mapping, losses, student_cu, teacher_cu))
        }
        Some(Losses::Float32(losses)) => {
            let losses = Some(items(losses, "losses")?);
            py.detach(|| vocagno::unmapped_reasons(student, teacher, mapping, losses, student_cu, teacher_cu))
        }
        Some(Losses::Float64(losses)) => {
            let losses = Some(items(losses, "losses")?);
            py.detach(|| vocagno::unmapped_reasons(student, teacher, mapping, losses, student_cu, teacher_cu))
        }
    };
    let reasons = reasons.map_err(|error| raised(&error))?;
    Ok(PyArray1::from_vec(py, reasons.into_iter().map(u8::from).collect()))
}

/// The crate `vocagno` for NumPy arrays: borrows them, computes without the GIL.
#[pymodule(gil_used = false)]
mod _vocagno {
    #[pymodule_export]
    use super::SpanError;
    #[pymodule_export]
    use super::groups::groups;
    #[pymodule_export]
    use super::overlap::{chunk_boundaries, chunk_map, overlap};
    #[pymodule_export]
    use super::pieces::{PieceTable, chars_to_bytes};
    #[pymodule_export]
    use super::{align, reduce, unmapped_reasons};
}
