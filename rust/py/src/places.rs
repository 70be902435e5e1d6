//! Whether tokens stand for the text at their spans.

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrays::{borrow_ids, borrow_pairs, borrow_texts, read_cu_seqlens};
use crate::claims::{Memory, claim};
use crate::memory::with_room;
use crate::pieces::PieceTable;
use crate::raised;

/// What tokens are compared by with the text at their spans.
#[pyclass(module = "vocagno._vocagno", frozen)]
pub(crate) struct Places {
    places: vocagno::Places,
    table: Py<PieceTable>,
}

#[pymethods]
impl Places {
    #[new]
    #[pyo3(signature = (table, unknown, /))]
    fn new(py: Python<'_>, table: Py<PieceTable>, unknown: Option<i32>) -> PyResult<Self> {
        let pieces = &table.get().0;
        let places = py.detach(|| vocagno::Places::new(pieces, unknown)).map_err(|error| raised(&error))?;
        Ok(Self { places, table })
    }

    /// Tokens that do not stand for the text at their spans: (text, first token, one behind the last).
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
        let (cu, texts) = (read_cu_seqlens(cu, "cu_seqlens")?.values, borrow_texts(texts)?);
        let _claim = claim(&[Memory::of("spans", spans), Memory::of("ids", ids)], None)?;
        let table = &self.table.get().0;
        let found = py.detach(|| self.places.disagreeing(table, ids, spans, &cu, &texts));
        let found = found.map_err(|error| raised(&error))?;
        let mut rows = with_room(found.len())?;
        rows.extend(found.iter().map(|found| (found.row, found.tokens[0], found.tokens[1])));
        Ok(rows)
    }

    /// Whether the characters of some tokens are, in order, among those of a text.
    #[pyo3(signature = (ids, text, /))]
    fn agrees(&self, ids: &Bound<'_, PyAny>, text: &str) -> PyResult<bool> {
        Ok(self.places.agrees(&self.table.get().0, borrow_ids(ids)?, text))
    }

    /// The first tokens that stand elsewhere in their text, and the byte at which they do; None if none does.
    #[pyo3(signature = (ids, spans, text, disagreeing, /))]
    #[expect(clippy::needless_pass_by_value, reason = "made of Python's list")]
    fn misplaced(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        spans: &Bound<'_, PyAny>,
        text: &str,
        disagreeing: Vec<[usize; 2]>,
    ) -> PyResult<Option<(usize, usize, usize)>> {
        let (ids, spans) = (borrow_ids(ids)?, borrow_pairs(spans, "spans")?);
        let _claim = claim(&[Memory::of("spans", spans), Memory::of("ids", ids)], None)?;
        let table = &self.table.get().0;
        let found = py.detach(|| self.places.misplaced(table, ids, spans, text, &disagreeing));
        Ok(found.map(|(tokens, byte)| (tokens[0], tokens[1], byte)))
    }
}
