//! What both tokenizers agree on.

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use vocagno::{Groups, Offset};

use crate::arrays::{Boundaries, Sides, SpanPair};
use crate::claims::claim;
use crate::{pairs_to_array, raised, with_rows};

/// Strict kernel of `vocagno.groups`.
#[pyfunction]
#[pyo3(signature = (student, teacher, student_cu, teacher_cu, /))]
#[expect(clippy::type_complexity, reason = "the three that Python unpacks")]
pub(crate) fn groups<'py>(
    py: Python<'py>,
    student: &Bound<'py, PyAny>,
    teacher: &Bound<'py, PyAny>,
    student_cu: Option<&Bound<'py, PyAny>>,
    teacher_cu: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<i64>>)> {
    let boundaries = Boundaries::read(student_cu, teacher_cu)?;
    let groups = match SpanPair::borrow(student, teacher)? {
        SpanPair::Int32(sides) => groups_of(py, sides, &boundaries)?,
        SpanPair::Int64(sides) => groups_of(py, sides, &boundaries)?,
    };
    let cu_seqlens = PyArray1::from_vec(py, groups.cu_seqlens);
    Ok((pairs_to_array(py, groups.student)?, pairs_to_array(py, groups.teacher)?, cu_seqlens))
}

fn groups_of<T: Offset>(py: Python<'_>, sides: Sides<'_, T>, boundaries: &Boundaries) -> PyResult<Groups> {
    let _claim = claim(&sides.memory(), None)?;
    let Sides { student, teacher } = sides;
    let groups = with_rows(sides, boundaries, |student_cu, teacher_cu| {
        py.detach(|| vocagno::groups(student, teacher, student_cu, teacher_cu))
    })?;
    groups.map_err(|error| raised(&error))
}
