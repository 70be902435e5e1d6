//! Why student tokens have no teacher loss.

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::{Losses, borrow_pairs};
use crate::claims::Memory;
use crate::span_pair::{Boundaries, Sides, SpanPair, for_either_type};

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
    let others = [Some(Memory::of("mapping", mapping)), losses.as_ref().map(Losses::memory)];
    let reasons = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        let Sides { student, teacher } = sides;
        sides.compute(py, &boundaries, others.into_iter().flatten(), |student_cu, teacher_cu| match losses {
            None => vocagno::unmapped_reasons(student, teacher, mapping, None::<&[f32]>, student_cu, teacher_cu),
            Some(Losses::Float32(losses)) => {
                vocagno::unmapped_reasons(student, teacher, mapping, Some(losses), student_cu, teacher_cu)
            }
            Some(Losses::Float64(losses)) => {
                vocagno::unmapped_reasons(student, teacher, mapping, Some(losses), student_cu, teacher_cu)
            }
        })?
    });
    Ok(PyArray1::from_vec(py, reasons.into_iter().map(u8::from).collect()))
}
