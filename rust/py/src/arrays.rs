//! Python arguments as Rust slices: borrowed as they are, or refused with the argument's name, what was
//! expected and what came.

use numpy::{
    BorrowError, Element, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyReadwriteArray2, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyList, PyString};
use vocagno::Span;

const INT32_PAIRS: &str = "a C-contiguous int32 array of shape (n, 2)";
const INTEGER_SPANS: &str = "a C-contiguous int32 or int64 array of shape (n, 2)";

/// Spans or offsets of either integer type.
pub(crate) enum Spans<'py> {
    Int32(PyReadonlyArray2<'py, i32>),
    Int64(PyReadonlyArray2<'py, i64>),
}

impl<'py> Spans<'py> {
    pub(crate) fn borrow(array: &Bound<'py, PyAny>, name: &str) -> PyResult<Self> {
        if let Ok(array) = array.cast::<PyArray2<i32>>() {
            return Ok(Self::Int32(array.try_readonly().map_err(|error| in_use(name, &error))?));
        }
        if let Ok(array) = array.cast::<PyArray2<i64>>() {
            return Ok(Self::Int64(array.try_readonly().map_err(|error| in_use(name, &error))?));
        }
        Err(refused(array, name, INTEGER_SPANS))
    }

    pub(crate) fn dtype(&self) -> &'static str {
        match self {
            Self::Int32(_) => "int32",
            Self::Int64(_) => "int64",
        }
    }
}

/// Losses of either floating-point type.
pub(crate) enum Losses<'py> {
    Float32(PyReadonlyArray1<'py, f32>),
    Float64(PyReadonlyArray1<'py, f64>),
}

impl<'py> Losses<'py> {
    pub(crate) fn borrow(array: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(array) = array.cast::<PyArray1<f32>>() {
            return Ok(Self::Float32(array.try_readonly().map_err(|error| in_use("losses", &error))?));
        }
        if let Ok(array) = array.cast::<PyArray1<f64>>() {
            return Ok(Self::Float64(array.try_readonly().map_err(|error| in_use("losses", &error))?));
        }
        Err(refused(array, "losses", "a contiguous float32 or float64 array of shape (n,)"))
    }
}

/// A one-dimensional array of `T`; `expected` describes it for the error.
pub(crate) fn borrow_1d<'py, T: Element>(
    array: &Bound<'py, PyAny>,
    name: &str,
    expected: &str,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    let typed = array.cast::<PyArray1<T>>().map_err(|_| refused(array, name, expected))?;
    typed.try_readonly().map_err(|error| in_use(name, &error))
}

/// An array of pairs: a mapping, or spans in bytes.
pub(crate) fn borrow_pairs<'py>(array: &Bound<'py, PyAny>, name: &str) -> PyResult<PyReadonlyArray2<'py, i32>> {
    let typed = array.cast::<PyArray2<i32>>().map_err(|_| refused(array, name, INT32_PAIRS))?;
    typed.try_readonly().map_err(|error| in_use(name, &error))
}

/// Row boundaries, int64.
pub(crate) fn borrow_cu_seqlens<'py>(array: &Bound<'py, PyAny>, name: &str) -> PyResult<PyReadonlyArray1<'py, i64>> {
    borrow_1d(array, name, "a contiguous int64 array of shape (B + 1,)")
}

/// Row boundaries of both sides, or of neither.
pub(crate) type CuSeqlens<'a> = Option<(&'a [i64], &'a [i64])>;

/// `student_cu_seqlens` and `teacher_cu_seqlens` as they came.
pub(crate) struct Boundaries<'py> {
    student: Option<PyReadonlyArray1<'py, i64>>,
    teacher: Option<PyReadonlyArray1<'py, i64>>,
}

impl<'py> Boundaries<'py> {
    pub(crate) fn borrow(student: Option<&Bound<'py, PyAny>>, teacher: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let student = student.map(|array| borrow_cu_seqlens(array, "student_cu_seqlens")).transpose()?;
        let teacher = teacher.map(|array| borrow_cu_seqlens(array, "teacher_cu_seqlens")).transpose()?;
        Ok(Self { student, teacher })
    }

    pub(crate) fn both(&self) -> PyResult<CuSeqlens<'_>> {
        let student = self.student.as_ref().map(|array| items(array, "student_cu_seqlens")).transpose()?;
        let teacher = self.teacher.as_ref().map(|array| items(array, "teacher_cu_seqlens")).transpose()?;
        match (student, teacher) {
            (Some(student), Some(teacher)) => Ok(Some((student, teacher))),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(PyValueError::new_err("student_cu_seqlens: expected row boundaries, as for the teacher, got None"))
            }
            (Some(_), None) => {
                Err(PyValueError::new_err("teacher_cu_seqlens: expected row boundaries, as for the student, got None"))
            }
        }
    }
}

/// The array to write the mapping of `tokens` student tokens to.
pub(crate) fn borrow_out<'py>(array: &Bound<'py, PyAny>, tokens: usize) -> PyResult<PyReadwriteArray2<'py, i32>> {
    let expected = || format!("a writable C-contiguous int32 array of shape ({tokens}, 2)");
    let typed = array.cast::<PyArray2<i32>>().map_err(|_| refused(array, "out", &expected()))?;
    if typed.shape() != [tokens, 2] || !typed.is_c_contiguous() || !typed.is_aligned() {
        return Err(refused(array, "out", &expected()));
    }
    typed.try_readwrite().map_err(|error| in_use("out", &error))
}

/// The rows of an (n, 2) array. Only C order will do: a Fortran-ordered array is one slice as well, but
/// of all starts and then all ends.
pub(crate) fn rows<'a, T: Element>(array: &'a PyReadonlyArray2<'_, T>, name: &str) -> PyResult<&'a [Span<T>]> {
    let expected = || format!("a C-contiguous {} array of shape (n, 2)", array.dtype());
    match array.as_slice() {
        Ok(flat) if array.is_c_contiguous() && array.shape().last() == Some(&2) => Ok(flat.as_chunks().0),
        _ => Err(refused(array.as_any(), name, &expected())),
    }
}

/// The items of a one-dimensional array.
pub(crate) fn items<'a, T: Element>(array: &'a PyReadonlyArray1<'_, T>, name: &str) -> PyResult<&'a [T]> {
    let expected = || format!("a contiguous {} array of shape (n,)", array.dtype());
    array.as_slice().map_err(|_| refused(array.as_any(), name, &expected()))
}

/// The texts' UTF-8 bytes, which Python keeps beside its own form of each string.
pub(crate) fn borrow_texts(texts: &Bound<'_, PyList>) -> PyResult<Vec<PyBackedStr>> {
    let text = |(index, text): (usize, Bound<'_, PyAny>)| {
        let text = text.cast_into::<PyString>().map_err(|error| {
            let got = type_name(&error.into_inner());
            PyTypeError::new_err(format!("texts[{index}]: expected a str, got {got}"))
        })?;
        let py = text.py();
        PyBackedStr::try_from(text).map_err(|error| {
            if !error.is_instance_of::<PyValueError>(py) {
                return error; // out of memory
            }
            let error = error.value(py);
            PyValueError::new_err(format!(
                "texts[{index}]: expected text that UTF-8 can encode, got a lone surrogate: {error}"
            ))
        })
    };
    texts.iter().enumerate().map(text).collect()
}

fn in_use(name: &str, error: &BorrowError) -> PyErr {
    let message = match error {
        BorrowError::NotWriteable => format!("{name}: expected a writable array, got a read-only one"),
        _ => format!("{name}: shares memory with another argument, or with a call in another thread, that writes"),
    };
    PyValueError::new_err(message)
}

/// `TypeError` for anything but an array and for an array of another dtype than the expected ones,
/// `ValueError` for one of another shape or layout.
fn refused(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    let Ok(array) = value.cast::<PyUntypedArray>() else {
        return PyTypeError::new_err(format!("{name}: expected {expected}, got {}", type_name(value)));
    };
    let dtype = array.dtype();
    let shape = array.shape().iter().map(ToString::to_string).collect::<Vec<_>>();
    let shape = if let [one] = &shape[..] { format!("({one},)") } else { format!("({})", shape.join(", ")) };
    let layout = match (array.is_c_contiguous(), array.is_fortran_contiguous(), array.is_aligned()) {
        (_, _, false) => ", not aligned",
        (true, _, true) => "",
        (false, true, true) => ", in Fortran order",
        (false, false, true) => ", not contiguous",
    };
    let message = format!("{name}: expected {expected}, got {dtype} of shape {shape}{layout}");
    if expected.contains(&dtype.to_string()) && dtype.is_native_byteorder() != Some(false) {
        PyValueError::new_err(message)
    } else {
        PyTypeError::new_err(message)
    }
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string())
}
