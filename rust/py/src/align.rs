//! Alignment, for one pair of texts or a batch, into a new array or one that the caller gives.

use numpy::PyArray2;
use pyo3::prelude::*;
use vocagno::{Offset, TokenRange};

use crate::arrays::{Out, pairs_to_array};
use crate::claims::{Memory, claim};
use crate::error::raised;
use crate::memory::filled_with;
use crate::pool;
use crate::span_pair::{Boundaries, Sides, SpanPair, for_either_type};

/// Strict kernel of `vocagno.align`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, out, num_threads, /))]
pub(crate) fn align<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
    num_threads: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let batch = Batch { boundaries: Boundaries::read(student_cu, teacher_cu)?, num_threads };
    for_either_type!(SpanPair::borrow(student, teacher), |sides| align_arrays(py, sides, &batch, out))
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
        return pairs_to_array(py, mapping.map_err(raised)?);
    };
    let mut out = Out::checked(out, student.len())?;
    let reads: Vec<Memory> = sides.memory().into_iter().chain(batch.boundaries.memory()).collect();
    let _claim = claim(&reads, Some(&out.memory))?;
    // SAFETY: the memory is claimed for this call, and none of the arguments shares it.
    let pairs = unsafe { out.pairs() }?;
    py.detach(|| run(pairs)).map_err(raised)?;
    Ok(out.into_array())
}
