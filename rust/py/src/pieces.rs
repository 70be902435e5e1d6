//! Spans from ids, and from a tokenizer's own offsets.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyList;
use vocagno::{DummyPrefix, TokenKind};

use crate::arrays::{Spans, borrow_1d, borrow_cu_seqlens, borrow_pairs, borrow_texts, items, rows};
use crate::{pairs_to_array, pool, raised};

/// The bytes that each id of a lossless tokenizer stands for.
#[pyclass(module = "vocagno._vocagno", frozen)]
pub(crate) struct PieceTable(vocagno::PieceTable);

#[pymethods]
impl PieceTable {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "extracted from a Python sequence")]
    fn new(pieces: Vec<Option<PyBackedBytes>>, added: Vec<bool>, dummy_prefix: &str) -> PyResult<Self> {
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
        let table = vocagno::PieceTable::new(pieces, &added, dummy_prefix);
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

/// Byte spans without holes, as a new array.
#[pyfunction]
#[pyo3(signature = (spans, kinds, cu, texts, /))]
pub(crate) fn close_spans<'py>(
    py: Python<'py>,
    spans: &Bound<'py, PyAny>,
    kinds: &Bound<'py, PyAny>,
    cu: &Bound<'py, PyAny>,
    texts: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let spans = borrow_pairs(spans, "spans")?;
    let kinds = borrow_1d(kinds, "kinds", "a contiguous uint8 array of shape (n,)")?;
    let cu = borrow_cu_seqlens(cu, "cu_seqlens")?;
    let (cu, texts) = (items(&cu, "cu_seqlens")?, borrow_texts(texts)?);
    let kinds = items::<u8>(&kinds, "kinds")?.iter().enumerate().map(|(token, &kind)| {
        let expected = "0 (normal), 1 (blank) or 2 (special)";
        TokenKind::try_from(kind)
            .map_err(|got| PyValueError::new_err(format!("kinds[{token}]: expected {expected}, got {got}")))
    });
    let kinds = kinds.collect::<PyResult<Vec<_>>>()?;
    let spans = rows(&spans, "spans")?;
    let result = py.detach(|| {
        let mut closed = spans.to_vec();
        vocagno::close_batch(&mut closed, cu, &texts, &kinds).map(|()| closed)
    });
    pairs_to_array(py, result.map_err(|error| raised(&error))?)
}
