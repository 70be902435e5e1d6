//! Spans from ids, and from a tokenizer's own offsets.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use vocagno::{DummyPrefix, PieceRole};

use crate::arrays::{Spans, borrow_1d, borrow_cu_seqlens, borrow_pairs, borrow_texts, items, rows};
use crate::{pairs_to_array, pool, raised};

/// The bytes that each id of a lossless tokenizer stands for.
#[pyclass(module = "vocagno._vocagno", frozen)]
pub(crate) struct PieceTable(vocagno::PieceTable);

#[pymethods]
impl PieceTable {
    #[new]
    fn new(pieces: Vec<Option<PyBackedBytes>>, roles: Vec<u8>, dummy_prefix: &str) -> PyResult<Self> {
        let dummy_prefix = match dummy_prefix {
            "none" => DummyPrefix::None,
            "prepend" => DummyPrefix::Prepend,
            "metaspace" => DummyPrefix::Metaspace,
            "metaspace_first" => DummyPrefix::MetaspaceFirst,
            other => {
                let expected = "none, prepend, metaspace or metaspace_first";
                return Err(PyValueError::new_err(format!("dummy_prefix: expected {expected}, got {other:?}")));
            }
        };
        let roles = roles.into_iter().enumerate().map(|(id, role)| {
            let expected = "0 (plain), 1 (added) or 2 (special)";
            PieceRole::try_from(role)
                .map_err(|got| PyValueError::new_err(format!("roles[{id}]: expected {expected}, got {got}")))
        });
        let table = vocagno::PieceTable::new(pieces, &roles.collect::<PyResult<Vec<_>>>()?, dummy_prefix);
        Ok(Self(table.map_err(|error| raised(&error))?))
    }

    /// Byte spans of the ids of each text, and whether the ids' bytes are proved to be the text's.
    #[pyo3(signature = (ids, cu, texts, num_threads, /))]
    #[expect(clippy::type_complexity, reason = "the pair that Python unpacks")]
    fn spans<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        cu: &Bound<'py, PyAny>,
        texts: &Bound<'py, PyList>,
        num_threads: Option<i64>,
    ) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<bool>>)> {
        let ids = borrow_1d(ids, "ids", "a contiguous int32 array of shape (n,)")?;
        let cu = borrow_cu_seqlens(cu, "cu_seqlens")?;
        let (ids, cu, texts) = (items(&ids, "ids")?, items(&cu, "cu_seqlens")?, borrow_texts(texts)?);
        let threads = pool::threads(num_threads, texts.len(), ids.len())?;
        let result = py.detach(|| {
            let (mut spans, mut proved) = (vec![[0; 2]; ids.len()], vec![false; texts.len()]);
            let run = || vocagno::spans_from_ids_batch(&self.0, ids, cu, &texts, &mut spans, &mut proved);
            pool::run(threads, run).map(|()| (spans, proved))
        });
        let (spans, proved) = result.map_err(|error| raised(&error))?;
        Ok((pairs_to_array(py, spans)?, PyArray1::from_vec(py, proved)))
    }

    /// The bytes of each document kept as ids, and the byte spans of the ids.
    #[pyo3(signature = (ids, cu, /))]
    #[expect(clippy::type_complexity, reason = "the pair that Python unpacks")]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        cu: &Bound<'py, PyAny>,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, Bound<'py, PyArray2<i32>>)> {
        let ids = borrow_1d(ids, "ids", "a contiguous int32 array of shape (n,)")?;
        let cu = borrow_cu_seqlens(cu, "cu_seqlens")?;
        let (ids, cu) = (items(&ids, "ids")?, items(&cu, "cu_seqlens")?);
        let result = py.detach(|| {
            let mut spans = vec![[0; 2]; ids.len()];
            vocagno::decode_batch(&self.0, ids, cu, &mut spans).map(|texts| (texts, spans))
        });
        let (texts, spans) = result.map_err(|error| raised(&error))?;
        Ok((texts.iter().map(|text| PyBytes::new(py, text)).collect(), pairs_to_array(py, spans)?))
    }

    /// Byte spans of a tokenizer's own offsets without holes, as a new array.
    #[pyo3(signature = (spans, ids, cu, texts, /))]
    fn close<'py>(
        &self,
        py: Python<'py>,
        spans: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        cu: &Bound<'py, PyAny>,
        texts: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyArray2<i32>>> {
        let spans = borrow_pairs(spans, "spans")?;
        let ids = borrow_1d(ids, "ids", "a contiguous int32 array of shape (n,)")?;
        let cu = borrow_cu_seqlens(cu, "cu_seqlens")?;
        let (ids, cu, texts) = (items(&ids, "ids")?, items(&cu, "cu_seqlens")?, borrow_texts(texts)?);
        let spans = rows(&spans, "spans")?;
        let result = py.detach(|| {
            let mut closed = spans.to_vec();
            vocagno::close_ids_batch(&self.0, ids, &mut closed, cu, &texts).map(|()| closed)
        });
        pairs_to_array(py, result.map_err(|error| raised(&error))?)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// Character offsets as the UTF-8 byte offsets of the same places.
#[pyfunction]
#[pyo3(signature = (offsets, cu, texts, /))]
pub(crate) fn chars_to_bytes<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    cu: &Bound<'py, PyAny>,
    texts: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let cu = borrow_cu_seqlens(cu, "cu_seqlens")?;
    let (cu, texts) = (items(&cu, "cu_seqlens")?, borrow_texts(texts)?);
    let result = match Spans::borrow(offsets, "offsets")? {
        Spans::Int32(offsets) => {
            let offsets = rows(&offsets, "offsets")?;
            py.detach(|| in_bytes(offsets, cu, &texts))
        }
        Spans::Int64(offsets) => {
            let offsets = rows(&offsets, "offsets")?;
            py.detach(|| in_bytes(offsets, cu, &texts))
        }
    };
    pairs_to_array(py, result.map_err(|error| raised(&error))?)
}

fn in_bytes<T: vocagno::Offset, S: AsRef<str> + Sync>(
    offsets: &[vocagno::Span<T>],
    cu: &[i64],
    texts: &[S],
) -> Result<Vec<vocagno::Span<i32>>, vocagno::SpanError> {
    let mut out = vec![[0; 2]; offsets.len()];
    vocagno::chars_to_bytes_batch(offsets, cu, texts, &mut out).map(|()| out)
}
