//! Where both tokenizations start a token.

use numpy::PyArray1;
use pyo3::prelude::*;
use vocagno::mapping::starts_batch_into;

use crate::memory::filled_with;
use crate::pool;
use crate::span_pair::{Boundaries, SpanPair, for_either_type};

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
    let rows = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        let threads = pool::threads(num_threads, boundaries.num_rows(), sides.num_tokens())?;
        sides.compute(py, &boundaries, |batch| {
            let mut rows = filled_with(-1, batch.student_rows().num_tokens())?;
            pool::run(threads, batch, &mut rows, &mut [(); 0], &|part, out, _| starts_batch_into(&part, out))?;
            Ok(rows)
        })?
    });
    Ok(PyArray1::from_vec(py, rows))
}
