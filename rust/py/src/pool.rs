//! One thread pool for all calls, built when a call first needs it, and again when one needs a larger one.

use std::num::NonZero;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::{env, mem, process, thread};

use pyo3::PyResult;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Tokens in all below which the calling thread is done before others would have begun.
const MIN_TOKENS: usize = 32_768;
/// Tokens in all for which one more thread is worth its start.
const GRAIN: usize = 8_192;

struct Kept {
    /// The process that started the threads: after a fork they do not exist in the child.
    process: u32,
    threads: usize,
    pool: Arc<ThreadPool>,
}

static POOL: Mutex<Option<Kept>> = Mutex::new(None);

/// How many threads a batch gets: `num_threads`, else `RAYON_NUM_THREADS`, else the cores that this process may
/// use; but no more than have work, and one where more would not pay.
///
/// # Errors
/// `ValueError` for a number below 1 or beyond 64 bits, `TypeError` for anything but a number.
pub(crate) fn threads(num_threads: Option<&Bound<'_, PyAny>>, rows: usize, tokens: usize) -> PyResult<usize> {
    let wanted = num_threads.map(requested).transpose()?;
    if rows <= 1 || tokens < MIN_TOKENS {
        return Ok(1);
    }
    Ok(wanted.unwrap_or_else(default_threads).min(rows).min(tokens / GRAIN))
}

fn requested(num_threads: &Bound<'_, PyAny>) -> PyResult<usize> {
    let refused =
        || PyValueError::new_err(format!("num_threads: expected None or 1 to {}, got {num_threads}", i64::MAX));
    match num_threads.extract::<i64>().map(usize::try_from) {
        Ok(Ok(threads)) if threads > 0 => Ok(threads),
        Ok(_) => Err(refused()),
        Err(error) if error.is_instance_of::<PyOverflowError>(num_threads.py()) => Err(refused()),
        Err(error) => Err(error),
    }
}

fn default_threads() -> usize {
    static DEFAULT: OnceLock<usize> = OnceLock::new();
    *DEFAULT.get_or_init(|| {
        let set = env::var("RAYON_NUM_THREADS").ok().and_then(|value| value.trim().parse().ok());
        set.filter(|&threads| threads > 0).unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get))
    })
}

/// Runs `work` on `threads` threads of the pool, on the calling thread if that is one or no pool can be had.
pub(crate) fn run<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    match (threads > 1).then(|| pool(threads)).flatten() {
        Some(pool) => pool.install(|| vocagno::in_parts(threads, work)),
        None => work(),
    }
}

/// The kept pool if it is alive and large enough, else a new one; `None` while another thread is building one (or
/// was, when this process was forked from it) and where the system refuses threads.
fn pool(threads: usize) -> Option<Arc<ThreadPool>> {
    let mut kept = match POOL.try_lock() {
        Ok(kept) => kept,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let process = process::id();
    if let Some(alive) = kept.as_ref().filter(|kept| kept.process == process && kept.threads >= threads) {
        return Some(Arc::clone(&alive.pool));
    }
    // Batches of slowly growing sizes would ask for a thread more each time. Idle threads cost little.
    let threads = threads.max(threads.next_power_of_two().min(default_threads()));
    let named = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("vocagno-{index}"));
    let pool = Arc::new(named.build().ok()?);
    let before = kept.replace(Kept { process, threads, pool: Arc::clone(&pool) });
    if before.as_ref().is_some_and(|before| before.process != process) {
        mem::forget(before); // its threads are the parent's; ending them from here could wait for ever
    }
    Some(pool)
}
