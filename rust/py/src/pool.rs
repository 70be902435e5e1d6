//! One thread pool for all calls. It is built when a call first needs it, and again when a call needs a larger one.

use std::num::NonZero;
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::{env, mem, process, thread};

use pyo3::PyResult;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use vocagno::batch::Rows;
use vocagno::spans::Offset;
use vocagno::{Batch, Error};

/// Total number of tokens below which the calling thread finishes before other threads would start.
const MIN_TOKENS: usize = 32_768;
/// Number of tokens for which a part of a batch is worth another thread.
const GRAIN: usize = 8_192;

struct Kept {
    /// The process that started the threads. They do not exist in a forked child.
    process: u32,
    threads: usize,
    pool: Arc<ThreadPool>,
}

static POOL: Mutex<Option<Kept>> = Mutex::new(None);

/// The number of threads for a batch: `num_threads`, else `RAYON_NUM_THREADS`, else the cores that this process may
/// use. It is at most the number of threads that have work, and 1 if more would not pay off.
///
/// # Errors
/// `ValueError` for a number below 1 or above 64 bits, `TypeError` for a value that is not a number.
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

/// A batch that can be split into parts, of which each writes its own share of the output.
pub(crate) trait Split: Copy + Send + Sync {
    fn split(self) -> Option<(Self, Self)>;
    fn rows(&self) -> Rows<'_>;
}

impl Split for Rows<'_> {
    fn split(self) -> Option<(Self, Self)> {
        Rows::split(self)
    }
    fn rows(&self) -> Rows<'_> {
        *self
    }
}

impl<T: Offset> Split for Batch<'_, T> {
    fn split(self) -> Option<(Self, Self)> {
        Batch::split(self)
    }
    fn rows(&self) -> Rows<'_> {
        self.student_rows()
    }
}

/// Calls `work(part, its tokens in out, its rows in per_row)` for at most `threads` parts of a batch, on as many threads
/// of the pool. `per_row` has an item per row, or none at all. The error is that of the first row that fails. All
/// runs on the calling thread if `threads` is 1 or there is no pool.
pub(crate) fn run<B: Split, T: Send, P: Send>(
    threads: usize,
    batch: B,
    out: &mut [T],
    per_row: &mut [P],
    work: &(impl Fn(B, &mut [T], &mut [P]) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    match (threads > 1).then(|| pool(threads)).flatten() {
        Some(pool) => pool.install(|| run_parts(threads, batch, out, per_row, work)),
        None => work(batch, out, per_row),
    }
}

fn run_parts<B: Split, T: Send, P: Send>(
    parts: usize,
    batch: B,
    out: &mut [T],
    per_row: &mut [P],
    work: &(impl Fn(B, &mut [T], &mut [P]) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    let halves = if parts > 1 && out.len() > GRAIN { batch.split() } else { None };
    // A slice of another length is the core's to refuse.
    let Some((left, right)) = halves.filter(|_| out.len() == batch.rows().num_tokens()) else {
        return work(batch, out, per_row);
    };
    let (left_out, right_out) = out.split_at_mut(left.rows().num_tokens());
    let (left_rows, right_rows) = per_row.split_at_mut(left.rows().len().min(per_row.len()));
    let (first, second) = rayon::join(
        || run_parts(parts.div_ceil(2), left, left_out, left_rows, work),
        || run_parts(parts / 2, right, right_out, right_rows, work),
    );
    first.and(second)
}

/// The kept pool if it is alive and large enough, else a new one. `None` while another thread is building a pool (or
/// was, when this process was forked) and if the system cannot start the threads.
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
    // Batches of slowly growing sizes would need one more thread each time. Idle threads cost little.
    let threads = threads.max(threads.next_power_of_two().min(default_threads()));
    let named = ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("vocagno-{index}"));
    let pool = Arc::new(named.build().ok()?);
    let before = kept.replace(Kept { process, threads, pool: Arc::clone(&pool) });
    if before.as_ref().is_some_and(|before| before.process != process) {
        mem::forget(before); // its threads belong to the parent process: joining them here could block forever
    }
    Some(pool)
}
