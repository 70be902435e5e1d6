//! The module `vocagno._vocagno`: the crate `vocagno` for NumPy arrays.
//!
//! Strict where the Python package is forgiving: arrays are borrowed as they are, or refused. Every function
//! computes without the GIL, so no other thread may write to its arrays meanwhile.

mod arrays;
mod claims;
mod groups;
mod memory;
mod overlap;
mod pieces;
mod places;
mod pool;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use vocagno::{Offset, Reason, Reduction, TokenRange};

use crate::arrays::{Boundaries, Losses, Out, Sides, SpanPair, borrow_pairs};
use crate::claims::{Memory, claim};
use crate::memory::filled_with;

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

/// The boundaries of both sides of a batch; one pair of texts is a batch of one row.
fn with_rows<T: Offset, R>(
    sides: Sides<'_, T>,
    boundaries: &Boundaries,
    work: impl FnOnce(&[i64], &[i64]) -> R,
) -> PyResult<R> {
    let length =
        |count| i64::try_from(count).map_err(|_| PyValueError::new_err(format!("{count} tokens are too many")));
    let (student, teacher) = ([0, length(sides.student.len())?], [0, length(sides.teacher.len())?]);
    let (student, teacher) = boundaries.both().unwrap_or((&student, &teacher));
    Ok(work(student, teacher))
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
    num_threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let batch = Batch { boundaries: Boundaries::read(student_cu, teacher_cu)?, num_threads };
    match SpanPair::borrow(student, teacher)? {
        SpanPair::Int32(sides) => align_arrays(py, sides, &batch, out),
        SpanPair::Int64(sides) => align_arrays(py, sides, &batch, out),
    }
}

struct Batch<'a, 'py> {
    boundaries: Boundaries,
    num_threads: Option<&'a Bound<'py, PyAny>>,
}

fn align_arrays<'py, T: Offset>(
    py: Python<'py>,
    sides: Sides<'_, T>,
    batch: &Batch<'_, '_>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let Sides { student, teacher } = sides;
    let cu_seqlens = batch.boundaries.both();
    let num_rows = cu_seqlens.map_or(1, |(student, _)| student.len().saturating_sub(1));
    let threads = pool::threads(batch.num_threads, num_rows, student.len().saturating_add(teacher.len()))?;
    let run = |out: &mut [TokenRange]| match cu_seqlens {
        Some((student_cu, teacher_cu)) => {
            pool::run(threads, || vocagno::align_batch(student, student_cu, teacher, teacher_cu, out))
        }
        None => vocagno::align_into(student, teacher, out),
    };
    let Some(out) = out else {
        let _claim = claim(&sides.memory(), None)?;
        let mapping = py.detach(|| {
            let mut mapping = filled_with([0; 2], student.len())?;
            run(&mut mapping).map(|()| mapping)
        });
        return pairs_to_array(py, mapping.map_err(|error| raised(&error))?);
    };
    let mut out = Out::checked(out, student.len())?;
    let reads: Vec<Memory> = sides.memory().into_iter().chain(batch.boundaries.memory()).collect();
    let _claim = claim(&reads, Some(&out.memory))?;
    // SAFETY: the memory is claimed for this call, which reads none of it.
    let pairs = unsafe { out.pairs() }?;
    py.detach(|| run(pairs)).map_err(|error| raised(&error))?;
    Ok(out.into_array())
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
    let losses = Losses::borrow(losses)?;
    let _claim = claim(&[losses.memory(), Memory::of("mapping", mapping)], None)?;
    let reduced = match losses {
        Losses::Float32(losses) => py.detach(|| vocagno::reduce(losses, mapping, how)),
        Losses::Float64(losses) => py.detach(|| vocagno::reduce(losses, mapping, how)),
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
    let losses = losses.map(Losses::borrow).transpose()?;
    let given = Given { mapping, losses, boundaries: Boundaries::read(student_cu, teacher_cu)? };
    let reasons = match SpanPair::borrow(student, teacher)? {
        SpanPair::Int32(sides) => reasons_of(py, sides, &given)?,
        SpanPair::Int64(sides) => reasons_of(py, sides, &given)?,
    };
    Ok(PyArray1::from_vec(py, reasons.into_iter().map(u8::from).collect()))
}

struct Given<'a> {
    mapping: &'a [TokenRange],
    losses: Option<Losses<'a>>,
    boundaries: Boundaries,
}

fn reasons_of<T: Offset>(py: Python<'_>, sides: Sides<'_, T>, given: &Given<'_>) -> PyResult<Vec<Reason>> {
    let Given { mapping, losses, boundaries } = given;
    let [student_memory, teacher_memory] = sides.memory();
    let losses_memory = losses.as_ref().map_or(Memory::of::<f32>("losses", &[]), Losses::memory);
    let _claim = claim(&[student_memory, teacher_memory, Memory::of("mapping", mapping), losses_memory], None)?;
    let Sides { student, teacher } = sides;
    let reasons = with_rows(sides, boundaries, |student_cu, teacher_cu| {
        py.detach(|| match losses {
            None => vocagno::unmapped_reasons(student, teacher, mapping, None::<&[f32]>, student_cu, teacher_cu),
            Some(Losses::Float32(losses)) => {
                vocagno::unmapped_reasons(student, teacher, mapping, Some(losses), student_cu, teacher_cu)
            }
            Some(Losses::Float64(losses)) => {
                vocagno::unmapped_reasons(student, teacher, mapping, Some(losses), student_cu, teacher_cu)
            }
        })
    })?;
    reasons.map_err(|error| raised(&error))
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
    use super::places::Places;
    #[pymodule_export]
    use super::{align, reduce, unmapped_reasons};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::claims::forget_in_children(module)
    }
}
