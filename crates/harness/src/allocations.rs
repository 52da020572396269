//! Counts allocations of the whole process, to prove that a loop makes none, and their bytes, to
//! prove that something large is never held whole.
//!
//! A test binary makes [`CountingAllocator`] its global allocator and reads [`count`] at two
//! moments. Every thread counts, because the threads of the pool and the one that makes batches
//! belong to the step; so such a binary holds one test, and nothing else happens meanwhile.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with a counter.
#[derive(Debug)]
pub struct CountingAllocator;

static NUM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Allocations so far, growing included; 0 for ever where [`CountingAllocator`] is not in use.
pub fn count() -> u64 {
    NUM_ALLOCATIONS.load(Ordering::SeqCst)
}

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);
static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes that are allocated at present.
pub fn live_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::SeqCst)
}

/// The most bytes that were allocated at any moment since [`forget_peak`].
pub fn peak_bytes() -> u64 {
    PEAK_BYTES.load(Ordering::SeqCst)
}

/// From now on only what is to come counts for the peak.
pub fn forget_peak() {
    PEAK_BYTES.store(live_bytes(), Ordering::SeqCst);
}

fn count_one(num_bytes: usize) {
    NUM_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    let live = LIVE_BYTES.fetch_add(num_bytes as u64, Ordering::SeqCst) + num_bytes as u64;
    PEAK_BYTES.fetch_max(live, Ordering::SeqCst);
}

fn discount(num_bytes: usize) {
    LIVE_BYTES.fetch_sub(num_bytes as u64, Ordering::SeqCst);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract;
// the counter beside it neither allocates nor touches the memory.
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
