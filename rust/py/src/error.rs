//! `vocagno.SpanError`, and the core's errors as Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use vocagno::error::{Error, ErrorKind, Input};

create_exception!(
    vocagno,
    SpanError,
    PyValueError,
    "Spans, a mapping or row boundaries that do not fit; names the argument, row, token and value."
);

/// The core's error as a Python exception. Its message begins with the name of the input, which in Python is another one
/// where the package's functions have another parameter.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(crate) fn raised(error: Error) -> PyErr {
    let message = error.to_string();
    if error.kind() == ErrorKind::Memory {
        return PyMemoryError::new_err(message);
    }
    let own_name = match error.input() {
        Some(Input::Student) => "student_spans",
        Some(Input::Teacher) => "teacher_spans",
        _ => return SpanError::new_err(message),
    };
    let rest = error.input().and_then(|input| message.strip_prefix(input.name())).unwrap_or(&message);
    SpanError::new_err(format!("{own_name}{rest}"))
}
