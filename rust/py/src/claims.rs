//! What memory calls under way read and write, so that none writes to what another one, or the same one, uses.
//!
//! Arrays are told by their addresses: two of them may share memory without sharing a base object (two buffers over
//! one file, two views of a tensor). rust-numpy's own flags go by the base object. They also outlive a fork: what
//! another thread held is held in the child for ever. Claims are forgotten there.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An argument's memory.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) argument: &'static str,
    /// Addresses.
    pub(crate) bytes: Range<usize>,
}

impl Memory {
    pub(crate) fn of<T>(argument: &'static str, items: &[T]) -> Self {
        let bytes = items.as_ptr_range();
        Self { argument, bytes: bytes.start.addr()..bytes.end.addr() }
    }

    fn meets(&self, other: &Self) -> bool {
        !self.bytes.is_empty()
            && !other.bytes.is_empty()
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

struct Entry {
    number: u64,
    memory: Memory,
    writes: bool,
}

struct Claims {
    entries: Vec<Entry>,
    next: u64,
}

static CLAIMS: Mutex<Claims> = Mutex::new(Claims { entries: Vec::new(), next: 0 });

/// Memory that is a call's until this is dropped.
pub(crate) struct Claim(Option<u64>);

/// Claims what a call reads and, if it is given an array for its result, writes.
///
/// # Errors
/// `ValueError` if it would write what itself or another call reads or writes, or read what another one writes.
pub(crate) fn claim(reads: &[Memory], writes: Option<&Memory>) -> PyResult<Claim> {
    if let Some(out) = writes
        && let Some(read) = reads.iter().find(|read| read.meets(out))
    {
        return Err(PyValueError::new_err(format!(
            "{}: shares memory with {}, expected memory of its own; pass a copy of one of them",
            out.argument, read.argument
        )));
    }
    let Some(mut claims) = lock() else {
        return Ok(Claim(None));
    };
    for (memory, is_written) in reads.iter().map(|read| (read, false)).chain(writes.map(|out| (out, true))) {
        let other = claims.entries.iter().find(|entry| (entry.writes || is_written) && entry.memory.meets(memory));
        if let Some(other) = other {
            let does = if other.writes { "writes" } else { "reads" };
            return Err(PyValueError::new_err(format!(
                "{}: shares memory with {} of a call in another thread, which {does} it; \
                 wait for that call, or pass a copy",
                memory.argument, other.memory.argument
            )));
        }
    }
    let number = claims.next;
    claims.next += 1;
    for (memory, writes) in reads.iter().map(|read| (read, false)).chain(writes.map(|out| (out, true))) {
        claims.entries.push(Entry { number, memory: memory.clone(), writes });
    }
    Ok(Claim(Some(number)))
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(number) = self.0
            && let Some(mut claims) = lock()
        {
            claims.entries.retain(|entry| entry.number != number);
        }
    }
}

/// Python calls this in a forked child: the threads whose claims it has a copy of are not in it.
#[pyfunction]
fn forget_claims() {
    if let Some(mut claims) = lock() {
        claims.entries.clear();
    }
}

/// To be called once, when the module is loaded.
pub(crate) fn forget_in_children(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let os = py.import("os")?;
    if os.hasattr("register_at_fork")? {
        let hooks = PyDict::new(py);
        hooks.set_item("after_in_child", wrap_pyfunction!(forget_claims, module)?)?;
        os.call_method("register_at_fork", (), Some(&hooks))?;
    }
    Ok(())
}

/// The claims, which a thread holds for less than a microsecond, and with the GIL. Only without a GIL can a process
/// be forked meanwhile: its child finds them locked for ever, and does without.
fn lock() -> Option<MutexGuard<'static, Claims>> {
    for _ in 0..10_000 {
        match CLAIMS.try_lock() {
            Ok(claims) => return Some(claims),
            Err(TryLockError::Poisoned(poisoned)) => return Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}
