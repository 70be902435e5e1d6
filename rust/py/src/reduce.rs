//! The reduction of losses over a mapping.

use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vocagno::Reduction;

use crate::arrays::{Losses, borrow_pairs};
use crate::error::raised;

/// Strict kernel of `vocagno.reduce`.
#[pyfunction]
#[pyo3(signature = (losses, mapping, how, /))]
pub(crate) fn reduce<'py>(
    py: Python<'py>,
    losses: &Bound<'py, PyAny>,
    mapping: &Bound<'py, PyAny>,
    how: &str,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let how = match how {
        "max" => Reduction::Max,
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "min" => Reduction::Min,
        other => return Err(PyValueError::new_err(format!("how: expected max, mean, sum or min, got {other:?}"))),
    };
    let mapping = borrow_pairs(mapping, "mapping")?;
    let losses = Losses::borrow(losses)?;
    let reduced = match losses {
        Losses::Float32(losses) => py.detach(|| vocagno::reduce(losses, mapping, how)),
        Losses::Float64(losses) => py.detach(|| vocagno::reduce(losses, mapping, how)),
    };
    Ok(PyArray1::from_vec(py, reduced.map_err(raised)?))
}
