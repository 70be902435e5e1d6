//! Where both tokenizations start a token.

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::memory::filled_with;
use crate::pool;
use crate::span_pair::{Boundaries, Sides, SpanPair, for_either_type};

/// Strict kernel of `vocagno.starts`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, num_threads, /))]
pub(crate) fn starts<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
    num_threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    let num_rows = boundaries.both().map_or(1, |(student, _)| student.len().saturating_sub(1));
    let found = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        let Sides { student, teacher } = sides;
        let threads = pool::threads(num_threads, num_rows, student.len().saturating_add(teacher.len()))?;
        sides.compute(py, &boundaries, [], |student_cu, teacher_cu| {
            let mut found = filled_with(-1, student.len())?;
            let run = || vocagno::starts_batch(student, student_cu, teacher, teacher_cu, &mut found);
            pool::run(threads, run).map(|()| found)
        })?
    });
    Ok(PyArray1::from_vec(py, found))
}
