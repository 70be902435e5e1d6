//! How much text student tokens share with the teacher tokens that they are mapped to.

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::borrow_pairs;
use crate::span_pair::{Boundaries, SpanPair, for_either_type};

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
    let overlap = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        sides.compute(py, &boundaries, |batch| vocagno::mapping::overlap_batch(&batch, mapping))?
    });
    Ok((PyArray1::from_vec(py, overlap.iou), PyArray1::from_vec(py, overlap.ios)))
}
