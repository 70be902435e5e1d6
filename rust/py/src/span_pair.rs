//! The spans of a batch's student and teacher, of either integer type, and the row boundaries of both sides.

use numpy::PyArray2;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use vocagno::spans::{Offset, Span};
use vocagno::{Batch, Error};

use crate::arrays::{read_cu_seqlens, refused, rows};
use crate::error::raised;

const INTEGER_SPANS: &str = "a C-contiguous int32 or int64 array of shape (n, 2)";

/// Borrows [`Spans`] or a [`SpanPair`] and evaluates `$work` with the spans of the integer type that the arrays have.
/// The arms of the match are the same expression, compiled for each type.
macro_rules! for_either_type {
    ($spans:ident::borrow($($argument:expr),+), |$typed:ident| $work:expr) => {
        match $spans::borrow($($argument),+)? {
            $spans::Int32($typed) => $work,
            $spans::Int64($typed) => $work,
        }
    };
}
pub(crate) use for_either_type;

/// Spans or offsets of either integer type.
pub(crate) enum Spans<'a> {
    Int32(&'a [Span<i32>]),
    Int64(&'a [Span<i64>]),
}

impl<'a> Spans<'a> {
    pub(crate) fn borrow(array: &'a Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        if let Ok(array) = array.cast::<PyArray2<i32>>() {
            return Ok(Self::Int32(rows(array, name)?));
        }
        if let Ok(array) = array.cast::<PyArray2<i64>>() {
            return Ok(Self::Int64(rows(array, name)?));
        }
        Err(refused(array, name, INTEGER_SPANS))
    }

    fn dtype(&self) -> &'static str {
        match self {
            Self::Int32(_) => "int32",
            Self::Int64(_) => "int64",
        }
    }
}

/// The spans of both sides, of one integer type.
pub(crate) enum SpanPair<'a> {
    Int32(Sides<'a, i32>),
    Int64(Sides<'a, i64>),
}

impl<'a> SpanPair<'a> {
    pub(crate) fn borrow(student: &'a Bound<'_, PyAny>, teacher: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        match (Spans::borrow(student, "student_spans")?, Spans::borrow(teacher, "teacher_spans")?) {
            (Spans::Int32(student), Spans::Int32(teacher)) => Ok(Self::Int32(Sides { student, teacher })),
            (Spans::Int64(student), Spans::Int64(teacher)) => Ok(Self::Int64(Sides { student, teacher })),
            (student, teacher) => {
                let (student, teacher) = (student.dtype(), teacher.dtype());
                let message = format!("teacher_spans: expected {student} as in student_spans, got {teacher}");
                Err(PyTypeError::new_err(message))
            }
        }
    }
}

/// The spans of a batch's student and teacher.
#[derive(Clone, Copy)]
pub(crate) struct Sides<'a, T> {
    pub(crate) student: &'a [Span<T>],
    pub(crate) teacher: &'a [Span<T>],
}

impl<'a, T: Offset> Sides<'a, T> {
    /// Number of tokens of both sides.
    pub(crate) fn num_tokens(self) -> usize {
        self.student.len().saturating_add(self.teacher.len())
    }

    /// The batch of these spans. `None` for one pair of texts, without boundaries.
    pub(crate) fn batch<'b>(self, boundaries: &'b Boundaries) -> Result<Option<Batch<'b, T>>, Error>
    where
        'a: 'b,
    {
        boundaries.both().map(|(student, teacher)| Batch::new(self.student, student, self.teacher, teacher)).transpose()
    }

    /// Calls `work` without the GIL with the batch of these spans. Without boundaries, the pair of texts is a batch of
    /// one row.
    #[inline(never)] // inlined into its callers, `unmapped_reasons` took 65 instead of 55 instructions per token
    pub(crate) fn compute<R: Send>(
        self,
        py: Python<'_>,
        boundaries: &Boundaries,
        work: impl FnOnce(Batch<'_, T>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let whole = [[0, length(self.student)?], [0, length(self.teacher)?]];
        let (student_cu, teacher_cu) = boundaries.both().unwrap_or((&whole[0], &whole[1]));
        py.detach(|| work(Batch::new(self.student, student_cu, self.teacher, teacher_cu)?)).map_err(raised)
    }
}

fn length<T>(spans: &[Span<T>]) -> PyResult<i64> {
    i64::try_from(spans.len()).map_err(|_| PyValueError::new_err(format!("{} tokens are too many", spans.len())))
}

/// Row boundaries of both sides, or of neither.
pub(crate) struct Boundaries(Option<[Vec<i64>; 2]>);

impl Boundaries {
    pub(crate) fn read(student: Option<&Bound<'_, PyAny>>, teacher: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let student = student.map(|array| read_cu_seqlens(array, "student_cu_seqlens")).transpose()?;
        let teacher = teacher.map(|array| read_cu_seqlens(array, "teacher_cu_seqlens")).transpose()?;
        match (student, teacher) {
            (Some(student), Some(teacher)) => Ok(Self(Some([student, teacher]))),
            (None, None) => Ok(Self(None)),
            (None, Some(_)) => {
                Err(PyValueError::new_err("student_cu_seqlens: expected row boundaries, as for the teacher, got None"))
            }
            (Some(_), None) => {
                Err(PyValueError::new_err("teacher_cu_seqlens: expected row boundaries, as for the student, got None"))
            }
        }
    }

    /// The boundaries of the student's rows and of the teacher's rows. `None` for one pair of texts.
    pub(crate) fn both(&self) -> Option<(&[i64], &[i64])> {
        self.0.as_ref().map(|[student, teacher]| (&**student, &**teacher))
    }

    /// Number of rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.0.as_ref().map_or(1, |[student, _]| student.len().saturating_sub(1))
    }
}
