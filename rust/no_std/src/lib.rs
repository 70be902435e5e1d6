//! Uses the crate where there is no `std`. If the crate or a dependency links `std`, this does not compile: its panic
//! handler would be the second one.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;
use core::ptr::null_mut;

/// An allocator without memory: every allocation fails.
struct Nothing;

// SAFETY: a null pointer says that there is no memory, and nothing is ever freed.
unsafe impl GlobalAlloc for Nothing {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Nothing = Nothing;

#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Whether an alignment into memory of the caller succeeds, and one that allocates is refused.
#[unsafe(no_mangle)]
pub extern "C" fn aligns() -> bool {
    let (student, teacher) = ([[0, 5], [5, 9]], [[0, 2], [2, 7], [7, 9]]);
    let mut mapping = [[0; 2]; 2];
    let is_written = vocagno::align_into(&student, &teacher, &mut mapping).is_ok() && mapping == [[0, 2], [1, 3]];
    is_written && vocagno::align(&student, &teacher) == Err(vocagno::Error::Memory { bytes: 16 })
}
