//! Groups: the runs of tokens on which both tokenizers agree.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;

use crate::arrays::pairs_to_array;
use crate::span_pair::{Boundaries, SpanPair, for_either_type};

/// Strict kernel of `vocagno.groups`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, /))]
#[expect(clippy::type_complexity, reason = "the triple that Python unpacks")]
pub(crate) fn groups<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<i64>>)> {
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    let groups = for_either_type!(SpanPair::borrow(student, teacher), |sides| {
        sides.compute(py, &boundaries, |batch| vocagno::mapping::groups_batch(&batch))?
    });
    let cu_seqlens = PyArray1::from_vec(py, groups.cu_seqlens);
    Ok((pairs_to_array(py, groups.student)?, pairs_to_array(py, groups.teacher)?, cu_seqlens))
}
