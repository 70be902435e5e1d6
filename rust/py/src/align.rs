//! Alignment, for one pair of texts or a batch.

use numpy::PyArray2;
use pyo3::prelude::*;
use vocagno::mapping::{align_batch_into, align_into};
use vocagno::spans::Offset;

use crate::arrays::pairs_to_array;
use crate::error::raised;
use crate::memory::filled_with;
use crate::pool;
use crate::span_pair::{Boundaries, Sides, SpanPair, for_either_type};

/// Strict kernel of `vocagno.align`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, num_threads, /))]
pub(crate) fn align<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
    num_threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    for_either_type!(SpanPair::borrow(student, teacher), |sides| align_arrays(py, sides, &boundaries, num_threads))
}

fn align_arrays<'py, T: Offset>(
    py: Python<'py>,
    sides: Sides<'_, T>,
    boundaries: &Boundaries,
    num_threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let threads = pool::threads(num_threads, boundaries.num_rows(), sides.num_tokens())?;
    let Sides { student, teacher } = sides;
    let mapping = py.detach(|| {
        let mut mapping = filled_with([0; 2], student.len())?;
        match sides.batch(boundaries)? {
            Some(batch) => {
                pool::run(threads, batch, &mut mapping, &mut [(); 0], &|part, out, _| align_batch_into(&part, out))?;
            }
            None => align_into(student, teacher, &mut mapping)?, // without a table of rows, which loops over short texts feel
        }
        Ok(mapping)
    });
    pairs_to_array(py, mapping.map_err(raised)?)
}
