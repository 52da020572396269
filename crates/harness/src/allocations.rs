//! Global allocator that counts allocations and live bytes of the whole process.
//!
//! A test binary makes [`CountingAllocator`] its global allocator and reads [`count`] at two
//! moments. Every thread counts, because the thread pool and the data-loading thread belong to the
//! step. Such a binary therefore has one test only. [`trace`] prints where memory is allocated.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system allocator with counters.
#[derive(Debug)]
pub struct CountingAllocator;

static NUM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Number of allocations and reallocations so far; always 0 without [`CountingAllocator`].
pub fn count() -> u64 {
    NUM_ALLOCATIONS.load(Ordering::SeqCst)
}

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes allocated at present.
pub fn live_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::SeqCst)
}

/// Peak of the allocated bytes since [`reset_peak`].
pub fn peak_bytes() -> u64 {
    PEAK_BYTES.load(Ordering::SeqCst)
}

/// Resets the peak to the bytes allocated at present.
pub fn reset_peak() {
    PEAK_BYTES.store(live_bytes(), Ordering::SeqCst);
}

static IS_TRACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is printing a backtrace, which allocates.
    static IS_PRINTING: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether a backtrace of every allocation is printed on standard error.
pub fn trace(is_traced: bool) {
    IS_TRACED.store(is_traced, Ordering::SeqCst);
}

#[expect(clippy::print_stderr, reason = "traces are for the person who runs a test")]
fn count_one(num_bytes: usize) {
    if !IS_PRINTING.get() {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        if IS_TRACED.load(Ordering::Relaxed) {
            IS_PRINTING.set(true);
            eprintln!("allocation of {num_bytes} bytes\n{}", Backtrace::force_capture());
            IS_PRINTING.set(false);
        }
    }
    let live = LIVE_BYTES.fetch_add(num_bytes as u64, Ordering::SeqCst) + num_bytes as u64;
    PEAK_BYTES.fetch_max(live, Ordering::SeqCst);
}

fn discount(num_bytes: usize) {
    LIVE_BYTES.fetch_sub(num_bytes as u64, Ordering::SeqCst);
}

// SAFETY: every call is forwarded unchanged to the system allocator, which keeps the contract; the
// counters do not access the memory, and what a backtrace allocates prints no further one.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        discount(layout.size());
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, num_bytes: usize) -> *mut u8 {
        count_one(num_bytes);
        discount(layout.size());
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, num_bytes) }
    }
}
