//! What both tokenizers agree on.

use numpy::{Element, PyArray1, PyArray2};
use pyo3::prelude::*;
use vocagno::{Groups, Offset, Span};

use crate::arrays::{Boundaries, CuSeqlens, Spans, rows};
use crate::{length, pairs_to_array, raised, two_dtypes};

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
    let boundaries = Boundaries::borrow(student_cu, teacher_cu)?;
    let cu_seqlens = boundaries.both()?;
    let groups = match (Spans::borrow(student, "student_spans")?, Spans::borrow(teacher, "teacher_spans")?) {
        (Spans::Int32(student), Spans::Int32(teacher)) => {
            groups_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, cu_seqlens)?
        }
        (Spans::Int64(student), Spans::Int64(teacher)) => {
            groups_of(py, rows(&student, "student_spans")?, rows(&teacher, "teacher_spans")?, cu_seqlens)?
        }
        (student, teacher) => return Err(two_dtypes(&student, &teacher)),
    };
    let cu_seqlens = PyArray1::from_vec(py, groups.cu_seqlens);
    Ok((pairs_to_array(py, groups.student)?, pairs_to_array(py, groups.teacher)?, cu_seqlens))
}

fn groups_of<T: Offset + Element>(
    py: Python<'_>,
    student: &[Span<T>],
    teacher: &[Span<T>],
    cu_seqlens: CuSeqlens<'_>,
) -> PyResult<Groups> {
    let (student_cu, teacher_cu) = ([0, length(student.len())?], [0, length(teacher.len())?]);
    let (student_cu, teacher_cu) = cu_seqlens.unwrap_or((&student_cu, &teacher_cu));
    let groups = py.detach(|| vocagno::groups(student, teacher, student_cu, teacher_cu));
    groups.map_err(|error| raised(&error))
}
