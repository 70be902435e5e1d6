//! Why student tokens have no teacher loss.

use numpy::PyArray1;
use pyo3::prelude::*;
use vocagno::mapping::unmapped_reasons_batch;

use crate::arrays::{Losses, borrow_pairs};
use crate::span_pair::{Boundaries, SpanPair, for_either_type};

/// Strict kernel of `vocagno.unmapped_reasons`.
#[pyfunction]
#[pyo3(signature = (student, teacher, mapping, losses, student_cu, teacher_cu, /))]
pub(crate) fn unmapped_reasons<'py>(
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
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    let reasons = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        sides.compute(py, &boundaries, |batch| match losses {
            None => unmapped_reasons_batch(&batch, mapping, None::<&[f32]>),
            Some(Losses::Float32(losses)) => unmapped_reasons_batch(&batch, mapping, Some(losses)),
            Some(Losses::Float64(losses)) => unmapped_reasons_batch(&batch, mapping, Some(losses)),
        })?
    });
    Ok(PyArray1::from_vec(py, reasons.into_iter().map(u8::from).collect()))
}
