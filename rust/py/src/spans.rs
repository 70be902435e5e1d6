//! Byte spans of tokens: from ids and the bytes of each id, or from the offsets that a tokenizer reports.

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use vocagno::batch::Rows;
use vocagno::spans::{DummyPrefix, PieceRole, spans_from_ids_batch_into};

use crate::arrays::{borrow_ids, borrow_pairs, borrow_texts, pairs_to_array, read_cu_seqlens};
use crate::error::raised;
use crate::memory::{filled_with, push, with_room};
use crate::pool;
use crate::span_pair::{Spans, for_either_type};

/// The bytes and the role of each id of a lossless tokenizer.
#[pyclass(module = "vocagno._vocagno", frozen)]
pub(crate) struct PieceTable {
    pub(crate) table: vocagno::PieceTable,
    dummy_prefix: String,
}

#[pymethods]
impl PieceTable {
    #[new]
    #[pyo3(signature = (pieces, roles, dummy_prefix, drops_bytes=false))]
    fn new(
        pieces: &Bound<'_, PyAny>,
        roles: &Bound<'_, PyAny>,
        dummy_prefix: &str,
        drops_bytes: bool,
    ) -> PyResult<Self> {
        let pieces: Vec<Option<PyBackedBytes>> = each(pieces, "pieces")?;
        let own_prefix = match dummy_prefix {
            "none" => DummyPrefix::None,
            "prepend" => DummyPrefix::Prepend,
            "metaspace" => DummyPrefix::Metaspace,
            "metaspace_first" => DummyPrefix::MetaspaceFirst,
            other => {
                let expected = "none, prepend, metaspace or metaspace_first";
                return Err(PyValueError::new_err(format!("dummy_prefix: expected {expected}, got {other:?}")));
            }
        };
        let numbers: Vec<u8> = each(roles, "roles")?;
        let mut roles = with_room(numbers.len())?;
        for (id, role) in numbers.into_iter().enumerate() {
            let expected = "0 (plain), 1 (added) or 2 (special)";
            let refused = |got| PyValueError::new_err(format!("roles[{id}]: expected {expected}, got {got}"));
            roles.push(PieceRole::try_from(role).map_err(refused)?);
        }
        let mut table = vocagno::PieceTable::new(pieces, &roles, own_prefix).map_err(raised)?;
        if drops_bytes {
            table = table.dropping_bytes();
        }
        Ok(Self { table, dummy_prefix: dummy_prefix.to_owned() })
    }

    /// Byte spans of the ids of each text, and whether the bytes of the ids are proved to equal the text.
    #[pyo3(signature = (ids, cu, texts, num_threads, /))]
    #[expect(clippy::type_complexity, reason = "the pair that Python unpacks")]
    fn spans<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        cu: &Bound<'py, PyAny>,
        texts: &Bound<'py, PyList>,
        num_threads: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<bool>>)> {
        let (ids, cu) = (borrow_ids(ids)?, read_cu_seqlens(cu, "cu_seqlens")?);
        let texts = borrow_texts(texts)?;
        let threads = pool::threads(num_threads, texts.len(), ids.len())?;
        let result = py.detach(|| {
            let (mut spans, mut proved) = (filled_with([0; 2], ids.len())?, filled_with(false, texts.len())?);
            let rows = Rows::new(&cu, ids.len())?;
            pool::run(threads, rows, &mut spans, &mut proved, &|rows, spans, proved| {
                spans_from_ids_batch_into(&self.table, ids, rows, &texts, spans, proved)
            })?;
            Ok((spans, proved))
        });
        let (spans, proved) = result.map_err(raised)?;
        Ok((pairs_to_array(py, spans)?, PyArray1::from_vec(py, proved)))
    }

    /// Decodes each document, or later part of one, from its ids to bytes, and gives the byte spans of the ids.
    #[pyo3(signature = (ids, cu, continues, /))]
    #[expect(clippy::type_complexity, reason = "the pair that Python unpacks")]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
        cu: &Bound<'py, PyAny>,
        continues: bool,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, Bound<'py, PyArray2<i32>>)> {
        let (ids, cu) = (borrow_ids(ids)?, read_cu_seqlens(cu, "cu_seqlens")?);
        let result =
            py.detach(|| vocagno::spans::decode_batch(&self.table, ids, Rows::new(&cu, ids.len())?, continues));
        let (texts, spans) = result.map_err(raised)?;
        let mut copied = with_room(texts.len())?;
        for text in texts {
            copied.push(PyBytes::new_with(py, text.len(), |bytes| {
                bytes.copy_from_slice(&text);
                Ok(())
            })?);
        }
        Ok((copied, pairs_to_array(py, spans)?))
    }

    /// Byte spans from the offsets that a tokenizer reports, with holes closed, as a new array.
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
        let (ids, cu) = (borrow_ids(ids)?, read_cu_seqlens(cu, "cu_seqlens")?);
        let texts = borrow_texts(texts)?;
        let result = py.detach(|| {
            let mut closed = with_room(spans.len())?;
            closed.extend_from_slice(spans);
            let rows = Rows::new(&cu, spans.len())?;
            vocagno::spans::close_ids_batch(&self.table, ids, &mut closed, rows, &texts).map(|()| closed)
        });
        pairs_to_array(py, result.map_err(raised)?)
    }

    fn __len__(&self) -> usize {
        self.table.len()
    }

    fn __repr__(&self) -> String {
        format!("PieceTable(ids={}, dummy_prefix='{}')", self.table.len(), self.dummy_prefix)
    }
}

/// The items of a sequence. PyO3's own conversion allocates the length that the sequence claims to have.
fn each<'py, T>(sequence: &Bound<'py, PyAny>, name: &str) -> PyResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let mut items = Vec::new();
    for (index, item) in sequence.try_iter()?.enumerate() {
        let item = item?.extract().map_err(Into::into).map_err(|error: PyErr| {
            let py = sequence.py();
            PyErr::from_type(error.get_type(py), format!("{name}[{index}]: {}", error.value(py)))
        });
        push(&mut items, item?)?;
    }
    Ok(items)
}

/// Converts character offsets to UTF-8 byte offsets.
#[pyfunction]
#[pyo3(signature = (offsets, cu, texts, /))]
pub(crate) fn chars_to_bytes<'py>(
    py: Python<'py>,
    offsets: &Bound<'py, PyAny>,
    cu: &Bound<'py, PyAny>,
    texts: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyArray2<i32>>> {
    let (cu, texts) = (read_cu_seqlens(cu, "cu_seqlens")?, borrow_texts(texts)?);
    let result = for_either_type!(Spans::borrow(offsets, "offsets"), |offsets| {
        py.detach(|| vocagno::spans::chars_to_bytes_batch(offsets, Rows::new(&cu, offsets.len())?, &texts))
    });
    pairs_to_array(py, result.map_err(raised)?)
}
