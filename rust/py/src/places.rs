//! Checks spans: compares the characters of tokens with the text at their spans.

use pyo3::prelude::*;
use pyo3::types::PyList;
use vocagno::batch::Rows;

use crate::arrays::{borrow_ids, borrow_pairs, borrow_texts, read_cu_seqlens};
use crate::error::raised;
use crate::memory::with_room;
use crate::spans::PieceTable;

/// The folded characters of each token of a vocabulary, to compare tokens with the text at their spans.
#[pyclass(module = "vocagno._vocagno", frozen)]
pub(crate) struct Places {
    places: vocagno::places::Places,
    table: Py<PieceTable>,
}

#[pymethods]
impl Places {
    #[new]
    #[pyo3(signature = (table, unknown, /))]
    fn new(py: Python<'_>, table: Py<PieceTable>, unknown: Option<i32>) -> PyResult<Self> {
        let pieces = &table.get().table;
        let places = py.detach(|| vocagno::places::Places::new(pieces, unknown)).map_err(raised)?;
        Ok(Self { places, table })
    }

    /// Tokens that differ from the text at their spans: (text, first token, one past the last).
    #[pyo3(signature = (ids, spans, cu, texts, /))]
    fn disagreeing(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        spans: &Bound<'_, PyAny>,
        cu: &Bound<'_, PyAny>,
        texts: &Bound<'_, PyList>,
    ) -> PyResult<Vec<(usize, usize, usize)>> {
        let (ids, spans) = (borrow_ids(ids)?, borrow_pairs(spans, "spans")?);
        let (cu, texts) = (read_cu_seqlens(cu, "cu_seqlens")?, borrow_texts(texts)?);
        let table = &self.table.get().table;
        let found = py.detach(|| {
            let rows = Rows::new(&cu, ids.len())?;
            self.places.disagreeing_batch(table, ids, spans, rows, &texts)
        });
        let found = found.map_err(raised)?;
        let mut rows = with_room(found.len())?;
        rows.extend(found.iter().map(|found| (found.row, found.tokens[0], found.tokens[1])));
        Ok(rows)
    }

    /// Whether the characters of some tokens are a subsequence of a text.
    #[pyo3(signature = (ids, text, /))]
    fn agrees(&self, ids: &Bound<'_, PyAny>, text: &str) -> PyResult<bool> {
        Ok(self.places.agrees(&self.table.get().table, borrow_ids(ids)?, text))
    }

    /// The first tokens that occur elsewhere in their text, and the byte where they occur. None if there are none.
    #[pyo3(signature = (ids, spans, text, disagreeing, /))]
    #[expect(clippy::needless_pass_by_value, reason = "converted from a Python list")]
    fn misplaced(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        spans: &Bound<'_, PyAny>,
        text: &str,
        disagreeing: Vec<[usize; 2]>,
    ) -> PyResult<Option<(usize, usize, usize)>> {
        let (ids, spans) = (borrow_ids(ids)?, borrow_pairs(spans, "spans")?);
        let table = &self.table.get().table;
        let found = py.detach(|| self.places.misplaced(table, ids, spans, text, &disagreeing));
        Ok(found.map(|(tokens, byte)| (tokens[0], tokens[1], byte)))
    }

    /// Tokens that are not at their characters, although these can be at one place only, and the byte spans of these
    /// places. None if disagreeing tokens can be at several places.
    #[pyo3(signature = (ids, spans, text, disagreeing, /))]
    #[expect(clippy::needless_pass_by_value, reason = "converted from a Python list")]
    #[expect(clippy::type_complexity, reason = "what Python unpacks")]
    fn moves(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        spans: &Bound<'_, PyAny>,
        text: &str,
        disagreeing: Vec<[usize; 2]>,
    ) -> PyResult<Option<Vec<(usize, [i32; 2])>>> {
        let (ids, spans) = (borrow_ids(ids)?, borrow_pairs(spans, "spans")?);
        let table = &self.table.get().table;
        Ok(py.detach(|| self.places.moves(table, ids, spans, text, &disagreeing)))
    }
}
