//! The memory that running calls read and write, so that no call writes to memory that it or another call uses.
//!
//! Arrays are compared by address: two arrays may share memory without sharing a base object (two buffers over one
//! file, two views of a tensor). The flags of rust-numpy compare base objects. They also survive a fork: a borrow that
//! another thread held is never released in the child. Claims are cleared there.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The memory of an argument.
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

/// The claims of one call. They are released when this is dropped.
pub(crate) struct Claim(Option<u64>);

/// Claims the memory that a call reads and, if the caller gives an array for the result, the memory that it writes.
///
/// # Errors
/// `ValueError` if the call would write memory that it reads itself or that another call reads or writes, or read
/// memory that another call writes.
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

/// Python calls this in a forked child. The child has copies of the claims, but not the threads that made them.
#[pyfunction]
fn forget_claims() {
    if let Some(mut claims) = lock() {
        claims.entries.clear();
    }
}

/// Registers [`forget_claims`]. Called once, when the module is loaded.
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

/// Locks the claims. A thread holds the lock for less than a microsecond and while it has the GIL. A fork during that
/// time is possible only in Python without a GIL. The lock is then never released in the child, which continues without
/// claims.
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
