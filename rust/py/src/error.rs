//! `vocagno.SpanError`, and the core's errors as Python exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    vocagno,
    SpanError,
    PyValueError,
    "Spans, a mapping or row boundaries that do not fit; names the argument, row, token and value."
);

/// The core's error as a Python exception.
#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` takes")]
pub(crate) fn raised(error: vocagno::SpanError) -> PyErr {
    match error {
        vocagno::SpanError::Memory { .. } => PyMemoryError::new_err(error.to_string()),
        _ => SpanError::new_err(error.to_string()),
    }
}
